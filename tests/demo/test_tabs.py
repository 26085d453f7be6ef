"""What each tab computes, without a browser or gradio (`tab_*.py`)."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import arr_coc
from arr_coc.demo import tab_ask, tab_channels, tab_compare, tab_knowing, tab_report
from arr_coc.demo.app import AppState
from arr_coc.demo.inputs import Upload
from arr_coc.demo.markup import escape
from arr_coc.demo.state import STRIP_BUDGETS
from arr_coc.errors import ArrCocError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.model import LayerConfig
from tests.demo.conftest import USER, MakeRequest, last_outputs


def table_rows(html: str) -> list[list[str]]:
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def viewer_of(html: str) -> dict[str, Any]:
    """The data of the first viewer in some HTML."""
    match = re.search("data-cells='(.*?)'", html)
    assert match
    found: dict[str, Any] = json.loads(unescape(match.group(1)))
    return found


def kept_cells(data: dict[str, Any]) -> list[int]:
    return [cell for cell, state in enumerate(base64.b64decode(data["states"])) if state == 2]


def test_a_conversation_continues_from_the_last_answer(make_request: MakeRequest) -> None:
    settings: dict[str, Any] = {"follow": True, "budget": "12.5%", "glance": "all"}
    first = last_outputs(tab_ask.run(make_request(**settings)))
    assert (first["ask_turns"], first["ask_dense"], first["ask_strip"]) == ("", "", "")
    assert "remember=True" in first["ask_python"]
    second = last_outputs(tab_ask.run(make_request(question="What is the date?", **settings)))
    made = json.loads(second["ask_json"])
    assert made["answer"] == "12/03/2026"
    assert 0 < made["tokens"]["added"] < made["tokens"]["kept"]
    assert "What is the total amount?" in second["ask_turns"]
    assert "37.40" in second["ask_turns"]
    assert "108 tokens added, 108 of 860 read" in second["ask_turns"]
    assert "added by this turn" in second["ask_answer"]
    assert "vlm.ask(None, 'What is the date?', after=answer, budget='12.5%'" in second["ask_python"]
    assert list(tab_ask.run_timing(make_request(**settings))) == []
    elsewhere = last_outputs(tab_ask.run(make_request(question="What does the sign say?", image="scene", **settings)))
    assert elsewhere["ask_turns"] == ""  # another picture starts another conversation
    assert "added" not in json.loads(elsewhere["ask_json"])["tokens"]


def test_a_gaze_moves_the_kept_cells(make_request: MakeRequest) -> None:
    settings: dict[str, Any] = {"budget": "6.25%", "glance": "all", "dense": False, "gaze": "2, 3"}
    found = last_outputs(tab_ask.run(make_request(**settings)))
    assert 0 in kept_cells(viewer_of(found["ask_pictures"]))
    assert "gaze=(2.0, 3.0)" in found["ask_python"]
    assert "gaze=2%2C+3" in found["ask_link"]
    for gaze, problem in (("2", "expected 2 numbers for the gaze"), ("9999, 3", "inside the picture of 560 x 1212")):
        with pytest.raises(ArrCocError, match=problem):
            list(tab_ask.run(make_request(**settings | {"gaze": gaze})))


def test_an_answer_is_streamed_and_then_explained(make_request: MakeRequest) -> None:
    request = make_request(question="What is the name of the company?")
    steps = list(tab_ask.run(request))
    matches = [re.search("<output>(.*?)</output>", step["ask_answer"]) for step in steps if "ask_answer" in step]
    texts = [match.group(1) for match in matches if match]
    assert texts[-1] == "HARBOUR MILL BAKERY"
    assert len(texts) > 8
    assert all(texts[-1].startswith(text.removesuffix("&nbsp;")) for text in texts)
    found = last_outputs(iter(steps))
    assert "✓ right" in found["ask_answer"]
    made = json.loads(found["ask_json"])
    assert made["answer"] == "HARBOUR MILL BAKERY"
    assert made["tokens"]["kept"] < 400
    assert "".join(piece for piece, _ in made["token_probabilities"]) == "HARBOUR MILL BAKERY"
    assert found["ask_answer"].count("class='token'") == len(made["token_probabilities"])
    for expected in ("860 in total, 516 encoded", "relevance</span>: the most relevant"):
        assert expected in found["ask_facts"]
    data = viewer_of(found["ask_pictures"])
    assert kept_cells(data) == made["keep"]
    assert data["views"] == [[0, 0, 1, 1, 43, 20]]
    assert found["ask_pictures"].count("<canvas") == 2


def test_an_example_is_answered_at_each_budget(make_request: MakeRequest) -> None:
    strip = last_outputs(tab_ask.run(make_request(selector="uniform", glance="all", budget="25%")))["ask_strip"]
    cells = re.findall(r"class='stop-cell (\w+)' data-budget='([^']+)'.*?<span>(.*?)</span>", strip)
    assert [budget for _, budget, _ in cells] == list(STRIP_BUDGETS)
    assert all((verdict == "right") == (text == "37.40") for verdict, _, text in cells)
    assert {verdict for verdict, _, _ in cells} == {"right", "wrong"}  # every eleventh cell does not show the total
    unknown = last_outputs(tab_ask.run(make_request(question="Where?", budget="3%")))
    assert unknown["ask_strip"] == ""
    assert "right" not in unknown["ask_answer"]


def test_a_second_question_reuses_the_encoding(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"glance": "all", "budget": "12.5%", "dense": False}
    first = last_outputs(tab_ask.run(make_request(**settings)))
    monkeypatch.setattr(type(make_request().vlm.adapter), "encode", lambda *_: pytest.fail("encoded again"))
    second = last_outputs(tab_ask.run(make_request(**settings, question="What is the date?")))
    assert "reused" not in first["ask_facts"]
    assert "encode: computed for an earlier question" in second["ask_facts"]
    assert "12/03/2026" in second["ask_answer"]


def test_both_answers_are_timed_in_turns_with_nothing_reused(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request(budget="12.5%", glance="25%")
    asked: list[Any] = []
    real = type(request.vlm).ask

    def ask(vlm: Any, image: Any, question: str, **options: Any) -> Any:
        asked.append((type(image), options.get("budget", "all")))
        return real(vlm, image.resize((140, 225)), question, **options)

    monkeypatch.setattr(type(request.vlm), "ask", ask)
    found = last_outputs(tab_ask.run_timing(request))
    assert [budget for _, budget in asked] == ["all", "12.5%", "12.5%", "all"]
    assert all(issubclass(kind, Image.Image) for kind, _ in asked)  # a look would remember the encoding
    made = json.loads(found["ask_json"])
    assert made["timing"]["rounds"] == 2
    rows = {row[0]: row for row in table_rows(found["ask_facts"]) if len(row) == 3}
    assert float(rows["total"][1]) == pytest.approx(made["timing"]["milliseconds"], abs=0.6)
    assert "median of 2 rounds in turns" in found["ask_facts"]
    assert list(tab_ask.run_timing(make_request(dense=False))) == []
    asked.clear()
    for _ in tab_ask.run_timing(request):
        request.session.interrupts += 1  # the user does something else
    assert len(asked) == 1


def test_the_preview_keeps_what_the_answer_keeps(make_request: MakeRequest) -> None:
    settings = {"budget": "6.25%", "glance": "50%"}
    live = last_outputs(tab_ask.run_preview(make_request(**settings)))["ask_live"]
    match = re.search("data-live='(.*?)'", live)
    assert match
    data = json.loads(unescape(match.group(1)))
    answered = last_outputs(tab_ask.run(make_request(**settings)))
    assert kept_cells(data) == json.loads(answered["ask_json"])["keep"]
    assert data["layers"]["relevance"] == {
        key: viewer_of(answered["ask_pictures"])["layers"]["relevance"][key] for key in ("low", "high", "data")
    }
    inside = last_outputs(tab_ask.run_preview(make_request(selector="fastv")))
    assert "press Ask to see what it keeps" in inside["ask_message"]


def test_selectors_are_compared(make_request: MakeRequest) -> None:
    names = ("arr-coc", "uniform", "oracle", "resize")
    steps = list(tab_compare.run(make_request(selectors=names, budget="12.5%")))
    found = last_outputs(iter(steps))
    made = {one["selector"]: one for one in json.loads(found["compare_json"])["selectors"]}
    assert made["arr-coc"]["answer"] == "37.40"
    assert made["arr-coc"]["evidence_recall"] == made["oracle"]["evidence_recall"] == 1
    assert made["uniform"]["evidence_recall"] < 0.5
    assert made["resize"]["tokens"]["kept"] <= 108
    assert list(made) == ["all", *names]
    assert made["all"]["tokens"]["kept"] == 860
    assert made["all"]["right"] is True
    assert made["uniform"]["right"] is False
    assert found["compare_columns"].count("✗ wrong: it is 37.40") == sum(not one["right"] for one in made.values())
    assert found["compare_columns"].count("<canvas") == 5
    assert "waiting" in steps[1]["compare_columns"]


def test_an_error_of_one_selector_is_shown_in_its_column(make_request: MakeRequest) -> None:
    request = make_request(selectors=("oracle", "uniform"), budget="auto", question="Where?")
    found = last_outputs(tab_compare.run(request))
    made = json.loads(found["compare_json"])["selectors"]
    assert "draw a box" in made[1]["error"]
    assert "answer" in made[2]
    assert "as many cells as arr-coc finds enough" in found["compare_note"]


def test_a_drawn_box_is_the_evidence(make_request: MakeRequest) -> None:
    request = make_request(selectors=("centre", "uniform"), budget="12.5%", box="280, 600, 230, 640")
    made = json.loads(last_outputs(tab_compare.run(request))["compare_json"])
    assert made["evidence"] == [[[230, 600, 280, 640]]]
    assert made["selectors"][1]["evidence_recall"] == 1
    with pytest.raises(ArrCocError, match="empty or outside"):
        last_outputs(tab_compare.run(make_request(box="9000, 9000, 9100, 9100")))


def test_the_channels_of_an_image(make_request: MakeRequest) -> None:
    found = last_outputs(tab_channels.run(make_request(channel="text", level=2, point="0.8, 0.62")))
    shown, _, folded = found["channels_gallery"].partition("<details")
    assert (shown.count("<button"), folded.count("<button")) == (17, 23)
    assert "23 channels are empty" in folded
    assert "likelihood that a pixel" in found["channels_about"]
    made = json.loads(found["channels_json"])
    texture = arr_coc.TextureArray.from_image(arr_coc.pictures.receipt())
    assert made["size"] == list(texture.level("text", 2).shape)
    expected = texture.sample([(0.8, 0.62)], level=2.0)[0].tolist()
    assert list(made["values"].values()) == pytest.approx(expected, abs=1e-5)
    again = last_outputs(tab_channels.run(make_request(channel="text"), gallery=False))
    assert "channels_gallery" not in again


def test_weights_can_be_set(make_request: MakeRequest) -> None:
    found = last_outputs(tab_knowing.run(make_request(budget="100")))
    assert found["knowing_pictures"].count("<canvas") == 5
    assert 0 < found["knowing_coupling"] <= 1
    changed = last_outputs(tab_knowing.run(make_request(budget="100", weights="coupling 0")))
    assert changed["knowing_coupling"] == 0
    assert "(by hand)" in changed["knowing_bars"]
    before, after = (json.loads(one["knowing_json"]) for one in (found, changed))
    assert before["keep"] != after["keep"]
    assert before["scores"]["coupling"] == after["scores"]["coupling"]
    untrained = last_outputs(tab_knowing.run(make_request(budget="100", learned=False, exploit=0.5)))
    assert untrained["knowing_exploit"] == 0.5
    assert untrained["knowing_text"] > 0


def test_reports_are_shown_and_compared(make_request: MakeRequest) -> None:
    found = last_outputs(tab_report.run(make_request(tab="report", report="runs/first")))
    assert "sandbox=''" in found["report_page"]
    assert "Worst and best cases" in found["report_page"]
    both = last_outputs(tab_report.run(make_request(tab="report", report="runs/first", against="runs/second")))
    assert "arr-coc at 12.5%" in both["report_changes"]
    assert "No answer became right or wrong." in both["report_changes"]
    assert [one["difference"] for one in json.loads(both["report_json"])["changes"]] == [0]


BAD_SETTINGS = {
    "no question": ({"question": "  "}, "expected a question, got an empty one"),
    "long question": ({"question": "why " * 100}, "at most 300 characters, got 399"),
    "no image": ({"image": ""}, "there is no image yet"),
    "unknown image": ({"image": "nothing"}, "an image among receipt, scene"),
    "budget over 100%": ({"budget": "200%"}, "between 0% and 100%"),
    "glance of a resizing selector": ({"selector": "resize", "glance": "25%"}, "leave glance out"),
    "mass without scores": ({"selector": "uniform", "budget": "mass 90%", "glance": "all"}, "give a count or a share"),
    "misspelt selector": ({"selector": "arr-cok"}, "did you mean 'arr-coc'"),
    "selector from a module": ({"selector": "os:system"}, "a selector among"),
    "selector for videos": ({"selector": "evs"}, "a selector among"),
    "unknown model": ({"model": "gpt"}, "a model among reader"),
    "missing layer": ({"layer": "nowhere"}, "there is no folder 'nowhere'"),
    "layer outside the root": ({"layer": "../../etc"}, "outside of it"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_raise(make_request: MakeRequest, case: str) -> None:
    settings, message = BAD_SETTINGS[case]
    with pytest.raises(ArrCocError, match=re.escape(message)):
        last_outputs(tab_ask.run(make_request(**settings)))


def test_a_layer_of_another_model_is_refused(make_request: MakeRequest, files: Path) -> None:
    ArrCocLayer(LayerConfig("another-model", token_width=8, word_width=8)).save_pretrained(files / "other-layer")
    with pytest.raises(ArrCocError, match="trained for another-model"):
        last_outputs(tab_ask.run(make_request(layer="other-layer")))
    without = last_outputs(tab_ask.run(make_request(layer="none", dense=False, budget="12.5%")))
    assert "coupling by probe" in re.sub("<[^>]*>", "", without["ask_facts"])


def test_html_and_templates_in_a_question_stay_text(make_request: MakeRequest) -> None:
    odd = "Wie viel? 合計 {{value}} ${1+1} <b>é</b>"
    found = last_outputs(tab_ask.run(make_request(question=odd, dense=False, budget="12.5%")))
    assert json.loads(found["ask_json"])["question"] == odd
    assert escape(odd) == "Wie viel? 合計 &#123;&#123;value&#125;&#125; &#36;&#123;1+1&#125; &lt;b&gt;é&lt;/b&gt;"


@pytest.mark.parametrize("size", [(1, 1), (2000, 10)])
def test_images_of_extreme_sizes_are_answered(make_request: MakeRequest, app: AppState, size: tuple[int, int]) -> None:
    app.sessions.get(USER).set_upload(Upload("odd.png", Image.new("RGB", size, "white")))
    assert "<output>" in last_outputs(tab_ask.run(make_request(image="", dense=False)))["ask_answer"]
    assert last_outputs(tab_channels.run(make_request(image="")))["channels_gallery"].count("<button") == 40


def test_an_image_that_the_model_refuses_still_has_channels(make_request: MakeRequest, app: AppState) -> None:
    app.sessions.get(USER).set_upload(Upload("line.png", Image.new("RGB", (3, 900), "white")))
    with pytest.raises(ArrCocError, match="aspect ratio"):
        last_outputs(tab_ask.run(make_request(image="")))
    assert last_outputs(tab_channels.run(make_request(image="")))["channels_gallery"].count("<button") == 40
