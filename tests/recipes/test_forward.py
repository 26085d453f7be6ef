"""The training forward pass computes what `transformers` computes for one question at a time."""

import numpy as np
import pytest
import torch

from arr_coc.reader import vocabulary
from arr_coc.training.documents.page import PageQuestion
from recipes.reader.augment import plain
from recipes.reader.batches import pack
from recipes.reader.forward import ReaderForward, take_cells, to_patches
from recipes.reader.missing import all_cells

QUESTIONS = [
    PageQuestion("a", "What is it?", "a cat"),
    PageQuestion("b", "total amount?", "9.00"),
    PageQuestion("c", "?", "x"),
]


@pytest.mark.parametrize("grid", [(8, 9), (16, 5)])
@torch.no_grad()
def test_logits_equal_those_of_transformers(reader, chat, picture, grid):
    model, processor = reader
    columns, rows = grid
    image = picture(columns * 28, rows * 28)
    text, _, packed = pack(QUESTIONS, 90)
    tokens, _, segment, place = (torch.from_numpy(part)[None] for part in text)
    forward = ReaderForward(model)
    cells = all_cells(1, columns * rows, torch.device("cpu"))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    visual = forward.encode(to_patches(plain(pixels)), cells, columns)
    logits = forward.logits(visual, cells, grid, tokens, segment, place)[0]
    for number, question in enumerate(packed):
        inputs = chat(processor, image, question.text)
        assert inputs["image_grid_thw"].tolist() == [[1, rows * 2, columns * 2]]
        answer = torch.tensor([vocabulary.encode(question.answer)])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == vocabulary.IMAGE).int()
        expected = model(**inputs).logits[0, -answer.shape[1] - 1 :]
        mine = logits[segment[0] == number][-answer.shape[1] - 2 : -1]  # the last token is <|end|>
        torch.testing.assert_close(mine, expected, atol=2e-4, rtol=1e-3)


@torch.no_grad()
def test_a_missing_cell_leaves_its_place_free(reader):
    """In which order the kept cells come does not matter, where they stand does."""
    model, _ = reader
    forward = ReaderForward(model)
    patches = torch.randn(1, 12, 4, 588)
    kept = torch.tensor([[1, 4, 5, 11]])
    alone = forward.encode(take_cells(patches, kept), kept, 4)
    swapped = forward.encode(take_cells(patches, kept.flip(1)), kept.flip(1), 4).flip(1)
    torch.testing.assert_close(alone, swapped, atol=1e-4, rtol=1e-3)
    moved = forward.encode(take_cells(patches, kept), all_cells(1, 4, torch.device("cpu")), 4)
    assert not torch.allclose(alone, moved, atol=1e-3)
