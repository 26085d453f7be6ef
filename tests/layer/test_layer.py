"""What a layer says about a picture depends on that picture and its question, and on nothing else beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.embedding import storage
from arr_coc.errors import LayerError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.config import CHANNELS, POOLINGS, LayerConfig
from arr_coc.layer.heads import entropy, statistics
from arr_coc.layer.identity import check, identity
from arr_coc.layer.inference import Seen, judge, predict
from arr_coc.training.examples import selection_input
from tests.adapters.tiny_vlm import picture
from tests.training import squares

CONFIG = LayerConfig("nobody", token_width=12, word_width=10, width=16, heads=2, pixels=2)


@lru_cache
def made(pooling: str = "learned") -> ArrCocLayer:
    torch.manual_seed(1)
    layer = ArrCocLayer(replace(CONFIG, pooling=pooling)).eval()
    with torch.no_grad():  # as if trained: nothing is 0 or alike
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def views(count: int, shapes: Any = ((1, 3, 4), (1, 2, 5))) -> list[list[Seen]]:
    dice = torch.Generator().manual_seed(5)
    return [[squares.noise(shape, len(CHANNELS), 2, 12, dice) for shape in shapes] for _ in range(count)]


def asked(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(6)
    there = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), 10, generator=dice), there


@torch.no_grad()
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pictures_and_questions_in_a_batch_do_not_hear_of_each_other(pooling: str) -> None:
    layer, pictures, (words, there) = made(pooling), views(3), asked([4, 7, 2, 9])
    pictures[1] = [replace(view, tokens=None) for view in pictures[1]]
    owner = torch.tensor([2, 0, 1, 0])
    together = judge(layer, pictures, owner, words, there)
    assert together.relevance.shape == (4, 22)
    for row, mine in enumerate(owner.tolist()):
        length = int(there[row].sum())
        alone = judge(
            layer, [pictures[mine]], torch.tensor([0]), words[row : row + 1, :length], there[row : row + 1, :length]
        )
        for name in ("relevance", "scores", "weights"):
            assert torch.allclose(getattr(alone, name)[0], getattr(together, name)[row], atol=1e-4), name
    turned = judge(layer, pictures[::-1], 2 - owner.flip(0), words.flip(0), there.flip(0))
    assert torch.allclose(turned.relevance.flip(0), together.relevance, atol=1e-4)
    assert (together.relevance[1] - together.relevance[3]).abs().max() > 1e-2  # the question matters
    other = words.clone()
    other[~there] = 1e3  # whatever stands in the padding
    assert torch.allclose(judge(layer, pictures, owner, other, there).relevance, together.relevance, atol=1e-4)


@torch.no_grad()
def test_tiles_and_moments_are_judged_each_by_itself() -> None:
    layer, (words, there) = made(), asked([4])
    (first, second) = views(2, ((2, 3, 4),))
    whole = judge(layer, [first], torch.tensor([0]), words, there).relevance.view(2, 12)
    mixed = [replace(first[0], **{name: torch.stack([getattr(first[0], name)[0], getattr(second[0], name)[1]])
                                  for name in ("channels", "pixels", "tokens")})]  # fmt: skip
    found = judge(layer, [mixed], torch.tensor([0]), words, there).relevance.view(2, 12)
    assert torch.allclose(found[0], whole[0], atol=1e-5)
    assert not torch.allclose(found[1], whole[1], atol=1e-2)


@torch.no_grad()
def test_tokens_of_cells_that_are_not_encoded_are_not_looked_at() -> None:
    layer, (words, there) = made(), asked([4])
    view = views(1, ((1, 3, 4),))[0][0]
    encoded = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    assert view.tokens is not None

    def relevance(tokens: torch.Tensor | None, known: torch.Tensor | None) -> torch.Tensor:
        given = replace(view, tokens=tokens, encoded=known)
        return judge(layer, [[given]], torch.tensor([0]), words, there).relevance

    partly = relevance(view.tokens, encoded)
    wild = torch.where(encoded[..., None], view.tokens, torch.tensor(1e4))
    assert torch.equal(relevance(wild, encoded), partly)
    assert (relevance(view.tokens, None) - partly).abs().max() > 1e-2
    nothing = relevance(view.tokens, torch.zeros_like(encoded))
    assert torch.allclose(nothing, relevance(None, None), atol=1e-5)  # encoded nowhere is a glance


def test_a_page_without_anything_on_it_has_finite_gradients() -> None:
    flat = torch.zeros(2, 3, 7, requires_grad=True)
    statistics(flat).sum().backward()
    assert flat.grad is not None
    assert bool(flat.grad.isfinite().all())
    single = torch.randn(2, 3, 1, requires_grad=True)
    statistics(single).sum().backward()
    assert single.grad is not None
    assert bool(single.grad.isfinite().all())


def test_entropy_is_0_for_one_tone_and_1_for_all() -> None:
    one, all_alike = torch.full((1, 16, 1, 1), 0.4), (torch.arange(16) % 8 / 7).view(1, 16, 1, 1)
    assert entropy(one).item() == pytest.approx(0, abs=1e-6)
    assert entropy(all_alike).item() == pytest.approx(1, abs=1e-6)


def test_what_is_written_is_read_bit_for_bit(tmp_path: Path) -> None:
    layer = made("sum")
    layer.save_pretrained(tmp_path / "new" / "folder")
    again = ArrCocLayer.from_pretrained(tmp_path / "new" / "folder")
    assert again.config == layer.config
    assert not again.training
    for name, weights in layer.state_dict().items():
        assert torch.equal(again.state_dict()[name], weights), name
    assert json.loads((tmp_path / "new" / "folder" / "layer.json").read_text())["pooling"] == "sum"


def test_files_that_are_no_layer(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="holds no learned layer: No such file"):
        ArrCocLayer.from_pretrained(tmp_path)
    made().save_pretrained(tmp_path)
    file = tmp_path / "layer.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(LayerError, match=r"layer.safetensors' is damaged: its checksum is wrong"):
        ArrCocLayer.from_pretrained(tmp_path)
    file.write_bytes(good[: len(good) // 2])
    with pytest.raises(LayerError, match="is damaged"):
        ArrCocLayer.from_pretrained(tmp_path)
    weights, note = storage.read(_kept(file, good))
    storage.write(file, weights, note | {"version": 99})
    with pytest.raises(LayerError, match="is not a learned ARR-COC layer of version 3"):
        ArrCocLayer.from_pretrained(tmp_path)
    storage.write(file, weights, note | {"width": 32})
    with pytest.raises(LayerError, match="its weights do not fit its own shape"):
        ArrCocLayer.from_pretrained(tmp_path)
    storage.write(file, weights, note | {"wings": 2})
    with pytest.raises(LayerError, match=r"expected the shape of a layer, got .*wings"):
        ArrCocLayer.from_pretrained(tmp_path)
    (tmp_path / "taken").write_text("")
    with pytest.raises(LayerError, match="cannot write"):
        made().save_pretrained(tmp_path / "taken")


def _kept(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"width": 20, "heads": 4}, "a multiple of 4 times it, got 4 and 20"),
        ({"heads": 3, "width": 24}, "an even number of heads"),
        ({"width": 0}, "expected width as a whole number from 1 on, got 0"),
        ({"asking": 1.5}, "expected asking as a whole number"),
        ({"pooling": "median"}, "expected pooling as one of learned, max, mean, sum, got 'median'"),
        ({"balance": "even"}, "expected balance as one of sigmoid, softmax, got 'even'"),
        ({"channels": ()}, "expected the names of one channel or more"),
    ],
)
def test_shapes_that_make_no_layer(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(LayerError, match=said):
        replace(CONFIG, **wrong)


def test_a_layer_belongs_to_one_model_in_any_precision() -> None:
    vlm, other = squares.model(), squares.model("qwen2_5_vl")
    layer, mine = squares.layer(vlm), identity(vlm.adapter)
    with pytest.raises(LayerError, match=f"trained for {mine}, and the model is {identity(other.adapter)}"):
        check(layer, other.adapter)
    with pytest.raises(LayerError, match="trained for qwen2_vl-"):
        arr_coc.wrap(other.model, other.processor, layer=layer)
    for dtype in (torch.bfloat16, torch.float16):
        assert identity(arr_coc.wrap(squares.model().model.to(dtype)).adapter) == mine
    with torch.no_grad():
        vlm.model.get_input_embeddings().weight[3] *= -1
    assert identity(vlm.adapter) != mine


def test_a_model_in_bfloat16_is_judged() -> None:
    vlm = squares.model()
    vlm.model.to(torch.bfloat16)
    layer = squares.layer(vlm)
    selection = selection_input(vlm, vlm.look(picture(64, 64)), "Which one?")
    assert selection.tokens is not None
    assert selection.tokens.dtype == torch.bfloat16
    found = predict(layer.to(torch.bfloat16).float(), selection)
    assert found.relevance.dtype == torch.float32
    assert bool(found.relevance.isfinite().all())
    assert not found.relevance.is_inference()
    answer = arr_coc.wrap(vlm.model, vlm.processor, layer=layer).ask(
        picture(64, 64), "Which?", budget=8, max_new_tokens=2
    )
    assert len(answer.allocations[0].keep) == 8


def test_weights_by_softmax_are_shares_of_one() -> None:
    pictures, (words, there) = views(2), asked([4, 7])
    for balance, least, most in (("sigmoid", 0.0, 3.0), ("softmax", 1.0, 1.0)):
        layer = ArrCocLayer(replace(CONFIG, balance=balance)).eval()
        sums = judge(layer, pictures, torch.tensor([0, 1]), words, there).weights.sum(-1)
        assert bool(((sums > least - 1e-5) & (sums < most + 1e-5)).all())
