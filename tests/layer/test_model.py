"""The layer's output depends on its image and its question only, and weights are saved and read back exactly."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from arr_coc.embedding import storage
from arr_coc.errors import LayerError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.batching import run_batch
from arr_coc.layer.inference import CellFeatures
from arr_coc.layer.model import (
    CHANNELS,
    POOLINGS,
    CellLinear,
    CouplingHead,
    LayerConfig,
    QuestionAttention,
    QuestionEncoder,
    RowColumnAttention,
    entropy,
    map_statistics,
)
from tests.training import squares

CONFIG = LayerConfig("none", token_width=12, word_width=10, width=16, heads=2, pixels=2)


@lru_cache
def trained(pooling: str = "learned") -> ArrCocLayer:
    torch.manual_seed(1)
    layer = ArrCocLayer(replace(CONFIG, pooling=pooling)).eval()
    with torch.no_grad():  # as if trained: no parameter is 0 or constant
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def views(count: int, shapes: Any = ((1, 3, 4), (1, 2, 5))) -> list[list[CellFeatures]]:
    generator = torch.Generator().manual_seed(5)
    return [[squares.noise(shape, len(CHANNELS), 2, 12, generator) for shape in shapes] for _ in range(count)]


def questions(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), 10, generator=generator), mask


@torch.no_grad()
@pytest.mark.parametrize("pooling", POOLINGS)
def test_items_of_a_batch_are_independent(pooling: str) -> None:
    layer, pictures, (words, mask) = trained(pooling), views(3), questions([4, 7, 2, 9])
    pictures[1] = [replace(view, tokens=None) for view in pictures[1]]
    owner = torch.tensor([2, 0, 1, 0])
    together = run_batch(layer, pictures, owner, words, mask)
    assert together.relevance.shape == (4, 22)
    for row, mine in enumerate(owner.tolist()):
        length = int(mask[row].sum())
        alone = run_batch(
            layer, [pictures[mine]], torch.tensor([0]), words[row : row + 1, :length], mask[row : row + 1, :length]
        )
        for name in ("relevance", "scores", "weights"):
            assert torch.allclose(getattr(alone, name)[0], getattr(together, name)[row], atol=1e-4), name
    turned = run_batch(layer, pictures[::-1], 2 - owner.flip(0), words.flip(0), mask.flip(0))
    assert torch.allclose(turned.relevance.flip(0), together.relevance, atol=1e-4)
    assert (together.relevance[1] - together.relevance[3]).abs().max() > 1e-2  # the question matters
    other = words.clone()
    other[~mask] = 1e3  # padding must not matter
    assert torch.allclose(run_batch(layer, pictures, owner, other, mask).relevance, together.relevance, atol=1e-4)


@torch.no_grad()
def test_time_steps_are_scored_separately() -> None:
    layer, (words, mask) = trained(), questions([4])
    (first, second) = views(2, ((2, 3, 4),))
    whole = run_batch(layer, [first], torch.tensor([0]), words, mask).relevance.view(2, 12)
    mixed = [replace(first[0], **{name: torch.stack([getattr(first[0], name)[0], getattr(second[0], name)[1]])
                                  for name in ("channels", "pixels", "tokens")})]  # fmt: skip
    found = run_batch(layer, [mixed], torch.tensor([0]), words, mask).relevance.view(2, 12)
    assert torch.allclose(found[0], whole[0], atol=1e-5)
    assert not torch.allclose(found[1], whole[1], atol=1e-2)


@torch.no_grad()
def test_tokens_of_cells_that_are_not_encoded_are_ignored() -> None:
    layer, (words, mask) = trained(), questions([4])
    view = views(1, ((1, 3, 4),))[0][0]
    encoded = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    assert view.tokens is not None

    def relevance(tokens: torch.Tensor | None, known: torch.Tensor | None) -> torch.Tensor:
        given = replace(view, tokens=tokens, encoded=known)
        return run_batch(layer, [[given]], torch.tensor([0]), words, mask).relevance

    partly = relevance(view.tokens, encoded)
    wild = torch.where(encoded[..., None], view.tokens, torch.tensor(1e4))
    assert torch.equal(relevance(wild, encoded), partly)
    assert (relevance(view.tokens, None) - partly).abs().max() > 1e-2
    nothing = relevance(view.tokens, torch.zeros_like(encoded))
    assert torch.allclose(nothing, relevance(None, None), atol=1e-5)  # nothing encoded is a glance


def test_statistics_of_constant_maps_have_finite_gradients() -> None:
    flat = torch.zeros(2, 3, 7, requires_grad=True)
    map_statistics(flat).sum().backward()
    assert flat.grad is not None
    assert bool(flat.grad.isfinite().all())
    single = torch.randn(2, 3, 1, requires_grad=True)
    map_statistics(single).sum().backward()
    assert single.grad is not None
    assert bool(single.grad.isfinite().all())


def test_entropy_is_0_for_one_tone_and_1_for_all() -> None:
    one, all_alike = torch.full((1, 16, 1, 1), 0.4), (torch.arange(16) % 8 / 7).view(1, 16, 1, 1)
    assert entropy(one).item() == pytest.approx(0, abs=1e-6)
    assert entropy(all_alike).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("innermost", [False, True])
def test_entropy_counts_rounded_tones(innermost: bool) -> None:
    pixels = torch.rand(2, 48, 3, 5, generator=torch.Generator().manual_seed(0)) * 1.4 - 0.2  # some outside of [0, 1]
    pixels[0, :15, 0, 0] = (torch.arange(15) / 2) / 7  # halves go to the even tone
    share = F.one_hot((pixels.clamp(0, 1) * 7).round().long(), 8).double().mean(1)  # [B, h, w, 8]
    expected = -(share * share.clamp(min=1e-9).log()).sum(-1) / math.log(8)
    given = pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if innermost else pixels
    assert torch.allclose(entropy(given)[:, 0].double(), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 37, 27, 32), (3, 6, 5, 32), (1, 3, 40, 32), (40, 32)])
@pytest.mark.parametrize("bias", [False, True])
def test_cells_are_mapped_as_by_torch_with_and_without_gradients(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, cells = CellLinear(32, 48, bias), torch.randn(shape)
    expected = cells.double() @ layer.weight.double().T + (0 if layer.bias is None else layer.bias.double())
    with torch.no_grad():
        assert torch.allclose(layer(cells).double(), expected, atol=1e-5)
        turned = cells.transpose(-2, -3).contiguous().transpose(-2, -3) if cells.ndim == 4 else cells
        assert torch.allclose(layer(turned).double(), expected, atol=1e-5)
    found = layer(cells)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    found.sum().backward()
    assert layer.weight.grad is not None


def test_attention_is_the_same_with_and_without_gradients() -> None:
    torch.manual_seed(0)
    lines, cells = RowColumnAttention(32, 4), torch.randn(2, 9, 7, 32)
    with_gradients = lines(cells).detach()
    with torch.no_grad():
        assert torch.allclose(lines(cells), with_gradients, atol=1e-5)


def test_softmax_weights_sum_to_one() -> None:
    pictures, (words, mask) = views(2), questions([4, 7])
    for balance, least, most in (("sigmoid", 0.0, 3.0), ("softmax", 1.0, 1.0)):
        layer = ArrCocLayer(replace(CONFIG, balance=balance)).eval()
        sums = run_batch(layer, pictures, torch.tensor([0, 1]), words, mask).weights.sum(-1)
        assert bool(((sums > least - 1e-5) & (sums < most + 1e-5)).all())


def test_saved_weights_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    layer = trained("sum")
    layer.save_pretrained(tmp_path / "new" / "folder")
    again = ArrCocLayer.from_pretrained(tmp_path / "new" / "folder")
    assert again.config == layer.config
    assert not again.training
    for name, weights in layer.state_dict().items():
        assert torch.equal(again.state_dict()[name], weights), name
    assert json.loads((tmp_path / "new" / "folder" / "layer.json").read_text())["pooling"] == "sum"


def test_missing_damaged_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="holds no learned layer: No such file"):
        ArrCocLayer.from_pretrained(tmp_path)
    trained().save_pretrained(tmp_path)
    file = tmp_path / "layer.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(LayerError, match=r"layer.safetensors' is damaged: its checksum is wrong"):
        ArrCocLayer.from_pretrained(tmp_path)
    file.write_bytes(good[: len(good) // 2])
    with pytest.raises(LayerError, match="is damaged"):
        ArrCocLayer.from_pretrained(tmp_path)
    weights, note = storage.read(_restore(file, good))
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
        trained().save_pretrained(tmp_path / "taken")


def _restore(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("values", "message"),
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
def test_invalid_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        replace(CONFIG, **values)


def test_row_column_attention_matches_a_loop() -> None:
    torch.manual_seed(0)
    lines, cells = RowColumnAttention(8, 2), torch.randn(2, 3, 5, 8)
    into = lines.into(lines.norm(cells)).view(2, 3, 5, 3, 2, 4)
    found = torch.zeros(2, 3, 5, 2, 4)
    for picture in range(2):
        for y in range(3):
            for x in range(5):
                for head, line in ((0, into[picture, y]), (1, into[picture, :, x])):
                    share = (line[:, 1, head] @ into[picture, y, x, 0, head] / 2).softmax(0)
                    found[picture, y, x, head] = share @ line[:, 2, head]
    assert torch.allclose(lines(cells), cells + lines.out(found.flatten(-2)), atol=1e-5)


def test_question_attention_matches_masked_attention() -> None:
    torch.manual_seed(0)
    question, cells, words = QuestionAttention(8, 2), torch.randn(2, 3, 5, 8), torch.randn(2, 4, 8)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    query = question.query(question.norm(cells)).view(2, 15, 2, 4).transpose(1, 2)
    key, value = question.keys(words).view(2, 4, 2, 2, 4).permute(2, 0, 3, 1, 4)
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
    expected = cells + question.out(found.transpose(1, 2).reshape(2, 3, 5, 8))
    assert torch.allclose(question(cells, words, mask), expected, atol=1e-6)
    assert torch.equal(question(cells, words, mask, question.queries(cells)), question(cells, words, mask))


def test_question_encoder_matches_torch_convolutions() -> None:
    torch.manual_seed(0)
    words, mask = torch.randn(2, 7, 5), torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    layer = QuestionEncoder(5, 8)
    here = layer.into(layer.norm(words)) * mask[..., None]
    for around in layer.around:
        here = (here + F.gelu(around(here.transpose(1, 2)).transpose(1, 2))) * mask[..., None]
    assert torch.allclose(layer(words, mask), layer.out(here), atol=1e-6)


def test_coupling_head_matches_mapped_cells_and_words() -> None:
    torch.manual_seed(0)
    coupling, cells, words = CouplingHead(8, "max"), torch.randn(2, 3, 5, 8), torch.randn(2, 4, 8)
    alike = coupling.cells(cells).flatten(1, 2) @ coupling.words(words).transpose(1, 2) / 8**0.5
    expected = alike.amax(-1).view(2, 3, 5) + coupling.own(cells)[..., 0]
    found = coupling(cells, words, torch.ones(2, 4, dtype=torch.bool))
    assert torch.allclose(found, expected, atol=1e-6)
