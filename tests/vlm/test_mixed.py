"""One image with cells of different sizes: exact against the stock model that gets all cells of all scales, the others masked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

import arr_coc
from arr_coc.cli import main
from arr_coc.errors import ArrCocError, BudgetError, FallbackWarning, PromptError, SelectorError
from arr_coc.relevance.regions import letter_height
from arr_coc.types.levels import Levels
from arr_coc.vlm.mixed import MixedSource, mixed_source
from arr_coc.vlm.view import EVERYTHING
from tests.adapters import families, more_processors
from tests.adapters.oracle import encoder_truth
from tests.adapters.tiny_vlm import GREEDY, answer_of, picture, stock_inputs, wrapped
from tests.vlm.page import printed, scenery

QUESTION = "What is the total?"
IMAGES = {"page": lambda: printed(angle=5.0)[0], "photo": lambda: scenery(400, 300)}


def source_of(vlm: Any, image: Image.Image, budget: Any = 24) -> MixedSource:
    found = mixed_source(vlm, image, QUESTION, budget)
    assert found is not None
    return found


def positions_of(source: MixedSource, before: int, after: int, cells: torch.Tensor) -> torch.Tensor:
    """Positions `[3, T]` of a prompt: text, the cells, and text, by adding up the widths of rows and columns."""
    levels, ends, found = source.levels, [], []
    spans = levels.spans(cells)
    for axis, (length, start, count) in enumerate(
        ((levels.height, levels.top, levels.views[0].h), (levels.width, levels.left, levels.views[0].w))
    ):
        wide = torch.full((length + 2**levels.coarser,), 1 / 2**levels.coarser)
        wide[start : start + count] = levels.step
        border = torch.cat([torch.zeros(1), wide.cumsum(0)])
        found.append((border[spans[:, axis]] + border[spans[:, axis + 2]]) / 2 - 0.5)
        ends.append(float(border[length]))
    text = torch.arange(before).float()
    rest = before + np.ceil(max(ends) - 1e-6) + torch.arange(after)
    return torch.stack([torch.cat([text, before + own, rest]) for own in (torch.zeros(len(cells)), *found)])


def oracle(family: str, vlm: Any, source: MixedSource, keep: torch.Tensor, **changes: Any) -> torch.Tensor:
    """Logits `[T, V]` of the stock language model on all cells of all scales, those that were not chosen masked.

    Features of the chosen cells are those of the stock encoder on each scale's picture, with all other patches masked.
    """
    adapter, views = vlm.adapter, source.levels.views
    made = vlm.processor.image_processor(images=list(source.pictures), do_resize=False, return_tensors="pt")
    token, numbers = adapter.token_id("image"), torch.tensor([0, *(view.n for view in views)]).cumsum(0)
    apart = torch.cat([torch.tensor([9] + [token] * view.n) for view in views])  # each scale as an image of its own
    inputs = dict(made) | {"input_ids": apart[None], "attention_mask": torch.ones(1, len(apart), dtype=torch.long)}
    own = [keep[(keep >= low) & (keep < high)] - low for low, high in itertools.pairwise(numbers)]
    truth = encoder_truth(family, adapter, inputs, own)
    tokens = torch.cat([part for part, _ in truth])
    everything = torch.zeros(source.levels.n, tokens.shape[-1]).index_copy_(0, keep, tokens)
    deep = [
        torch.zeros_like(everything).index_copy_(0, keep, torch.cat([levels[i] for _, levels in truth]))
        for i in range(adapter.deep_layers)
    ]
    text = vlm.prompter.render([arr_coc.adapters.processor.user_message(QUESTION, 1, 0)])
    before, after = (vlm.prompter.tokenizer(part, add_special_tokens=False).input_ids for part in text.split(
        vlm.prompter.placeholders["image"]
    ))  # fmt: skip
    ids = torch.tensor([[*before, *[token] * source.levels.n, *after]])
    mask = torch.ones_like(ids)
    dropped = torch.ones(source.levels.n, dtype=torch.bool).index_fill_(0, keep, False)
    mask[0, len(before) : len(before) + source.levels.n][dropped] = 0
    places = positions_of(source, len(before), len(after), torch.arange(source.levels.n))[:, None]
    given = {
        "input_ids": ids, "attention_mask": mask, "position_ids": places,
        "mm_encoder_outputs": adapter.encoder_outputs({"image": [(everything, tuple(deep))]}),
    } | changes  # fmt: skip
    logits = vlm.model(**given).logits[0]
    return logits[mask[0].bool()]


@torch.no_grad()
@pytest.mark.parametrize("shown", list(IMAGES))
@pytest.mark.parametrize("family", [*families.QWEN, "qwen3_vl_moe"])
def test_a_mixed_prompt_is_the_stock_model_with_all_other_cells_masked(family: str, shown: str) -> None:
    vlm, image = wrapped(family), IMAGES[shown]()
    source = source_of(vlm, image)
    prepared = vlm.prepare(image, QUESTION, detail="mixed", budget=24, straighten="off")
    (allocation,) = prepared.allocations
    assert isinstance(allocation.grid, Levels)
    assert len(set(allocation.grid.level(allocation.keep).tolist())) > 1  # several sizes
    assert allocation.k == len(allocation.encoded) == 24
    ours = vlm.model(**prepared).logits[0]
    truth = oracle(family, vlm, source, allocation.keep)
    assert ours.shape == truth.shape
    assert (ours - truth).abs().max() < 1e-5
    assert truth.std() > 0.1
    # Controls: other positions, other features, and no features for the first language layers.
    moved = vlm.model(**{**prepared, "position_ids": prepared["position_ids"].floor() + 1}).logits[0]
    assert (moved - truth).abs().max() > 1e-3
    outputs = vlm.prepare(image, QUESTION, detail="mixed", budget=24, straighten="off")["mm_encoder_outputs"]["image"]
    outputs.pooler_output = tuple(tokens.flip(0) for tokens in outputs.pooler_output)
    flipped = vlm.model(**{**prepared, "mm_encoder_outputs": {"image": outputs}}).logits[0]
    assert (flipped - truth).abs().max() > 1e-3
    if vlm.adapter.deep_layers:
        outputs = vlm.prepare(image, QUESTION, detail="mixed", budget=24, straighten="off")["mm_encoder_outputs"][
            "image"
        ]
        outputs.deepstack_features = [tuple(torch.zeros_like(p) for p in one) for one in outputs.deepstack_features]
        without = vlm.model(**{**prepared, "mm_encoder_outputs": {"image": outputs}}).logits[0]
        assert (without - truth).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("family", families.QWEN)
def test_all_cells_of_the_models_own_scale_are_the_plain_answer_bit_for_bit(family: str) -> None:
    vlm, image = wrapped(family), scenery(72, 56)
    inputs = stock_inputs(vlm, QUESTION, [image])
    own = torch.arange(source_of(vlm, image).levels.views[0].n)
    prepared = vlm.prepare(image, QUESTION, detail="mixed", allocation=own)
    assert torch.equal(prepared["input_ids"], inputs["input_ids"])
    assert torch.equal(vlm.model(**prepared).logits, vlm.model(**inputs).logits)
    answer = vlm.ask(image, QUESTION, detail="mixed", allocation=own, **GREEDY)
    assert answer.ids.tolist() == answer_of(vlm.model, inputs)
    # Control: with one coarse cell in place of the four inside it, the answer is computed from something else.
    levels = source_of(vlm, image).levels
    spans = levels.spans(own)
    first = (spans[:, 0] < 2) & (spans[:, 1] < 2)
    other = torch.cat([own[~first], torch.tensor([levels.starts[1]])])
    changed = vlm.prepare(image, QUESTION, detail="mixed", allocation=other)
    assert (vlm.model(**changed).logits[0, -1] - vlm.model(**inputs).logits[0, -1]).abs().max() > 1e-4
    everything = vlm.ask(image, QUESTION, detail="mixed", budget="all", **GREEDY)
    assert everything.ids.tolist() == answer_of(vlm.model, inputs)
    assert everything.allocation.view is None


@pytest.fixture(scope="module")
def reader() -> Any:
    return arr_coc.load("reader")


def test_the_price_does_not_depend_on_the_size(reader: Any, tmp_path: Path) -> None:
    """256 tokens read and 1,024 patches encoded, within 10%, whether an image has .3 or 12 megapixels."""
    image, _ = printed(3024, 4032, angle=3.0)
    image.save(tmp_path / "large.jpg")
    image.resize((480, 640), Image.Resampling.LANCZOS).save(tmp_path / "small.jpg")
    for name in ("small", "large"):
        answer = reader.ask(tmp_path / f"{name}.jpg", QUESTION, budget=256, detail="mixed", max_new_tokens=1)
        assert answer.allocation.view.role == "mixed"
        for what in ("kept", "encoded"):
            assert abs(answer.tokens[what] - 256) <= 26, name


def test_an_allocation_says_scale_place_and_box_of_each_cell(reader: Any) -> None:
    image, sheet = printed(angle=4.0)
    (allocation,) = reader.prepare(image, QUESTION, budget=128, detail="mixed").allocations
    levels, view = allocation.grid, allocation.view
    assert "shown as mixed" in " ".join(allocation.notes)
    assert "cells of different sizes" in allocation.strategy
    side = allocation.corners[:, 1] - allocation.corners[:, 0]
    assert torch.allclose(side.norm(dim=1) * allocation.cell_scales, torch.full((allocation.k,), 28.0), rtol=1e-3)
    assert torch.equal(allocation.cell_scales, view.scale / 2 ** allocation.thw[:, 0])
    finest = allocation.keep < levels.views[0].n
    low, high = torch.tensor(sheet.min(0) - 80), torch.tensor(sheet.max(0) + 80)
    boxes = allocation.boxes[finest]
    assert bool((boxes[:, :2] >= low).all() and (boxes[:, 2:] <= high).all())  # the finest cells are on the sheet
    again = arr_coc.Allocation.from_json(allocation.to_json())
    assert again.grid == levels
    assert torch.equal(again.keep, allocation.keep)
    assert torch.equal(again.encoded, allocation.encoded)
    assert torch.allclose(again.boxes, allocation.boxes, atol=0.5)
    assert torch.allclose(again.cell_scales, allocation.cell_scales)
    left_out = {"cells", "view"}  # lengths are rounded
    assert {k: v for k, v in again.to_dict().items() if k not in left_out} == {
        k: v for k, v in allocation.to_dict().items() if k not in left_out
    }
    cell = allocation.to_dict()["cells"][5]
    assert [cell["scale"], cell["row"], cell["column"]] == pytest.approx(
        [float(allocation.cell_scales[5]), *allocation.thw[5, 1:].tolist()], abs=1e-4
    )
    # The same cells are shown again.
    repeated = reader.prepare(image, QUESTION, detail="mixed", allocation=again).allocations[0]
    assert torch.equal(repeated.keep, allocation.keep)
    plain = reader.prepare(image.resize((400, 500)), QUESTION, budget=50, detail="off").allocations[0]
    assert arr_coc.Allocation.from_dict(plain.to_dict()).to_dict() == plain.to_dict()
    for broken in ("[]", "{}", "no"):
        with pytest.raises(ArrCocError, match="expected an allocation as"):
            arr_coc.Allocation.from_json(broken)


def test_the_overlay_draws_cells_at_their_true_size(reader: Any) -> None:
    image = printed()[0]
    allocation = reader.prepare(image, QUESTION, budget=96, detail="mixed").allocations[0]
    drawn = np.asarray(allocation.overlay(image), float)
    plain = np.asarray(image.resize((drawn.shape[1], drawn.shape[0])), float)
    scale = drawn.shape[1] / image.size[0]
    share = drawn.sum(-1) / plain.sum(-1)
    low, high = torch.zeros(2), torch.tensor(image.size) - 1.0
    for level in sorted(set(allocation.thw[:, 0].tolist())):
        centres = allocation.corners.mean(1)[allocation.thw[:, 0] == level]
        on_image = ((centres > low) & (centres < high)).all(1)
        at = (centres[on_image] * scale).long()
        assert np.median(share[at[:, 1], at[:, 0]]) == pytest.approx(0.8**level, abs=0.06)
    cell = int((allocation.thw[:, 0] == 0).nonzero()[0])
    corner = (allocation.corners[cell, 0] * scale).round().long()
    around = drawn[corner[1] - 1 : corner[1] + 2, corner[0] - 1 : corner[0] + 2]
    assert (around[..., 0] - around[..., 2]).max() > 60  # a border in orange


@pytest.mark.parametrize("size", [(20_000, 800), (1, 1), (3, 2), (800, 20), (20, 800)], ids=str)
@pytest.mark.parametrize("budget", [1, 16, "50%", "auto"])
def test_odd_sizes_are_shown_without_a_crash(reader: Any, size: tuple[int, int], budget: Any) -> None:
    image = scenery(60, 80).resize(size)
    allocation = reader.prepare(image, QUESTION, detail="mixed", budget=budget).allocations[0]
    assert 0 < allocation.k <= (budget if isinstance(budget, int) else 1024)
    assert allocation.overlay(image).size[0] > 0


def test_questions_about_everything_get_even_coverage_without_holes(reader: Any) -> None:
    image, _ = printed()
    (whole,) = reader.prepare(image, "Describe this page.", budget=100, detail="mixed").allocations
    assert whole.strategy == EVERYTHING
    assert whole.k == whole.n <= 100
    assert whole.view.region.size == image.size
    assert reader.prepare(image, "Describe this page.", detail="mixed").allocations[0].view is None
    look = reader.look(image, detail="mixed")  # made without a question
    described, asked = (
        reader.prepare(look=look, text=text, budget=160).allocations[0] for text in ("Describe this page.", QUESTION)
    )
    assert "evenly and without holes" in described.strategy
    assert "evenly" not in asked.strategy
    fine = [int((one.thw[:, 0] == 0).sum()) for one in (described, asked)]
    assert fine[0] < fine[1]


def test_a_budget_below_the_overview_leaves_holes_and_says_so(reader: Any) -> None:
    (few,) = reader.prepare(printed()[0], QUESTION, budget=12, detail="mixed").allocations
    assert few.k == 12
    assert "% of the image is left out" in few.strategy
    (none,) = reader.prepare(printed()[0], QUESTION, budget=0, detail="mixed").allocations
    assert none.k == 0
    assert any("nothing of this picture was read" in note for note in none.notes)


def test_relevance_stays_where_it_was_found(reader: Any) -> None:
    """On level 0, on all levels, and none of it in the row and the column that level 0 may have beyond the page."""
    odd = 0
    for height in (2000, 1930, 1850):
        source = source_of(reader, printed(1500, height)[0])
        page, grid = source.levels.views[0], source.grid
        assert source.finer == (1.0, 1.0)
        values = torch.rand(grid.n, generator=torch.Generator().manual_seed(1))
        found = source.on_page(values)
        assert torch.allclose(found[: grid.h, : grid.w].float(), values.view(grid.h, grid.w), atol=1e-6)
        assert float(found.sum()) == pytest.approx(float(values.sum()), rel=1e-5)
        odd += page.n > grid.n
        spread = source.on_levels(found)
        level = source.levels.level(torch.arange(source.levels.n))
        for one in range(source.levels.coarser + 1):
            assert float(spread[level == one].sum()) * 4**one == pytest.approx(float(values.sum()), rel=1e-4)
    assert odd  # the case is there


def test_glance_lowers_the_price_and_lists_are_by_image(reader: Any) -> None:
    image = printed()[0]
    (one,) = reader.prepare(image, QUESTION, budget=64, glance=32, detail="mixed").allocations
    assert one.k == len(one.encoded) == 32
    vlm = wrapped("qwen2_5_vl")
    two = vlm.prepare([image, scenery(72, 56)], QUESTION, budget=[20, 9], detail="mixed").allocations
    assert [a.k for a in two] == [20, 9]
    with pytest.raises(BudgetError, match="expected one budget for each of the 1 pictures, got 2"):
        vlm.prepare(image, QUESTION, budget=[3, 4], detail="mixed")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_batches_videos_follow_ups_and_streams(family: str) -> None:
    vlm, image, clip = wrapped(family), printed()[0], [picture(seed=n) for n in range(4)]
    options: dict[str, Any] = GREEDY | {"budget": 20, "detail": "mixed"}
    together = vlm.generate([[image], [scenery(72, 56)], []], [QUESTION, "Why?", "Who?"], **options)
    assert [[a.k for a in answer.allocations] for answer in together] == [[20], [20], []]
    for answer, shown, question in zip(
        together, (image, scenery(72, 56), None), (QUESTION, "Why?", "Who?"), strict=True
    ):
        assert answer.ids.tolist() == vlm.generate(shown, question, **options)[0].ids.tolist()
    mixed = vlm.prepare([image], QUESTION, videos=[clip], selector="random", budget=20, detail="mixed")
    assert [a.kind for a in mixed.allocations] == ["image", "video"]
    assert len(vlm.model.generate(**mixed, **GREEDY)[0]) > 12
    both = vlm.ask(image, [QUESTION, "And the date?"], **options)
    assert [answer.allocation.k for answer in both] == [20, 20]
    first = vlm.ask(image, QUESTION, remember=True, **options)
    second = vlm.ask(None, "And the date?", after=first, budget=8, **GREEDY)
    assert set(first.allocation.keep.tolist()) <= set(second.allocation.keep.tolist())
    assert second.allocation.k > 20
    pieces = vlm.stream(image, QUESTION, **options)
    assert "".join(pieces) == pieces.answer.text == first.text
    again = vlm.ask(image, QUESTION, sure=1.0, **options)
    assert again.allocation.k >= 20


@pytest.mark.parametrize("family", ["glm4v", "qwen3_5", *more_processors.WRAPPED[-2:]])
def test_other_families_take_it_or_refuse_it_in_one_sentence(family: str) -> None:
    vlm, image = more_processors.wrapped(family), scenery(300, 400)
    if vlm.adapter.mixes:
        assert vlm.ask(image, QUESTION, detail="mixed", budget=12, **GREEDY).allocation.k == 12
        return
    for call in (lambda: vlm.ask(image, QUESTION, detail="mixed"), lambda: vlm.look(image, detail="mixed")):
        with pytest.raises(PromptError, match="expected a model of the Qwen families for detail='mixed', got"):
            call()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"selector": "resize", "budget": 9}, PromptError, "selector 'resize'"),
        ({"selector": "divprune", "budget": 9}, SelectorError, "chooses among encoded cells"),
        ({"raw": True}, PromptError, "a raw prompt"),
        ({"gaze": (3.0, 3.0)}, PromptError, "a gaze"),
        ({"shared": True, "budget": 9}, BudgetError, "got shared=True"),
        ({"allocation": [10**6]}, ArrCocError, "expected kept cells between 0 and"),
    ],
)
def test_what_cannot_be_mixed_is_one_sentence(reader: Any, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        reader.prepare(printed()[0], QUESTION, detail="mixed", **options)


def test_selectors_without_scores_choose_too(reader: Any) -> None:
    for name in ("random", "ink", "uniform"):
        (found,) = reader.prepare(printed()[0], QUESTION, budget=40, detail="mixed", selector=name).allocations
        assert found.k == 40
        assert found.selector == name


def test_a_selector_that_fails_is_replaced_and_the_strategy_says_so(reader: Any) -> None:
    def broken(selection: Any) -> Any:
        raise ValueError("no idea")

    with pytest.warns(FallbackWarning, match="evenly spaced cells are kept instead"):
        (found,) = reader.prepare(printed()[0], QUESTION, budget=40, detail="mixed", selector=broken).allocations
    assert found.k == 40
    assert "replaced (ValueError: no idea)" in found.strategy


def test_the_command_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed()[0].save(tmp_path / "page.png")
    assert main(["ask", str(tmp_path / "page.png"), QUESTION, "--detail", "mixed", "--budget", "64", "--json"]) == 0
    assert '"cells"' in capsys.readouterr().out


def scan(size: int) -> Image.Image:
    """A flat page, as large as the model's processor shows it, with print of `size` pixels."""
    page = Image.new("RGB", (560, 784), (250, 250, 250))
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size)
    for row in range(6, 760, 2 * size):
        draw.text(
            (20, row),
            "TOTAL 128.40 AND THE REST OF IT 0123456789 ABCDEFGH"[: 900 // size],
            fill=(20, 20, 20),
            font=font,
        )
    return page


@pytest.mark.parametrize(("size", "enlarged"), [(11, True), (14, True), (22, False), (30, False)])
def test_only_small_print_of_a_flat_scan_is_enlarged(reader: Any, size: int, enlarged: bool) -> None:
    """To letters of 12 px, at most twice: letters that are legible are shown at the model's own scale."""
    image = scan(size)
    letters = letter_height(np.asarray(image.convert("L"), np.float32) / 255)
    assert letters is not None
    source = source_of(reader, image, 128)
    assert source.view is not None
    expected = min(2.0, 12.0 / letters) if enlarged else 1.0
    assert source.view.scale == pytest.approx(expected, rel=0.05)
