"""Encoding some cells is the stock encoder with the other patches masked in every attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.adapters import llava, qwen2_vl
from arr_coc.adapters.encoder import CLIP_BLOCK, PatchIndex, Recorder, TileRecorder, sort_by_window
from arr_coc.adapters.families import adapter
from arr_coc.adapters.qwen2_vl import PIXELS
from arr_coc.errors import ModelError
from arr_coc.types.grid import Grid
from tests.adapters.families import CASES, FAMILIES, PROMPTS, QWEN, model, prompt, shared_model
from tests.adapters.oracle import (
    attention_function,
    choose,
    dense,
    encoder_truth,
    sparse,
    tile_mask,
    vision_tower,
)  # fmt: skip

GLANCING = [name for name, known in FAMILIES.items() if known.glances]
TILED = [name for name in GLANCING if not FAMILIES[name].mrope]
NONE = torch.zeros(0, dtype=torch.long)

every_family = pytest.mark.parametrize("family", GLANCING)
every_case = pytest.mark.parametrize(("family", "case"), [pair for pair in CASES if pair[0] in GLANCING])
every_attention = pytest.mark.parametrize("attention", ["sdpa", "eager"])
qwen_case = pytest.mark.parametrize(("family", "case"), [(f, c) for f in QWEN for c in PROMPTS])


@torch.no_grad()
@every_attention
@every_case
def test_encoding_some_cells_is_masking_the_other_patches(family: str, case: str, attention: str) -> None:
    inputs, reader = prompt(family, case), adapter(shared_model(family, attention))
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    keeps[0] = keeps[0][1:]  # another count than the other pictures
    encoded, whole = reader.encode(inputs, visuals, keeps, ()), reader.encode(inputs, visuals, None, ())
    for visual, seen, (tokens, deep), stock in zip(
        visuals, encoded, encoder_truth(family, reader, inputs, keeps), whole, strict=True
    ):
        assert (seen.tokens - tokens).abs().max() < 1e-5
        assert (seen.tokens - stock.tokens[seen.cells]).abs().max() > 1e-3  # control: dropped patches do matter
        assert len(seen.cells) < visual.n
        for ours, theirs in zip(seen.deep, deep, strict=True):
            assert (ours - theirs).abs().max() < 1e-5


@torch.no_grad()
@every_attention
@every_case
def test_encoding_all_cells_is_the_stock_encoder(family: str, case: str, attention: str) -> None:
    stock, inputs = shared_model(family, attention), prompt(family, case)
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    whole = reader.encode(inputs, visuals, [torch.arange(v.n) for v in visuals], ())
    for ours, theirs in zip(whole, reader.encode(inputs, visuals, None, ()), strict=True):
        assert torch.equal(ours.tokens, theirs.tokens)
    ours, _ = sparse(reader, inputs, encoded=whole)
    assert torch.equal(stock(**ours).logits, stock(**dense(reader, inputs)).logits)


@torch.no_grad()
@pytest.mark.parametrize("family", TILED)
def test_the_sparse_route_with_all_cells_is_the_stock_encoder(family: str) -> None:
    inputs, reader = prompt(family, "ragged"), adapter(shared_model(family))
    visuals = reader.visuals(inputs)
    everything = [torch.arange(visual.n) for visual in visuals]
    recorder = TileRecorder(reader.blocks, CLIP_BLOCK, ())
    tiles = [visual.n // reader.side**2 for visual in visuals]
    made = reader._encode_some(inputs, tiles, everything, recorder)
    for tokens, theirs in zip(made, reader.encode(inputs, visuals, None, ()), strict=True):
        assert (tokens[reader.extras :] - theirs.tokens).abs().max() < 2e-6  # the patches come in another order


@torch.no_grad()
@every_attention
@qwen_case
def test_the_patch_index_of_all_cells_is_the_encoder_s_own(family: str, case: str, attention: str) -> None:
    """Positions, windows and boundaries of all cells give the stock encoder's result, bit for bit."""
    stock, inputs = shared_model(family, attention), prompt(family, case)
    reader = adapter(stock)
    for kind, (pixels, thw) in PIXELS.items():
        grids = reader.grids(inputs, kind, None)
        if grids:
            keywords = reader._encoder_kwargs(reader._index(grids, [torch.arange(grid.n) for grid in grids]))
            ours = stock.model.visual(inputs[pixels], grid_thw=inputs[thw], return_dict=True, **keywords)
            theirs = stock.model.visual(inputs[pixels], grid_thw=inputs[thw], return_dict=True)
            assert torch.equal(ours.pooler_output, theirs.pooler_output)


@torch.no_grad()
@qwen_case
def test_one_call_for_all_segments_is_one_call_each(family: str, case: str) -> None:
    stock, inputs = shared_model(family), prompt(family, case)
    reader = adapter(stock)
    for kind, (pixels, thw) in PIXELS.items():
        grids = reader.grids(inputs, kind, None)
        for step in (1, 3) if grids else ():
            patches = reader._index(grids, [torch.arange(0, grid.n, step) for grid in grids])
            some = inputs[pixels][patches.rows]
            together, deep = reader._run(some, patches, Recorder(stock.model.visual.blocks, (), 4))
            keywords = reader._encoder_kwargs(patches)
            apart = stock.model.visual(some, grid_thw=inputs[thw], return_dict=True, **keywords)
            assert (together - apart.pooler_output).abs().max() < 1e-6
            for level, theirs in zip(deep, getattr(apart, "deepstack_features", ()), strict=True):
                assert (level - theirs).abs().max() < 1e-6


@torch.no_grad()
@every_family
def test_the_oracle_fails_on_wrong_positions(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, reader = prompt(family, "image"), adapter(shared_model(family))
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected, _ = encoder_truth(family, reader, inputs, keeps)[0]
    index, run = qwen2_vl.index_patches, llava.run_blocks

    def flipped(*args: Any) -> PatchIndex:
        found = index(*args)
        return PatchIndex(found.rows, found.places.flip(0), found.sizes, found.frames)

    def shifted(blocks: Any, names: Any, hidden: torch.Tensor, *rest: Any) -> Any:
        return run(blocks, names, hidden.roll(1, 1), *rest)

    monkeypatch.setattr(qwen2_vl, "index_patches", flipped)
    monkeypatch.setattr(llava, "run_blocks", shifted)
    assert (reader.encode(inputs, visuals, keeps, ())[0].tokens - expected).abs().max() > 1e-2


@torch.no_grad()
def test_the_oracle_fails_on_wrong_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, reader = prompt("qwen2_5_vl", "image"), adapter(shared_model("qwen2_5_vl"))
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected, _ = encoder_truth("qwen2_5_vl", reader, inputs, keeps)[0]
    one_window = torch.arange(len(keeps[0])), torch.tensor([len(keeps[0])])
    monkeypatch.setattr(qwen2_vl, "sort_by_window", lambda grids, cells, side: one_window)
    assert (reader.encode(inputs, visuals, keeps, ())[0].tokens - expected).abs().max() > 1e-2


@torch.no_grad()
@every_family
def test_a_picture_of_which_nothing_is_encoded(family: str) -> None:
    stock, inputs = shared_model(family), prompt(family, "two images")
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    keeps = [NONE, torch.arange(0, visuals[1].n, 2)]
    encoded = reader.encode(inputs, visuals, keeps, ())
    assert [len(seen.tokens) for seen in encoded] == [0, len(keeps[1])]
    assert (encoded[1].tokens - encoder_truth(family, reader, inputs, keeps)[1][0]).abs().max() < 1e-5
    ours, _ = sparse(reader, inputs, [NONE, NONE], reader.encode(inputs, visuals, [NONE, NONE], ()))
    assert torch.isfinite(stock(**ours).logits).all()


@torch.no_grad()
@every_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(family: str, dtype: torch.dtype) -> None:
    inputs, reader = prompt(family, "ragged"), adapter(model(family).to(dtype))
    inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    for seen, (expected, _) in zip(
        reader.encode(inputs, visuals, keeps, ()), encoder_truth(family, reader, inputs, keeps), strict=True
    ):
        tolerance = {torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
        tolerance = tolerance if FAMILIES[family].mrope else 0.05 * float(expected.float().std())
        assert (seen.tokens - expected).abs().max() < tolerance


# The attention that cells receive.


@torch.no_grad()
@every_attention
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("family", QWEN)
def test_received_attention_is_the_column_mean_of_qwen_s_maps(family: str, attention: str, some: bool) -> None:
    stock, inputs = shared_model(family, attention), prompt(family, [[65, ("image", 96, 64), 67]])
    reader = adapter(stock)
    visuals = reader.visuals(inputs)
    seen = reader.encode(inputs, visuals, choose(visuals) if some else None, (1.0,))[0]
    patches = reader._index([visuals[0].grid.views[0]], [seen.cells])
    maps = []

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        maps.append((query @ key.transpose(2, 3) * given["scaling"]).softmax(-1))
        return (maps[-1] @ value).transpose(1, 2), None

    with attention_function(stock.model.visual, attend):
        pixels, thw = inputs["pixel_values"][patches.rows], inputs["image_grid_thw"]
        stock.model.visual(pixels, grid_thw=thw, return_dict=True, **reader._encoder_kwargs(patches))
    # The last layer attends across the whole picture in every family: one map.
    columns = maps[-1][0].mean(0).mean(0).view(-1, 4).mean(1)
    assert (seen.attention[1.0] - reader._by_cell(columns, patches)).abs().max() < 1e-6
    assert columns.std() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("family", TILED)
def test_received_attention_is_the_column_mean_of_a_tile_s_map(family: str, some: bool) -> None:
    eager, inputs = shared_model(family, "eager"), prompt(family, [[65, ("image", 40, 40), 67]])  # one tile
    reader = adapter(shared_model(family))
    visuals = reader.visuals(inputs)
    keeps = choose(visuals) if some else [torch.arange(visuals[0].n)]
    seen = reader.encode(inputs, visuals, keeps, (0.0,))[0]
    encoder = vision_tower(eager).encoder
    block = encoder.layers[0] if hasattr(encoder, "layers") else encoder.layer[0]
    caught: list[torch.Tensor] = []
    attention = block.self_attn if hasattr(block, "self_attn") else block.attention
    handle = attention.register_forward_hook(lambda module, args, result: caught.append(result[1]))
    eager.model.get_image_features(inputs["pixel_values"], return_dict=True)
    handle.remove()
    kept = tile_mask(family, visuals, keeps)[0]
    maps = caught[0][0][:, kept][:, :, kept]  # in the first layer, dropping patches is dropping rows and columns
    whole = torch.zeros(len(kept))
    whole[kept] = (maps / maps.sum(-1, keepdim=True)).mean((0, 1))
    side, merge = visuals[0].grid.views[0].h, FAMILIES[family].merge
    patches = whole[FAMILIES[family].class_tokens :].view(side, merge, side, merge)
    assert (seen.attention[0.0] - patches.mean((1, 3)).flatten()[seen.cells]).abs().max() < 1e-6


@torch.no_grad()
@every_family
def test_received_attention_has_a_value_for_each_encoded_cell(family: str) -> None:
    inputs, reader = prompt(family, "ragged"), adapter(shared_model(family))
    visuals = reader.visuals(inputs)
    keeps = [torch.arange(visual.n // 2, visual.n) for visual in visuals]  # nothing of the first tiles
    keeps[1] = keeps[1][:0]
    for keep, seen in zip(keeps, reader.encode(inputs, visuals, keeps, (0.0, 1.0)), strict=True):
        assert [len(values) for values in seen.attention.values()] == [len(keep)] * 2


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "case"), [("llava_next", "ragged"), ("llava_onevision", "ragged"), ("llava_onevision", "mixed")]
)
def test_received_attention_of_tiles_is_packed_as_their_tokens_are(family: str, case: str) -> None:
    inputs, reader = prompt(family, case), adapter(shared_model(family))
    visuals = reader.visuals(inputs)
    for visual, seen in zip(visuals, reader.encode(inputs, visuals, None, (0.0, 1.0)), strict=True):
        for values in seen.attention.values():
            assert values.shape == (visual.n,)
            assert (values > 0).all()
            assert values.std() > 0


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in GLANCING])
def test_families_that_encode_whole_pictures_only(family: str) -> None:
    inputs, reader = prompt(family, "image"), adapter(shared_model(family))
    visuals = reader.visuals(inputs)
    assert not reader.glances
    with pytest.raises(ModelError, match="encodes whole pictures only"):
        reader.encode(inputs, visuals, choose(visuals), ())


def test_windows_cover_every_cell_once() -> None:
    order, lengths = sort_by_window([Grid(2, 5, 7), Grid(1, 3, 3)], [torch.arange(70), torch.tensor([0, 4, 8])], 2)
    assert sorted(order.tolist()) == list(range(73))
    assert int(lengths.sum()) == 73
    assert len(lengths) == 2 * 3 * 4 + 2  # two of the second picture's four windows have a cell
