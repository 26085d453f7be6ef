"""What each tab works out, without a page around it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import arr_coc
from arr_coc.demo import asking, channels, comparing, knowing, reporting
from arr_coc.demo.drawing import text
from arr_coc.demo.folders import inside, reports
from arr_coc.demo.uploads import Upload
from arr_coc.demo.visit import House, Visit
from arr_coc.errors import ArrCocError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.config import LayerConfig
from tests.demo.conftest import outcome

Visiting = Callable[..., Visit]


def test_an_answer_comes_in_pieces_and_then_with_everything(visit: Visiting) -> None:
    steps = list(asking.ask(visit(question="What is the name of the company?")))
    said = [re.search("<output>(.*?)</output>", step["ask_answer"]) for step in steps if "ask_answer" in step]
    words = [found.group(1) for found in said if found]
    assert words[-1] == "HARBOUR MILL BAKERY"
    assert len(words) > 8
    assert all(words[-1].startswith(word.removesuffix("&nbsp;")) for word in words)
    found = outcome(iter(steps))
    assert "HARBOUR MILL BAKERY" in found["ask_dense"]
    assert found["ask_pictures"].count("<img") == 3  # the picture, its heat, the kept cells
    for words_ in ("860 in all, 516 encoded", "speed-up, from scratch", "relevance: the most relevant cells"):
        assert words_ in found["ask_facts"]
    made = json.loads(found["ask_json"])
    assert made["answer"] == made["dense"]["answer"] == "HARBOUR MILL BAKERY"
    assert made["tokens"]["kept"] < 400


def test_a_second_question_finds_ready_what_was_built(visit: Visiting, monkeypatch: pytest.MonkeyPatch) -> None:
    first = outcome(asking.ask(visit(glance="all", budget="12.5%", dense=False)))
    seen = visit()
    monkeypatch.setattr(type(seen.vlm.adapter), "encode", lambda *_: pytest.fail("encoded again"))
    second = outcome(asking.ask(visit(glance="all", budget="12.5%", dense=False, question="What is the date?")))
    assert "found ready" not in first["ask_facts"]
    assert "found ready" in second["ask_facts"]
    assert "encode: built for an earlier question" in second["ask_facts"]
    assert "12/03/2026" in second["ask_answer"]


def test_from_scratch_counts_what_somebody_else_built(visit: Visiting) -> None:
    found = outcome(asking.ask(visit(glance="all", budget="25%", dense=True)))
    rows = {row[0]: row for row in _rows(found["ask_facts"]) if len(row) == 3}
    encoded = float(rows["encode"][1])
    assert rows["encode"][2].startswith("ready")
    assert float(rows["from scratch"][2]) > encoded  # the encoding was needed for this column, too
    outcome(comparing.compare(visit(selectors=("random", "uniform"), budget="25%", question="Where?", image="scene")))
    after = outcome(asking.ask(visit(glance="all", budget="25%", dense=False, question="Who?", image="scene")))
    assert "encode" in after["ask_facts"].split("found ready")[1].split("built for")[0]


def _rows(html: str) -> list[list[str]]:
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def test_selectors_side_by_side(visit: Visiting) -> None:
    steps = list(comparing.compare(visit(selectors=("arr-coc", "uniform", "oracle", "resize"), budget="12.5%")))
    found = outcome(iter(steps))
    made = {one["selector"]: one for one in json.loads(found["compare_json"])["selectors"]}
    assert made["arr-coc"]["answer"] == "37.40"
    assert made["arr-coc"]["evidence_recall"] == made["oracle"]["evidence_recall"] == 1
    assert made["uniform"]["evidence_recall"] < 0.5
    assert made["resize"]["tokens"]["kept"] <= 108
    assert found["compare_columns"].count("<figure>") == 4
    assert "waiting" in steps[1]["compare_columns"]


def test_one_column_s_complaint_is_its_own(visit: Visiting) -> None:
    found = outcome(comparing.compare(visit(selectors=("oracle", "uniform"), budget="auto", question="Where?")))
    made = json.loads(found["compare_json"])["selectors"]
    assert "draw a box" in made[0]["error"]
    assert "answer" in made[1]
    assert "as many cells as arr-coc finds enough" in found["compare_note"]


def test_a_box_drawn_by_hand_counts(visit: Visiting) -> None:
    found = outcome(comparing.compare(visit(selectors=("centre", "uniform"), budget="12.5%", box="280, 600, 230, 640")))
    made = json.loads(found["compare_json"])
    assert made["evidence"] == [[[230, 600, 280, 640]]]
    assert made["selectors"][0]["evidence_recall"] == 1
    with pytest.raises(ArrCocError, match="outside the picture"):
        outcome(comparing.compare(visit(box="9000, 9000, 9100, 9100")))


def test_the_channels_of_a_picture(visit: Visiting) -> None:
    found = outcome(channels.channels(visit(channel="text", level=2, point="0.8, 0.62")))
    assert found["channels_gallery"].count("<button") == 40
    assert "likelihood that a pixel" in found["channels_about"]
    made = json.loads(found["channels_json"])
    texture = arr_coc.TextureArray.from_image(arr_coc.pictures.receipt())
    assert made["size"] == list(texture.level("text", 2).shape)
    expected = texture.sample([(0.8, 0.62)], level=2.0)[0].tolist()
    assert list(made["values"].values()) == pytest.approx(expected, abs=1e-5)
    again = outcome(channels.channels(visit(channel="text"), gallery=False))
    assert "channels_gallery" not in again


def test_weights_by_hand(visit: Visiting) -> None:
    found = outcome(knowing.know(visit(budget="100")))
    assert found["knowing_pictures"].count("<figure>") == 5
    assert 0 < found["knowing_coupling"] <= 1
    blind = outcome(knowing.know(visit(budget="100", weights="coupling 0")))
    assert blind["knowing_coupling"] == 0
    assert "(by hand)" in blind["knowing_bars"]
    before, after = (json.loads(one["knowing_json"]) for one in (found, blind))
    assert before["keep"] != after["keep"]
    assert before["scores"]["coupling"] == after["scores"]["coupling"]
    untrained = outcome(knowing.know(visit(budget="100", learned=False, exploit=0.5)))
    assert untrained["knowing_exploit"] == 0.5
    assert untrained["knowing_text"] > 0


def test_a_report_and_another(visit: Visiting, files: Path) -> None:
    assert reports(files) == ["runs/first", "runs/second"]
    found = outcome(reporting.report(visit(tab="report", report="runs/first")))
    assert "sandbox=''" in found["report_page"]
    assert "Worst and best cases" in found["report_page"]
    both = outcome(reporting.report(visit(tab="report", report="runs/first", against="runs/second")))
    assert "arr-coc at 12.5%" in both["report_changes"]
    assert "No answer changed sides." in both["report_changes"]
    assert [one["difference"] for one in json.loads(both["report_json"])["changes"]] == [0]


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "runs/none", "a" * 5000, "a\0b"])
def test_only_folders_below_the_root_are_opened(files: Path, name: str) -> None:
    with pytest.raises(ArrCocError, match="below the folder that --files names"):
        inside(files, name, "a folder")


BAD = {
    "no question": ({"question": "  "}, "no question here"),
    "a huge question": ({"question": "why " * 100}, "at most 300 letters, got 399"),
    "no picture": ({"image": ""}, "no picture here"),
    "an unknown picture": ({"image": "nothing"}, "a picture among receipt, scene"),
    "a budget of too much": ({"budget": "200%"}, "between 0% and 100%"),
    "a contradictory budget": ({"selector": "resize", "glance": "25%"}, "leave glance out"),
    "a budget that needs scores": (
        {"selector": "uniform", "budget": "mass 90%", "glance": "all"},
        "give a count or a share",
    ),
    "an unknown selector": ({"selector": "arr-cok"}, "did you mean 'arr-coc'"),
    "a selector from a module": ({"selector": "os:system"}, "a selector among"),
    "a selector of videos": ({"selector": "evs"}, "a selector among"),
    "an unknown model": ({"model": "gpt"}, "a model among reader"),
    "no such layer": ({"layer": "nowhere"}, "there is no folder 'nowhere'"),
    "a layer elsewhere": ({"layer": "../../etc"}, "outside of it"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(visit: Visiting, case: str) -> None:
    view, said = BAD[case]
    with pytest.raises(ArrCocError, match=re.escape(said)):
        outcome(asking.ask(visit(**view)))


def test_a_layer_of_another_model(visit: Visiting, files: Path) -> None:
    ArrCocLayer(LayerConfig("another-model", token_width=8, word_width=8)).save_pretrained(files / "other-layer")
    with pytest.raises(ArrCocError, match="trained for another-model"):
        outcome(asking.ask(visit(layer="other-layer")))
    plain = outcome(asking.ask(visit(layer="none", dense=False, budget="12.5%")))
    assert "coupling by scout" in plain["ask_facts"]


def test_letters_of_all_kinds_and_templates_stay_words(visit: Visiting, house: House) -> None:
    odd = "Wie viel? 合計 {{value}} ${1+1} <b>é</b>"
    found = outcome(asking.ask(visit(question=odd, dense=False, budget="12.5%")))
    assert json.loads(found["ask_json"])["question"] == odd
    assert text(odd) == "Wie viel? 合計 &#123;&#123;value&#125;&#125; &#36;&#123;1+1&#125; &lt;b&gt;é&lt;/b&gt;"


@pytest.mark.parametrize("size", [(1, 1), (2000, 10)])
def test_odd_pictures_are_answered(visit: Visiting, house: House, size: tuple[int, int]) -> None:
    house.desks.of("somebody").put(Upload("odd.png", Image.new("RGB", size, "white")))
    assert "<output>" in outcome(asking.ask(visit(image="", dense=False)))["ask_answer"]
    assert outcome(channels.channels(visit(image="")))["channels_gallery"].count("<button") == 40


def test_a_picture_that_the_model_refuses_has_channels_still(visit: Visiting, house: House) -> None:
    house.desks.of("somebody").put(Upload("line.png", Image.new("RGB", (3, 900), "white")))
    with pytest.raises(ArrCocError, match="aspect ratio"):
        outcome(asking.ask(visit(image="")))
    assert outcome(channels.channels(visit(image="")))["channels_gallery"].count("<button") == 40
