"""Views: exact against the stock model on the same several-image prompt, at a price that does not depend on the size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc.errors import ArrCocError, BudgetError, PromptError
from arr_coc.relevance.regions import find_page
from arr_coc.vlm import detail, view
from arr_coc.vlm.view import ViewMaker
from tests.adapters import families, more_processors, tiny_vlm
from tests.adapters.oracle import at_source, masked, real, sparse
from tests.adapters.tiny_vlm import GREEDY, answer_of, picture, stock_inputs, wrapped
from tests.vlm.page import printed, scenery

QUESTION = "What is the total?"


def shown(vlm: Any, image: Any, **options: Any) -> list[Any]:
    """The images that the model gets in place of `image`."""
    return [source.picture for source in detail.views_of(vlm, image, "views", QUESTION, **options) or []]


@torch.no_grad()
@pytest.mark.parametrize("family", [*families.QWEN, *tiny_vlm.FLAT])
def test_views_are_the_stock_model_on_the_same_images_with_dropped_tokens_masked(family: str) -> None:
    vlm, (image, _) = wrapped(family), printed(angle=5.0)
    pictures = shown(vlm, image)
    assert len(pictures) == 2  # an overview and a region
    inputs = stock_inputs(vlm, QUESTION, pictures)
    whole = vlm.ask(image, QUESTION, detail="views", budget="all", glance="all", **GREEDY)
    assert whole.ids.tolist() == answer_of(vlm.model, inputs)
    some = vlm.ask(image, QUESTION, detail="views", budget="40%", glance="all", selector="random", **GREEDY)
    assert 0 < some.tokens["kept"] < some.tokens["all"]
    keeps = [allocation.keep for allocation in some.allocations]
    assert some.ids.tolist() == answer_of(vlm.model, masked(vlm.adapter, inputs, keeps))
    # Positions: the logits of every kept token, not only the answer.
    ours, source = sparse(vlm.adapter, inputs, keeps)
    prepared = vlm.prepare(image, QUESTION, detail="views", budget="40%", glance="all", selector="random")
    assert torch.equal(prepared["position_ids"], ours["position_ids"])
    truth = at_source(vlm.model(**masked(vlm.adapter, inputs, keeps)).logits, source)
    assert (real(vlm.model(**prepared).logits, source) - truth).abs().max() < 1e-5
    # Control: the same prompt with the two views exchanged is another one.
    swapped, _ = sparse(vlm.adapter, stock_inputs(vlm, QUESTION, pictures[::-1]))
    right, _ = sparse(vlm.adapter, inputs)
    assert (vlm.model(**swapped).logits[:, -1] - vlm.model(**right).logits[:, -1]).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of some processors
@pytest.mark.parametrize("family", more_processors.WRAPPED)
def test_every_other_family_takes_views(family: str) -> None:
    vlm, (image, _) = more_processors.wrapped(family), printed()
    pictures = shown(vlm, image)
    some = vlm.prepare(image, QUESTION, detail="views", budget="50%").allocations
    assert sum(a.k for a in some) == -(-sum(a.n for a in some) // 2)
    answer = vlm.ask(image, QUESTION, detail="views", budget="all", glance="all", **GREEDY)
    assert len(answer.allocations) == len(pictures) >= 1
    assert (
        answer.ids.tolist()
        == vlm.ask(pictures, QUESTION, detail="off", budget="all", glance="all", **GREEDY).ids.tolist()
    )


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_small_image_is_as_before_bit_for_bit(vlm: Any, mode: str) -> None:
    inputs = stock_inputs(vlm, QUESTION, [picture()])
    prepared = vlm.prepare(picture(), QUESTION, detail=mode)
    assert torch.equal(prepared["input_ids"], inputs["input_ids"])
    answer = vlm.ask(picture(), QUESTION, detail=mode, **GREEDY)
    assert answer.ids.tolist() == answer_of(vlm.model, inputs)
    assert answer.allocation.view is None
    assert answer.allocation.scale is None


@pytest.fixture(scope="module")
def reader() -> Any:
    return arr_coc.load("reader")


def test_auto_takes_a_region_of_a_large_page_and_leaves_a_large_photo_alone(reader: Any) -> None:
    image, sheet = printed(angle=4.0)
    found = reader.prepare(image, QUESTION, budget=64)
    (allocation,) = found.allocations  # the reader was trained on single images: no overview
    assert allocation.view is not None
    assert allocation.view.role == "region"
    assert allocation.size == image.size
    assert allocation.scale > 1.2 * (reader.processor.image_processor.size["longest_edge"] / 3e6) ** 0.5
    low, high = sheet.min(0) - 60, sheet.max(0) + 60
    boxes = allocation.boxes
    assert bool((boxes[:, :2] >= torch.tensor(low)).all())
    assert bool((boxes[:, 2:] <= torch.tensor(high)).all())
    assert allocation.corners.shape == (64, 4, 2)
    assert "shown as region" in " ".join(allocation.notes)
    assert allocation.to_dict()["view"]["angle"] == pytest.approx(4.0, abs=0.7)
    assert reader.prepare(scenery(), QUESTION, budget=64).allocations[0].view is None


def test_the_price_does_not_depend_on_the_size(reader: Any, tmp_path: Path) -> None:
    """256 tokens read and 1,024 patches encoded, whether an image has .3 or 12 megapixels."""
    image, _ = printed(3024, 4032, angle=3.0)
    image.save(tmp_path / "large.jpg")
    image.resize((480, 640), Image.Resampling.LANCZOS).save(tmp_path / "small.jpg")
    costs = {}
    for name in ("small", "large"):
        tokens = reader.ask(tmp_path / f"{name}.jpg", QUESTION, budget=256, max_new_tokens=1, straighten="off").tokens
        costs[name] = np.array([tokens["kept"], tokens["encoded"]])
    assert (costs["large"] == 256).all()
    small = reader.ask(
        tmp_path / "small.jpg", QUESTION, budget=256, glance=256, max_new_tokens=1, straighten="off"
    ).tokens
    assert abs(small["kept"] - 256) <= 26
    assert abs(small["encoded"] - 256) <= 26
    assert (costs["large"] <= 1.1 * costs["small"]).all()


@pytest.mark.parametrize("source", ["file", "pil", "numpy", "torch"])
def test_every_kind_of_image_has_the_same_views(reader: Any, tmp_path: Path, source: str) -> None:
    image, _ = printed(angle=2.0)
    image.save(tmp_path / "page.png")
    array = np.asarray(image)
    given = {
        "file": tmp_path / "page.png", "pil": image, "numpy": array, "torch": torch.from_numpy(array.copy()).permute(2, 0, 1)
    }[source]  # fmt: skip
    expected, found = (detail.views_of(reader, one, "auto", QUESTION) for one in (image, given))
    assert [one.view for one in found] == [one.view for one in expected]
    assert np.array_equal(np.asarray(found[0].picture), np.asarray(expected[0].picture))


def test_the_views_of_an_image_share_its_budget() -> None:
    vlm, (image, _) = wrapped("qwen2_vl"), printed()
    both = vlm.prepare(image, QUESTION, detail="views", budget="all", glance="all").allocations
    assert [a.view.role for a in both] == ["overview", "region"]
    total = sum(a.n for a in both)
    share = vlm.prepare(image, QUESTION, detail="views", budget="80%").allocations
    assert sum(a.k for a in share) == -(-total * 80 // 100)
    assert [len(a.encoded) for a in share] == [a.k for a in share]  # what is encoded is read
    two = vlm.prepare([image, picture()], QUESTION, detail="views", budget=[72, 5], glance="all").allocations
    assert [a.view is None for a in two] == [False, False, False]  # a small image has views, too, when asked for
    three = vlm.prepare([image, picture()], QUESTION, detail="auto", budget=[72, 5], glance="all").allocations
    assert sum(a.k for a in three if a.view is not None) == 72
    assert three[-1].k == 5
    with pytest.raises(BudgetError, match="expected one budget for each of the 1 pictures, got 2"):
        vlm.prepare(image, QUESTION, detail="views", budget=[3, 4])


def test_a_budget_below_the_overview_shows_the_region_alone_and_says_so() -> None:
    vlm, (image, _) = wrapped("qwen2_vl"), printed()
    (only,) = vlm.prepare(image, QUESTION, detail="views", budget=5).allocations
    assert only.view.role == "region"
    assert only.k == 5
    assert any("too small for an overview" in note for note in only.notes)
    (none,) = vlm.prepare(image, QUESTION, detail="views", budget=0).allocations
    assert none.k == 0
    assert any("nothing of this picture was read" in note for note in none.notes)


def test_a_question_about_everything_gets_all_of_the_image_at_a_coarse_scale(reader: Any) -> None:
    image, _ = printed()
    (whole,) = reader.prepare(image, "Describe this page.", budget=128).allocations
    assert whole.view.role == "overview"
    assert whole.view.region.size == image.size
    assert whole.k == whole.n <= 128  # no holes
    assert whole.strategy.startswith("whole: ")
    (auto,) = reader.prepare(image, "Describe this page.").allocations
    assert auto.view is None  # without a budget, as the model itself shows it
    (views,) = reader.prepare(image, "Describe this page.", detail="views").allocations
    assert views.view.role == "overview"


def test_small_print_is_looked_at_closer(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    image, _ = printed(4000, 5600)
    page = find_page(arr_coc.TextureArray.from_image(image.reduce(4)), image.size)
    assert page is not None
    tiny = image.resize((2000, 2800), Image.Resampling.LANCZOS)
    whole = Image.new("RGB", (4000, 5600), (240, 240, 236))
    for x in (0, 1000, 2000, 3000):
        for y in (0, 1400, 2800, 4200):
            whole.paste(tiny.crop((650, 680, 1650, 2080)), (x, y))
    (unasked,) = detail.views_of(reader, whole, "views")
    (unsure,) = detail.views_of(reader, whole, "views", QUESTION)
    assert unsure.view == unasked.view  # nothing says where the answer is
    chosen = torch.zeros(unasked.picture.height // 28, unasked.picture.width // 28)
    chosen[-4:, -4:] = 1.0
    monkeypatch.setattr(ViewMaker, "relevance", lambda self, source, question: chosen)
    (asked,) = detail.views_of(reader, whole, "auto", QUESTION)
    assert asked.view.scale > unasked.view.scale
    assert asked.view.region.size[0] < unasked.view.region.size[0]
    assert asked.view.region.centre[0] > unasked.view.region.centre[0]  # where the relevance is
    assert asked.view.region.centre[1] > unasked.view.region.centre[1]


def test_auto_leaves_small_print_to_a_model_that_shows_it_larger_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm, (image, _) = wrapped("qwen2_vl"), printed()
    assert detail.views_of(vlm, image, "auto", QUESTION) is not None  # 64 cells of its own: nothing is legible
    monkeypatch.setattr(vlm.adapter.image_processor, "size", {"shortest_edge": 256, "longest_edge": 4_000_000})
    monkeypatch.setattr(view, "VIEW_CELLS", 64)
    assert detail.views_of(vlm, image, "auto", QUESTION, straighten="off") is None
    (plain,) = detail.views_of(vlm, image, "auto", QUESTION)
    assert plain.view is None  # decoded for its pose, shown as it is
    assert detail.views_of(vlm, image, "views", QUESTION) is not None


def test_a_look_shows_the_same_views_for_all_questions(reader: Any) -> None:
    image, _ = printed()
    look = reader.look(image, detail="auto")
    total, date = reader.ask(look, ["What is the total?", "What is the date?"], budget=64, max_new_tokens=2)
    assert total.allocation.view == date.allocation.view is not None
    together = reader.ask(image, ["What is the total?", "What is the date?"], budget=64, max_new_tokens=2)
    assert together[0].allocation.view == total.allocation.view
    assert reader.look(image).images[0][0].view is None  # off unless asked for


def test_the_overlay_lights_the_kept_cells_where_they_are(reader: Any) -> None:
    image, _ = printed(angle=6.0)
    allocation = reader.prepare(image, QUESTION, budget=40).allocations[0]
    drawn = np.asarray(allocation.overlay(image), float)
    plain = np.asarray(image.resize((drawn.shape[1], drawn.shape[0])), float)
    scale = drawn.shape[1] / image.size[0]
    centres = (allocation.corners.mean(1) * scale).long()
    inside = [
        np.abs(drawn[y - 1 : y + 2, x - 1 : x + 2] - plain[y - 1 : y + 2, x - 1 : x + 2]).mean()
        for x, y in centres.tolist()
    ]
    assert np.mean(inside) < 25  # kept cells keep their brightness
    assert drawn[:20].max() <= 0.1 * plain[:20].max()  # nothing outside the region was shown
    assert allocation.heat(image, torch.ones(allocation.n)).size == allocation.overlay(image).size


@pytest.mark.parametrize("size", [(20_000, 800), (1, 1), (3, 2), (800, 20)], ids=str)
@pytest.mark.parametrize("mode", ["auto", "views"])
def test_odd_sizes_are_shown_without_a_crash(reader: Any, size: tuple[int, int], mode: str) -> None:
    image = scenery(60, 80).resize(size)
    answer = reader.ask(image, QUESTION, detail=mode, budget=16, glance=32, max_new_tokens=1)
    assert 0 < answer.tokens["kept"] <= 16


def test_a_file_is_decoded_no_further_than_needed(reader: Any, tmp_path: Path) -> None:
    image, _ = printed(3024, 4032)
    image.save(tmp_path / "photo.jpg")
    pyramids = []
    make = detail.Pyramid
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detail, "Pyramid", lambda one: pyramids.append(make(one)) or pyramids[-1])
        reader.prepare(tmp_path / "photo.jpg", QUESTION, budget=16)
    assert sorted(pyramids[0]._levels) in ([1], [1, 2], [2])  # never the whole 12 megapixels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detail": "views", "selector": "resize", "budget": 9}, "selector 'resize'"),
        ({"detail": "views", "allocation": [1, 2]}, "an allocation"),
        ({"detail": "views", "raw": True}, "a raw prompt"),
        ({"detail": "fine"}, "expected detail as one of auto, off, views, mixed, got 'fine'"),
        ({"detail": None}, "expected detail as one of"),
    ],
)
def test_what_cannot_be_shown_as_views_is_one_sentence(reader: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArrCocError, match=message):
        reader.prepare(printed()[0], QUESTION, **options)


def test_auto_is_off_where_views_cannot_be_shown(reader: Any) -> None:
    image, _ = printed()
    assert reader.prepare(image, QUESTION, selector="resize", budget=80).allocations[0].view is None
    look = reader.look(image)
    with pytest.raises(ArrCocError, match="a look, which has its views already"):
        reader.ask(look, QUESTION, detail="views")
    with pytest.raises(ArrCocError, match="expected detail as one of"):
        reader.look(image, detail="no")


def test_a_batch_and_a_follow_up_with_views() -> None:
    vlm, (image, _) = wrapped("qwen2_vl"), printed()
    options: dict[str, Any] = GREEDY | {"budget": "50%", "selector": "random"}
    together = vlm.generate([[image], [picture()], []], [QUESTION, "Why?", "Who?"], **options)
    assert [len(answer.allocations) for answer in together] == [2, 1, 0]
    for answer, shown_images, question in zip(
        together, (image, picture(), None), (QUESTION, "Why?", "Who?"), strict=True
    ):
        assert answer.ids.tolist() == vlm.generate(shown_images, question, **options)[0].ids.tolist()
    first = vlm.ask(image, QUESTION, remember=True, **options)
    second = vlm.ask(None, "And the date?", after=first, **GREEDY)
    assert [a.view for a in second.allocations] == [a.view for a in first.allocations]
    with pytest.raises(ArrCocError, match="detail cannot change now"):
        vlm.ask(None, "And?", after=first, detail="off")


def test_views_with_looking_again_given_cells_and_gaze() -> None:
    """Features that meet on a large image: each either works on its views, or turns them off."""
    vlm, (image, _) = wrapped("qwen2_5_vl"), printed()
    again = vlm.ask(image, QUESTION, budget=80, sure=1.0, **GREEDY)
    assert [one.kept for one in again.tried][:2] == [80, min(160, sum(a.n for a in again.allocations))]
    assert all(a.view is not None for a in again.allocations)
    both = vlm.ask(image, [QUESTION, "And the date?"], detail="views", budget=64, **GREEDY)
    assert all(a.view is not None for answer in both for a in answer.allocations)
    look = vlm.look(image, detail="views")
    cells = [torch.arange(4) for _ in both[0].allocations]
    assert [a.k for a in vlm.prepare(look=look, text=QUESTION, allocation=cells).allocations] == [4] * len(cells)
    looked = vlm.ask(image, QUESTION, gaze=(3.0, 3.0), sure=0.0, budget=20, **GREEDY)
    assert looked.allocation.view is None
    assert 0 in looked.allocation.keep
    with pytest.raises(PromptError, match="expected an image as it is for a gaze"):
        vlm.ask(look, QUESTION, gaze=(3.0, 3.0), budget=20)


def test_a_tilted_page_on_a_large_photo_is_cut_out_around_its_text(reader: Any, tmp_path: Path) -> None:
    sheet = printed()[0]
    photo = Image.new("RGB", (2400, 2400), (120, 90, 70))
    photo.paste(sheet.resize((900, round(900 * sheet.height / sheet.width))), (500, 600))
    tilted = photo.rotate(-6, Image.Resampling.BICUBIC, fillcolor=(120, 90, 70))
    regions = {
        mode: detail.views_of(reader, tilted, "views", QUESTION, straighten=mode)[-1].view.region  # type: ignore[index, union-attr]
        for mode in ("auto", "off")
    }
    area = {mode: one.size[0] * one.size[1] for mode, one in regions.items()}
    assert area["auto"] <= 1.05 * area["off"]  # the text decides, not what surrounds it
    turned = detail.views_of(reader, tilted.rotate(90), "views", QUESTION)[-1].view.region  # type: ignore[index, union-attr]
    assert turned.angle % 360 == pytest.approx(270, abs=10)
    assert turned.size[0] * turned.size[1] <= 1.2 * area["off"]


def test_a_whole_image_that_cannot_be_coarse_enough_is_not_said_to_be_without_holes(reader: Any) -> None:
    """The reader's processor makes 64 cells of an image at least."""
    image, _ = printed()
    (few,) = reader.prepare(image, "Describe this page.", budget=20).allocations
    assert few.k == 20 < few.n
    assert not few.strategy.startswith("whole: ")
    assert any(f"at least {few.n} cells of this image, so places are left out" in note for note in few.notes)
    (enough,) = reader.prepare(image, "Describe this page.", budget=80).allocations
    assert enough.k == enough.n <= 80
    assert enough.strategy.startswith("whole: ")


@pytest.mark.parametrize("budget", [0, "0", "0%"])
def test_nothing_is_encoded_of_what_is_not_read(reader: Any, budget: Any) -> None:
    (none,) = reader.prepare(printed()[0], QUESTION, detail="views", budget=budget).allocations
    assert none.k == len(none.encoded) == 0
    assert any("nothing of this picture was read" in note for note in none.notes)
