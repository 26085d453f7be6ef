"""The second reader: its forward pass is that of transformers, it starts as the first reader, and its training resumes."""

import copy
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import arr_coc
from arr_coc.adapters.loading import load_processor
from recipes.reader import folder, vocabulary
from recipes.reader import model as first
from recipes.reader.augment import without_augmentation
from recipes.reader.batches import pack
from recipes.reader.data import Library
from recipes.reader.forward import ReaderForward, all_cells, answer, take_cells, to_patches
from recipes.second_reader import model as second
from recipes.second_reader.train import Kind, Settings, loss, make_batch, start, train
from tests.recipes.reader.test_forward import QUESTIONS

TINY_SETTINGS = Settings(
    seconds=600, lr=3e-3, warmup_steps=2, steps=12, uses=2, grids=(((8, 8), 1.0),),
    kinds=(Kind("part", 4, 0.5, 0.5, 93, 0.5), Kind("all, a part kept", 4, 1.0, 0.3, 93, 0.5)),
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random second reader whose DeepStack, learned positions and norms all count, and its folder."""
    torch.manual_seed(0)
    model = second.build(second.TINY).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(6)
        elif "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    path = folder.write(model, tmp_path_factory.mktemp("second"), dtype=torch.float32, max_cells=200)
    return model, path


@pytest.mark.parametrize("grid", [(8, 9), (16, 5)])
@torch.no_grad()
def test_logits_equal_those_of_transformers(tiny, chat, picture, grid):
    model, path = tiny
    processor = load_processor(path)
    columns, rows = grid
    image = picture(columns * second.CELL, rows * second.CELL)
    text, _, packed = pack(QUESTIONS, 90)
    tokens, _, segment, place = (torch.from_numpy(part)[None] for part in text)
    forward = ReaderForward(model)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    patches = to_patches(without_augmentation(pixels), second.PATCH)
    cells = all_cells(1, columns * rows, torch.device("cpu"))
    visual = forward.encode(patches, cells, columns, rows)
    logits = forward.logits(visual, cells, grid, tokens, segment, place)[0]
    for number, question in enumerate(packed):
        inputs = chat(processor, image, question.text)
        assert inputs["image_grid_thw"].tolist() == [[1, rows * 2, columns * 2]]
        said = torch.tensor([vocabulary.encode(question.answer)])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], said], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == vocabulary.IMAGE).int()
        expected = model(**inputs).logits[0, -said.shape[1] - 1 :]
        torch.testing.assert_close(
            logits[segment[0] == number][-said.shape[1] - 2 : -1], expected, atol=5e-4, rtol=1e-3
        )
    few = torch.tensor([[1, 4, 5, 11]])
    alone = forward.encode(take_cells(patches, few), few, columns, rows)
    moved = forward.encode(take_cells(patches, few), few + 1, columns, rows)
    assert not torch.allclose(alone, moved, atol=1e-3)


def test_it_answers_as_generate_does_and_arr_coc_loads_it(tiny, chat, picture):
    model, path = tiny
    image = picture(8 * second.CELL, 9 * second.CELL)
    vlm = arr_coc.load(path)
    patches = to_patches(without_augmentation(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]), second.PATCH)
    inputs = chat(load_processor(path), image, "total?")
    said = model.generate(**inputs, max_new_tokens=12)[0, inputs["input_ids"].shape[1] :]
    expected = vocabulary.decode(said.tolist())
    assert answer(ReaderForward(model), patches, [["total?"]], (8, 9), longest=12)[0] == [expected]
    asked = vlm.ask(image, "total?", budget="all", glance="all", max_new_tokens=12)
    assert asked.text == expected.strip()
    assert asked.tokens["all"] == 72
    part = vlm.ask(image, "total?", budget="25%", glance="50%", max_new_tokens=2)
    assert (part.tokens["encoded"], part.tokens["kept"]) == (36, 18)


@torch.no_grad()
def test_it_starts_as_the_first_reader(reader):
    """On an enlarged picture the warm start computes what the first reader does."""
    source = copy.deepcopy(reader[0])
    for layer in source.model.language_model.layers:  # its biases are zero in a fresh model
        for part in ("q_proj", "k_proj", "v_proj"):
            torch.nn.init.normal_(layer.self_attn.get_submodule(part).bias, std=0.5)
    model = second.build(second.TINY).eval()
    second.warm_start(model, source, second.TINY)
    coarse = F.interpolate(torch.rand(1, 3, 36, 32), scale_factor=7, mode="bilinear")
    image = torch.rand(1, 3, 9 * first.CELL, 8 * first.CELL) * 0.3 + coarse * 0.7
    split = image.unflatten(2, (-1, first.PATCH)).unflatten(4, (-1, first.PATCH)).permute(0, 1, 2, 4, 3, 5)
    large = split.flatten(-2) @ second.enlarging(first.PATCH, second.PATCH).T
    large = large.unflatten(-1, (second.PATCH,) * 2).permute(0, 1, 2, 4, 3, 5).flatten(4, 5).flatten(2, 3)
    text, _, _ = pack(QUESTIONS, 90)
    tokens, _, segment, place = (torch.from_numpy(part)[None] for part in text)
    found, cells, grid = [], all_cells(1, 72, torch.device("cpu")), (8, 9)
    for one, picture_ in ((source, image), (model, large)):
        forward = ReaderForward(one)
        visual = forward.encode(to_patches(picture_, forward.patch), cells, *grid)
        found.append(forward.logits(visual, cells, grid, tokens, segment, place))
    away = (found[0] - found[1]).square().mean().sqrt() / found[0].std()
    assert float(away) < 0.05


def test_training_lowers_the_loss_and_resumes(fonts, tmp_path: Path):
    library = Library(fonts)
    batch = make_batch(library, random.Random(5), TINY_SETTINGS)
    assert batch.images.shape[-1] == batch.grid[0] * second.CELL

    def measured(run) -> float:
        torch.manual_seed(0)
        with torch.no_grad():
            return float(loss(ReaderForward(run.model), batch))

    run = start(TINY_SETTINGS, second.TINY)
    before = measured(run)
    train(run, library, [], tmp_path, replace(TINY_SETTINGS, steps=6))
    again = train(start(TINY_SETTINGS, second.TINY), library, [], tmp_path, TINY_SETTINGS)
    assert again.step == 12
    assert again.images == 48
    assert measured(again) < before - 0.3
    assert arr_coc.load(tmp_path / "reader").model.config.model_type == "qwen3_vl"
