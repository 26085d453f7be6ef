"""Glance in plain vision towers: encoding some cells is the stock tower with the other patches masked in every layer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from arr_coc.adapters import internvl, llava
from arr_coc.adapters.base import Visual
from arr_coc.adapters.encoder_attention import CLIP_BLOCK, TileRecorder
from arr_coc.adapters.families import adapter
from arr_coc.errors import ModelError
from tests.adapters import tiny_llava as tiny
from tests.adapters.masking import deaf
from tests.adapters.oracle import choose, sparse

FAMILIES = [name for name in tiny.FAMILIES if name not in ("llava_next", "llava_onevision")]
MERGE = {"internvl": 2, "internvl_normed": 2, "idefics3": 2, "smolvlm": 4}  # patches along a cell's side
FIRST = {"llava": 1, "llava_class_token": 1, "internvl": 1, "internvl_normed": 1}  # a class token before the patches

model = lru_cache(tiny.model)


def vision(stock: Any) -> Any:
    return stock.model.vision_tower if hasattr(stock.model, "vision_tower") else stock.model.vision_model


def heard(family: str, visuals: list[Visual], keeps: list[torch.Tensor]) -> torch.Tensor:
    """`[T, S]`: the tower's tokens that belong to kept cells, and its class token."""
    merge, first = MERGE.get(family, 1), FIRST.get(family, 0)
    side = visuals[0].grid.views[0].h
    rows = []
    for visual, keep in sorted(zip(visuals, keeps, strict=True), key=lambda pair: pair[0].number):
        kept = torch.zeros(visual.n, dtype=torch.bool)
        kept[keep] = True
        for tile in kept.view(-1, side, side):
            patches = tile.repeat_interleave(merge, 0).repeat_interleave(merge, 1).flatten()
            rows.append(torch.cat([torch.ones(first, dtype=torch.bool), patches]))
    return torch.stack(rows)


def truth(
    family: str, stock: Any, inputs: dict[str, Any], visuals: list[Visual], keeps: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Every visual's kept tokens by the stock encoder that does not hear the dropped patches, class token and all."""
    with deaf(vision(stock), heard(family, visuals, keeps)):
        answer = stock.model.get_image_features(inputs["pixel_values"], return_dict=True).pooler_output
    flat = answer.flatten(0, -2) if isinstance(answer, torch.Tensor) else torch.cat(list(answer))
    in_order = sorted(visuals, key=lambda visual: visual.number)
    parts = dict(zip([v.number for v in in_order], flat.split([len(v.places) for v in in_order]), strict=True))
    found = []
    for visual, keep in zip(visuals, keeps, strict=True):
        cells = torch.arange(visual.n) if visual.cells is None else visual.cells
        found.append(parts[visual.number][cells[keep]])
    return found


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", list(tiny.PROMPTS))
@pytest.mark.parametrize("family", FAMILIES)
def test_encoding_some_cells_is_masking_the_other_patches(family: str, case: str, attention: str) -> None:
    stock, inputs = model(family, attention), tiny.prompt(tiny.PROMPTS[case], family)
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    keeps[0] = keeps[0][1:]  # another count than the other pictures'
    whole = reader.encode(inputs, visuals, None, ())
    for visual, seen, expected, all_of_it in zip(
        visuals, reader.encode(inputs, visuals, keeps, ()), truth(family, stock, inputs, visuals, keeps), whole, strict=True
    ):  # fmt: skip
        assert (seen.tokens - expected).abs().max() < 1e-5
        assert (seen.tokens - all_of_it.tokens[seen.cells]).abs().max() > 1e-3  # patches do hear each other
        assert len(seen.cells) < visual.n


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_encoding_all_cells_is_the_stock_encoder(family: str) -> None:
    """Bit for bit; and the route that leaves patches out gives the same to rounding when it leaves none out."""
    stock, inputs = model(family), tiny.prompt(tiny.PROMPTS["ragged"], family)
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    everything = [torch.arange(visual.n) for visual in visuals]
    stocks = reader.encode(inputs, visuals, None, ())
    for ours, theirs in zip(reader.encode(inputs, visuals, everything, ()), stocks, strict=True):
        assert torch.equal(ours.tokens, theirs.tokens)
    blocks = TileRecorder(reader.blocks, CLIP_BLOCK, ())
    if family.startswith("llava"):
        made = reader._encode_some(inputs["pixel_values"], [v.number for v in visuals], everything, blocks)
        made = [tokens[reader.extras :] for tokens in made]
    else:
        starts = [sum(v.n for v in visuals if v.number < visual.number) // reader.side**2 for visual in visuals]
        made = reader._encode_some(inputs, starts, sum(v.n for v in visuals) // reader.side**2, everything, blocks)
    for tokens, theirs in zip(made, stocks, strict=True):
        assert (tokens - theirs.tokens).abs().max() < 2e-6  # the patches come in another order


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_positions_fail_the_oracle(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, inputs = model(family), tiny.prompt(tiny.PROMPTS["image"], family)
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected = truth(family, stock, inputs, visuals, keeps)[0]
    run = llava.run_blocks

    def shifted(blocks: Any, layout: Any, hidden: torch.Tensor, chosen: Any, *rest: Any) -> Any:
        return run(blocks, layout, hidden.roll(1, 1), chosen, *rest)

    monkeypatch.setattr(internvl, "run_blocks", shifted)
    monkeypatch.setattr(llava, "run_blocks", shifted)
    assert (reader.encode(inputs, visuals, keeps, ())[0].tokens - expected).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_of_which_nothing_is_encoded(family: str) -> None:
    stock, inputs = model(family), tiny.prompt(tiny.PROMPTS["two images"], family)
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    none = torch.zeros(0, dtype=torch.long)
    keeps = [none, torch.arange(0, visuals[1].n, 2)]
    encoded = reader.encode(inputs, visuals, keeps, ())
    assert [len(seen.tokens) for seen in encoded] == [0, len(keeps[1])]
    assert (encoded[1].tokens - truth(family, stock, inputs, visuals, keeps)[1]).abs().max() < 1e-5
    ours, _ = sparse(reader, inputs, [none, none], reader.encode(inputs, visuals, [none, none], ()))
    assert torch.isfinite(stock(**ours).logits).all()


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16(family: str) -> None:
    stock, inputs = tiny.model(family).to(torch.bfloat16), tiny.prompt(tiny.PROMPTS["ragged"], family)
    inputs["pixel_values"] = inputs["pixel_values"].to(torch.bfloat16)
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    for seen, expected in zip(
        reader.encode(inputs, visuals, keeps, ()), truth(family, stock, inputs, visuals, keeps), strict=True
    ):
        assert (seen.tokens - expected).abs().max() < 0.05 * expected.float().std()


@torch.no_grad()
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_received_attention_is_the_attention_maps_column_mean(family: str, some: bool) -> None:
    stock, eager = model(family), model(family, "eager")
    inputs = tiny.prompt([[5, ("image", 40, 40), 7]], family)  # one tile
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals) if some else [torch.arange(visuals[0].n)]
    seen = reader.encode(inputs, visuals, keeps, (0.0,))[0]
    first, merge = FIRST.get(family, 0), MERGE.get(family, 1)
    kept = heard(family, visuals, keeps)[0]
    block = (
        vision(eager).encoder.layers[0] if hasattr(vision(eager).encoder, "layers") else vision(eager).encoder.layer[0]
    )
    caught: list[torch.Tensor] = []
    attention = block.self_attn if hasattr(block, "self_attn") else block.attention
    handle = attention.register_forward_hook(lambda module, args, result: caught.append(result[1]))
    eager.model.get_image_features(inputs["pixel_values"], return_dict=True)
    handle.remove()
    maps = caught[0][0][:, kept][:, :, kept]  # in the first layer, leaving patches out is leaving rows and columns out
    received = (maps / maps.sum(-1, keepdim=True)).mean((0, 1))
    whole = torch.zeros(len(kept))
    whole[kept] = received
    side = visuals[0].grid.views[0].h
    by_cell = whole[first:].view(side, merge, side, merge).mean((1, 3)).flatten()[seen.cells]
    assert (seen.attention[0.0] - by_cell).abs().max() < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_received_attention_has_a_value_for_each_encoded_cell(family: str) -> None:
    inputs = tiny.prompt(tiny.PROMPTS["ragged"], family)
    reader = adapter(model(family))
    visuals = reader.visuals(inputs)
    keeps = [torch.arange(visual.n // 2, visual.n) for visual in visuals]  # of the first tiles nothing
    keeps[1] = keeps[1][:0]
    for keep, seen in zip(keeps, reader.encode(inputs, visuals, keeps, (0.0, 1.0)), strict=True):
        assert [len(values) for values in seen.attention.values()] == [len(keep)] * 2


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "case"), [("llava_next", "ragged"), ("llava_onevision", "ragged"), ("llava_onevision", "mixed")]
)
def test_received_attention_of_tiles_is_packed_as_their_tokens_are(family: str, case: str) -> None:
    inputs = tiny.prompt((tiny.PROMPTS | tiny.FILMS)[case], family)
    reader = adapter(model(family))
    visuals = reader.visuals(inputs)
    for visual, seen in zip(visuals, reader.encode(inputs, visuals, None, (0.0, 1.0)), strict=True):
        for values in seen.attention.values():
            assert values.shape == (visual.n,)
            assert (values > 0).all()
            assert values.std() > 0


@torch.no_grad()
@pytest.mark.parametrize("family", ["llava_next", "llava_onevision"])
def test_families_that_encode_whole_pictures_say_so(family: str) -> None:
    inputs = tiny.prompt(tiny.PROMPTS["image"], family)
    reader = adapter(model(family))
    visuals = reader.visuals(inputs)
    assert not reader.glances
    with pytest.raises(ModelError, match="encodes whole pictures only"):
        reader.encode(inputs, visuals, choose(visuals), ())
