"""Glance: encoding some cells is the stock encoder with the other patches masked out of every attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.adapters import patch_index, qwen2_vl
from arr_coc.adapters.encoder_attention import Recorder
from arr_coc.adapters.families import adapter
from arr_coc.adapters.qwen2_vl import PIXELS
from arr_coc.types.grid import Grid
from tests.adapters import tiny
from tests.adapters.oracle import attending, choose, deaf_to, sparse

FAMILIES = list(tiny.CONFIGS)
CASES = list(tiny.PROMPTS)


def patches_of(visuals: list[Any], keeps: list[torch.Tensor], kind: str) -> torch.Tensor:
    """True for the patches of kept cells, over all pictures of a kind."""
    parts = sorted(
        ((v.number, v, k) for v, k in zip(visuals, keeps, strict=True) if v.kind == kind), key=lambda p: p[0]
    )
    return torch.cat([v.tokens_kept(k) for _, v, k in parts]).repeat_interleave(4)


def truth(
    model: Any, inputs: dict[str, Any], keeps: list[torch.Tensor]
) -> dict[tuple[str, int], tuple[torch.Tensor, list[torch.Tensor]]]:
    """Every visual's kept tokens and deep features, by the stock encoder that does not hear the dropped patches."""
    visuals = adapter(model).visuals(inputs)
    found = {}
    for kind, (pixels, grid) in PIXELS.items():
        if grid not in inputs:
            continue
        with deaf_to(model, patches_of(visuals, keeps, kind), inputs[grid]):
            output = model.model.visual(inputs[pixels], grid_thw=inputs[grid], return_dict=True)
        counts = (inputs[grid].prod(1) // 4).tolist()
        for visual, keep in zip(visuals, keeps, strict=True):
            if visual.kind == kind:
                deep = [level.split(counts)[visual.number][keep] for level in getattr(output, "deepstack_features", [])]
                found[kind, visual.number] = (output.pooler_output.split(counts)[visual.number][keep], deep)
    return found


@pytest.fixture(scope="module", params=[(f, a) for f in FAMILIES for a in ("sdpa", "eager")], ids="-".join)
def model(request: Any) -> Any:
    return tiny.model(*request.param)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_encoding_some_cells_is_masking_the_other_patches(model: Any, case: str) -> None:
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS[case], model.config.model_type)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected = truth(model, inputs, keeps)
    for visual, seen in zip(visuals, reader.encode(inputs, visuals, keeps, ()), strict=True):
        tokens, deep = expected[visual.kind, visual.number]
        assert (seen.tokens - tokens).abs().max() < 1e-5
        assert len(seen.deep) == len(deep)
        for ours, theirs in zip(seen.deep, deep, strict=True):
            assert (ours - theirs).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_encoding_all_cells_is_the_stock_encoder(model: Any, case: str) -> None:
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS[case], model.config.model_type)
    visuals = reader.visuals(inputs)
    whole = reader.encode(inputs, visuals, [torch.arange(v.n) for v in visuals], ())
    ours, _ = sparse(reader, inputs, encoded=whole)
    assert torch.equal(model(**ours).logits, model(**inputs).logits)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_the_plan_for_all_cells_is_the_encoder_s_own(model: Any, case: str) -> None:
    """The positions, windows and boundaries that a glance works out give the stock encoder's result, bit for bit."""
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS[case], model.config.model_type)
    for kind, (pixels, thw) in PIXELS.items():
        if thw not in inputs:
            continue
        grids = reader.grids(inputs, kind, None)
        cells = [torch.arange(grid.n) for grid in grids]
        plan = reader._index(grids, cells)
        planned = model.model.visual(
            inputs[pixels], grid_thw=inputs[thw], return_dict=True, **reader._encoder_kwargs(plan)
        )
        stock = model.model.visual(inputs[pixels], grid_thw=inputs[thw], return_dict=True)
        assert torch.equal(planned.pooler_output, stock.pooler_output)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_one_call_for_all_segments_is_one_call_each(family: str, case: str) -> None:
    model = tiny.model(family)
    reader = adapter(model)
    reader.batched = True
    inputs = tiny.prompt(tiny.PROMPTS[case], family)
    visuals = reader.visuals(inputs)
    for kind, (pixels, thw) in PIXELS.items():
        if thw not in inputs:
            continue
        grids = [v.grid.views[0] for v in sorted((v for v in visuals if v.kind == kind), key=lambda v: v.number)]
        for cells in ([torch.arange(g.n) for g in grids], [torch.arange(0, g.n, 3) for g in grids]):
            plan = reader._index(grids, cells)
            some = inputs[pixels][plan.rows]
            together, deep = reader._run(some, plan, Recorder(model.model.visual.blocks, (), 4))
            keywords = reader._encoder_kwargs(plan)
            apart = model.model.visual(some, grid_thw=inputs[thw], return_dict=True, **keywords)
            assert (together - apart.pooler_output).abs().max() < 1e-6
            for level, stock in zip(deep, getattr(apart, "deepstack_features", ()), strict=True):
                assert (level - stock).abs().max() < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_places_fail_the_oracle(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model(family)
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS["image"], family)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected, _ = truth(model, inputs, keeps)["image", 0]
    real = patch_index.index_patches

    def shifted(*args: Any) -> patch_index.PatchIndex:
        plan = real(*args)
        return patch_index.PatchIndex(plan.rows, plan.places.flip(0), plan.sizes, plan.frames)

    monkeypatch.setattr(qwen2_vl, "index_patches", shifted)
    assert (reader.encode(inputs, visuals, keeps, ())[0].tokens - expected).abs().max() > 1e-2


@torch.no_grad()
def test_windows_that_ignore_the_picture_fail_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("qwen2_5_vl")
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS["image"], "qwen2_5_vl")
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected, _ = truth(model, inputs, keeps)["image", 0]
    monkeypatch.setattr(
        qwen2_vl,
        "sort_by_window",
        lambda grids, cells, side: (torch.arange(len(cells[0])), torch.tensor([len(cells[0])])),
    )
    assert (reader.encode(inputs, visuals, keeps, ())[0].tokens - expected).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_of_which_nothing_is_encoded(family: str) -> None:
    model = tiny.model(family)
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS["two images"], family)
    visuals = reader.visuals(inputs)
    keeps = [torch.zeros(0, dtype=torch.long), torch.arange(0, visuals[1].n, 2)]
    encoded = reader.encode(inputs, visuals, keeps, ())
    assert [len(seen.tokens) for seen in encoded] == [0, len(keeps[1])]
    nothing = reader.encode(inputs, visuals, [keeps[0], keeps[0]], ())
    ours, _ = sparse(reader, inputs, [keeps[0], keeps[0]], nothing)
    assert torch.isfinite(model(**ours).logits).all()


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_half_precision(family: str, dtype: torch.dtype, tolerance: float) -> None:
    model = tiny.model(family).to(dtype)
    reader = adapter(model)
    inputs = tiny.prompt(tiny.PROMPTS["ragged"], family)
    inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    visuals = reader.visuals(inputs)
    keeps = choose(visuals)
    expected = truth(model, inputs, keeps)
    for visual, seen in zip(visuals, reader.encode(inputs, visuals, keeps, ()), strict=True):
        assert (seen.tokens - expected["image", visual.number][0]).abs().max() < tolerance


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("cells", [None, "some"])
def test_received_attention_is_the_attention_maps_column_mean(family: str, attention: str, cells: str | None) -> None:
    model = tiny.model(family, attention)
    reader = adapter(model)
    inputs = tiny.prompt([[65, ("image", 1, 8, 12), 67]], family)
    visuals = reader.visuals(inputs)
    keeps = None if cells is None else choose(visuals)
    seen = reader.encode(inputs, visuals, keeps, (1.0,))[0]
    grid = visuals[0].grid.views[0]
    plan = reader._index([grid], [seen.cells])
    maps = []

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        maps.append((query @ key.transpose(2, 3) * given["scaling"]).softmax(-1))
        return (maps[-1] @ value).transpose(1, 2), None

    keywords = reader._encoder_kwargs(plan)
    with attending(model.model.visual, attend):
        model.model.visual(
            inputs["pixel_values"][plan.rows], grid_thw=inputs["image_grid_thw"], return_dict=True, **keywords
        )
    # The last layer attends across the whole picture in every family: one map.
    columns = maps[-1][0].mean(0).mean(0).view(-1, 4).mean(1)
    assert (seen.attention[1.0] - reader._by_cell(columns, plan)).abs().max() < 1e-6
    assert columns.std() > 1e-3


def test_windows_cover_every_cell_once() -> None:
    order, lengths = patch_index.sort_by_window(
        [Grid(2, 5, 7), Grid(1, 3, 3)], [torch.arange(70), torch.tensor([0, 4, 8])], 2
    )
    assert sorted(order.tolist()) == list(range(73))
    assert int(lengths.sum()) == 73
    assert len(lengths) == 2 * 3 * 4 + 2  # two of the second picture's four windows have a cell
