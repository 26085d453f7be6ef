"""The universal layer: one set of weights for every model, grid and question, and what it says about its own doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

import arr_coc
from arr_coc import Grid, TextureArray
from arr_coc.errors import LayerError, PromptError, SelectorError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.inference import LayerPredictor, predict
from arr_coc.layer.universal import (
    CALIBRATION,
    MAX_BYTES,
    WEIGHTS,
    Calibration,
    UniversalLayer,
    question_bytes,
    shipped_layer,
)
from arr_coc.relevance import coupling
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors.base import ImageSource, LayerPrediction, SelectionInput
from tests.adapters import families
from tests.adapters.tiny_vlm import wrapped
from tests.relevance.page import page_selection
from tests.selectors.selections import TILES, selection, words

CPU = torch.device("cpu")
TOTAL = "What is the total amount?"


@pytest.fixture(scope="module")
def receipt() -> TextureArray:
    return TextureArray.from_image(arr_coc.pictures.receipt())


def asked(texture: TextureArray, question: str = TOTAL, cell: float = 28, **changes: Any) -> SelectionInput:
    """A selection of a texture in cells of `cell` pixels, with the universal layer."""
    height, width = texture.original_size
    grid = Grid(1, max(1, round(height / cell)), max(1, round(width / cell)))
    given: dict[str, Any] = {"source": ImageSource(texture=texture), "question": replace(words(), text=question)}
    return selection(grid, None, **(given | {"universal": LayerPredictor(None, CPU)} | changes))


def test_it_is_small_and_reads_no_model() -> None:
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) < 8e6
    layer = ArrCocLayer.from_pretrained(WEIGHTS)  # the class follows from the configuration
    assert isinstance(layer, UniversalLayer)
    assert not layer.reads_tokens
    assert layer.question_input(replace(words(), text="Total?")).tolist() == [[float(byte)] for byte in b"total?"]


def test_tokens_change_nothing(receipt: TextureArray) -> None:
    before = asked(receipt)
    after = replace(before, tokens=torch.randn(before.grid.n, 8))
    assert torch.equal(predict(shipped_layer(CPU), before).relevance, predict(shipped_layer(CPU), after).relevance)


@pytest.mark.parametrize("cell", [14, 28, 32, 56])
def test_it_finds_the_total_on_cells_of_any_size(receipt: TextureArray, cell: float) -> None:
    """The line of the total holds the best cell: the amount itself is printed on the receipt's lower half."""
    found = asked(receipt, cell=cell)
    best = int(predict(shipped_layer(CPU), found).relevance.argmax())
    expected = int(predict(shipped_layer(CPU), asked(receipt, cell=28)).relevance.argmax())
    height, width = receipt.original_size

    def centre(cell: int, grid: Any) -> tuple[float, float]:
        return (cell % grid.w + 0.5) / grid.w * width, (cell // grid.w + 0.5) / grid.h * height

    (x, y), (right_x, right_y) = centre(best, found.grid), centre(expected, asked(receipt).grid)
    assert abs(y - right_y) < 56
    assert abs(x - right_x) < 112


def test_questions_keep_different_cells(receipt: TextureArray) -> None:
    kept = {
        question: set(realized(replace(asked(receipt, question), k=60)).keep.tolist())
        for question in (TOTAL, "How much do I have to pay?", "Which company is it?")
    }
    total, pay, company = kept.values()
    assert len(total & pay) > 30
    assert len(total & company) < 15


@pytest.mark.parametrize(
    "image",
    [Image.new("RGB", (1, 1)), Image.new("RGB", (28, 3)), Image.new("L", (40, 3000), 255)],
    ids=["1 x 1", "flat", "tall"],
)
def test_odd_images(image: Image.Image) -> None:
    found = realized(replace(asked(TextureArray.from_image(image)), k=3))
    assert 1 <= len(found.keep) <= 3


def test_tiles_and_videos() -> None:
    texture = TextureArray.from_image(arr_coc.pictures.receipt())
    tiled = selection(
        TILES, 5, source=ImageSource(texture=texture), question=replace(words(), text=TOTAL),
        universal=LayerPredictor(None, CPU),
    )  # fmt: skip
    assert len(realized(tiled).keep) == 5


def test_it_knows_the_kind_of_question(receipt: TextureArray) -> None:
    layer = shipped_layer(CPU)
    present = predict(layer, asked(receipt))
    assert present.found is not None
    assert present.found > 0.8
    assert present.absent < 0.2
    assert predict(layer, asked(receipt, "Is there a cat?")).absent > 0.6
    assert predict(layer, asked(receipt, "Describe the picture.")).whole > 0.8


def test_a_question_about_all_of_the_image_is_spread(receipt: TextureArray) -> None:
    found = realized(replace(asked(receipt, "Describe the picture."), k=60))
    assert found.strategy.startswith("describe: ")
    rows = found.keep // asked(receipt).grid.views[0].w
    assert len(rows.unique()) > 10
    assert rows[0] < 4
    assert rows[-1] > 32


def fixed(**doubt: float) -> Any:
    """A universal layer with this doubt about every question."""

    def predicted(seen: SelectionInput) -> LayerPrediction:
        own = torch.linspace(0, 1, len(seen.candidates))
        return LayerPrediction(own, dict.fromkeys(("information", "salience", "coupling"), own), {}, **doubt)

    return predicted


@pytest.mark.parametrize(
    ("doubt", "source"),
    [
        ({"found": 0.9}, coupling.UNIVERSAL),
        ({"found": 0.3}, "probe"),  # it doubts its own choice
        ({"found": 0.9, "absent": 0.9}, "probe"),  # nothing of the kind is there
        ({"found": 0.1, "whole": 0.9}, coupling.UNIVERSAL),
        ({"found": 0.9, "image_novelty": coupling.IMAGE_UNFAMILIAR + 0.1}, "probe"),
    ],
)
def test_the_layer_is_followed_as_far_as_it_trusts_itself(doubt: dict[str, float], source: str) -> None:
    assert realized(page_selection(universal=fixed(**doubt))).coupled_by == source


def test_a_question_in_another_script_is_left_to_other_sources() -> None:
    question = replace(words(), text="合计是多少?")
    assert realized(page_selection(universal=fixed(found=0.9), question=question)).coupled_by == "probe"


@pytest.mark.parametrize(
    ("size", "question", "stated"),
    [
        ((280, 280), "\u5408\u8ba1\u662f\u591a\u5c11?", "not trained on questions in this script"),
        ((280, 280), "\U0001f642?", "not trained on questions in this script"),
        ((1, 1), TOTAL, "the image is even everywhere"),
        ((100, 12_000), TOTAL, "coupling by universal layer"),
    ],
    ids=["another script", "no letters", "1 x 1", "12,000 px"],
)
def test_unusual_input_gets_an_answer_that_says_what_was_done(
    size: tuple[int, int], question: str, stated: str
) -> None:
    picture = Image.new("RGB", size, "white")
    if size != (1, 1):
        for top in range(20, size[1], 40):
            ImageDraw.Draw(picture).text((10, top), "TOTAL 3.60", fill="black", font_size=16)
    found = arr_coc.realize(picture, question, budget="25%")
    assert stated in found.strategy
    assert len(found.keep) == max(1, round(found.n / 4))
    with pytest.raises(PromptError, match="expected a question, got an empty one"):
        arr_coc.realize(picture, " ", budget="25%")


def test_auto_says_why_it_reads_everything() -> None:
    vlm = wrapped("qwen2_vl")
    asked = vlm.prepare(Image.new("RGB", (280, 280), "white"), "\u5408\u8ba1?").allocations[0]
    assert asked.k == asked.n
    assert "not trained on questions in this script" in asked.strategy


def test_the_models_own_layer_comes_first() -> None:
    both = page_selection(universal=fixed(found=0.9), layer=fixed(found=0.9, confidence=4.0))
    assert realized(both).coupled_by == "layer"
    assert realized(both, RelevanceSettings(own_layer=False)).coupled_by == coupling.UNIVERSAL
    assert realized(both, RelevanceSettings(learned=False)).coupled_by == "probe"
    unsure = page_selection(universal=fixed(found=0.9), layer=fixed(confidence=-4.0))
    assert realized(unsure).coupled_by == coupling.UNIVERSAL
    assert coupling.couple(both, None, "universal").by == coupling.UNIVERSAL  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize("family", list(families.QWEN))
def test_a_wrapped_model_uses_it_by_default(family: str) -> None:
    vlm = wrapped(family)
    picture = Image.new("RGB", (448, 224), "white")
    pen = ImageDraw.Draw(picture)
    for number, line in enumerate(("TEA 1.20", "COFFEE 2.40", "TOTAL 3.60")):
        pen.text((30, 32 + 64 * number), line, fill="black", font_size=20)
    chosen = vlm.prepare([picture], "What is the total?", budget="25%", glance="50%").allocations[0]
    assert chosen.strategy.endswith("(coupling by universal layer)")
    without = arr_coc.wrap(vlm.model, vlm.processor, layer=None)
    assert without.universal is None
    assert "universal" not in without.prepare([picture], "What is the total?", budget="25%").allocations[0].strategy
    for given in ({"budget": "25%"}, {}):  # not everything, without a word
        with pytest.raises(SelectorError, match="wrapped with layer=None"):
            without.prepare([picture], "What is the total?", selector="arr-coc-universal", **given)


def test_a_universal_layer_of_ones_own(tmp_path: Path) -> None:
    layer = UniversalLayer.from_pretrained(WEIGHTS)
    with torch.no_grad():
        layer.doubt.out.bias[-1] -= 50  # it never trusts itself
    layer.save_pretrained(tmp_path)
    vlm = arr_coc.load("reader", layer=tmp_path)
    assert vlm.layer is None
    found = vlm.prepare(arr_coc.pictures.receipt(), TOTAL, glance="25%", budget="25%").allocations[0]
    assert "universal" not in found.strategy
    shipped = arr_coc.load("reader", layer="universal")
    assert shipped.layer is None
    assert "universal" in shipped.prepare(arr_coc.pictures.receipt(), TOTAL, budget="25%").allocations[0].strategy


def test_a_calibration_lies_with_the_layer(tmp_path: Path) -> None:
    layer = UniversalLayer.from_pretrained(WEIGHTS)
    assert isinstance(layer, UniversalLayer)
    features = [2.0, 1.0, 0.5, 0.0]
    assert layer.calibration("found", features) < torch.tensor(2.0).sigmoid()  # it is too sure of itself
    layer.calibration = Calibration({"found": [1.0, 0.0, 0.0, 0.0, -1.0]})
    layer.save_pretrained(tmp_path)
    again = ArrCocLayer.from_pretrained(tmp_path)
    assert isinstance(again, UniversalLayer)
    assert again.calibration("found", features) == pytest.approx(float(torch.tensor(1.0).sigmoid()))
    assert again.calibration("absent", features) == pytest.approx(float(torch.tensor(2.0).sigmoid()))  # its own
    (tmp_path / CALIBRATION).write_text('{"found": [1, 2]}')
    with pytest.raises(LayerError, match="expected five numbers for each of found, absent, whole"):
        UniversalLayer.from_pretrained(tmp_path)


def test_probabilities_are_stated_and_decisions_do_not_depend_on_their_calibration(receipt: TextureArray) -> None:
    stated = arr_coc.realize(receipt, TOTAL, budget="25%").tensions
    assert 0 < stated["found"] < 1
    assert 0 <= stated["absent"] < 0.5
    prediction = fixed(found=0.1, absent=0.9, trust=0.9)
    assert realized(page_selection(universal=prediction)).coupled_by == coupling.UNIVERSAL


def test_a_photograph_is_left_to_an_encoder_of_photographs() -> None:
    """Where nothing looks like a page, the layer is asked only if there is no other source."""
    texture = TextureArray.from_image(arr_coc.pictures.scene())
    cells = Grid(1, 20, 20)
    alone = selection(
        cells, 40, source=ImageSource(texture=texture), question=replace(words(), text="Where is the boat?"),
        universal=fixed(found=0.9),
    )  # fmt: skip
    assert realized(alone).coupled_by == coupling.UNIVERSAL
    assert realized(replace(alone, scorer=lambda seen: torch.arange(400.0))).coupled_by == "embeddings"


def test_long_and_empty_questions() -> None:
    long = question_bytes("a" * 1000 + "b" * 1000)
    assert len(long) == MAX_BYTES
    assert (long[0, 0], long[-1, 0]) == (ord("a"), ord("b"))
    assert question_bytes("  ").tolist() == [[32.0]]


def test_auto_does_not_ask_it_about_photographs() -> None:
    """There is no text on an even background, so a prediction would cost more than it could save."""
    calls: list[SelectionInput] = []

    def counted(seen: SelectionInput) -> LayerPrediction:
        calls.append(seen)
        return fixed(found=0.9)(seen)

    photo = asked(TextureArray.from_image(arr_coc.pictures.scene()), "Where is the dog?", universal=counted)
    chosen = ArrCoc().before_encoding(photo)
    assert chosen.rule == "everything"
    assert not calls
    page = ArrCoc().before_encoding(page_selection(k=None, probe=None, universal=counted))
    assert page.coupled_by == coupling.UNIVERSAL
    assert calls
