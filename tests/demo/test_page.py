"""The page in a real browser: every tab used, nothing in the console, nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import arr_coc
from arr_coc.demo.serving import free_port
from tests.demo.browsing import REQUIRED, Watched, executable, options

if executable() is None and not os.environ.get(REQUIRED):
    pytest.skip("no Chromium here (Debian: apt-get install chromium): the page is not tried", allow_module_level=True)

sync_api = pytest.importorskip("playwright.sync_api")
WAIT = 30_000  # milliseconds; other people may be using the machine
Open = Callable[..., Watched]


@pytest.fixture(scope="module")
def served(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`arr-coc demo` as it is started from a shell; it ends in good order and leaves no file behind."""
    port = free_port("127.0.0.1", None)
    room = tmp_path_factory.mktemp("temporary")
    command = [
        sys.executable,
        "-m",
        "arr_coc.cli",
        "demo",
        "--port",
        str(port),
        "--files",
        str(files),
        "--data",
        str(files / "data"),
    ]
    command += ["--letters", "300", "--megabytes", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(room)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background may not hear it
    ) as process:  # fmt: skip
        assert process.stdout
        line = process.stdout.readline()
        assert "The page is at" in line, process.stderr.read() if process.stderr else ""
        yield f"http://127.0.0.1:{port}/"
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, said
    assert "Traceback" not in said, said
    assert not [path.name for path in room.iterdir() if path.name.startswith("arr-coc-demo-")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(**options())
        yield browser
        browser.close()


@pytest.fixture
def visitor(chromium: Any, served: str) -> Iterator[Open]:
    """A new visitor with a window of their own; at the end nothing may have gone wrong in it."""
    seen: list[Watched] = []

    def come(width: int = 1280, dark: bool = False) -> Watched:
        window = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True
        )
        window.grant_permissions(["clipboard-read", "clipboard-write"])
        window.set_default_timeout(WAIT)
        seen.append(Watched(window.new_page(), served))
        return seen[-1]

    yield come
    wrong = [one for watched in seen for one in watched.wrong]
    for watched in seen:
        watched.page.context.close()
    assert wrong == []


def test_the_watch_sees_what_goes_wrong(chromium: Any, served: str) -> None:
    watched = Watched(chromium.new_page(), served)
    page = watched.open()
    page.evaluate(
        "console.error('broken'); setTimeout(() => { throw new Error('worse') }); fetch('http://127.0.0.1:1/').catch(() => {})"
    )
    page.wait_for_timeout(500)
    assert any("broken" in one for one in watched.wrong)
    assert any("worse" in one for one in watched.wrong)
    assert "request to http://127.0.0.1:1/" in watched.wrong
    page.close()


def test_ask(visitor: Open, tmp_path: Path) -> None:
    watched = visitor()
    page = watched.open()
    page.locator("#ask-go").click()
    page.locator("#ask-dense output").wait_for()
    assert page.locator("#ask-answer output").inner_text() == "37.40"
    assert page.locator("#ask-dense output").inner_text() == "37.40"
    assert "860 in all, 516 encoded" in page.locator("#ask-facts").inner_text()
    assert "speed-up" in page.locator("#ask-facts").inner_text()
    drawn = page.locator("#ask-pictures img")
    assert drawn.count() == 3
    assert all(drawn.nth(i).evaluate("image => image.naturalWidth") > 300 for i in range(3))
    watched.screen("ask")
    page.locator("#heat input[type=range]").fill("20")
    page.wait_for_function("getComputedStyle(document.querySelector('.over')).opacity === '0.2'")
    assert page.url.endswith("?tab=ask&image=receipt&question=What+is+the+total+amount%3F")
    page.locator("#ask-copy-python").click()
    page.locator("#ask-copy-python", has_text="Copied").wait_for()
    code = page.evaluate("navigator.clipboard.readText()")
    assert "vlm.ask(picture, 'What is the total amount?', budget='auto', glance='auto', selector='arr-coc'" in code
    page.locator("#ask-copy-link").click()
    page.locator("#ask-copy-link", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    with page.expect_download() as coming:
        page.locator("#ask-save-json").click()
    coming.value.save_as(tmp_path / "answer.json")
    assert json.loads((tmp_path / "answer.json").read_text())["dense"]["answer"] == "37.40"


def test_a_second_question_by_keyboard_reuses_what_was_built(visitor: Open) -> None:
    page = visitor().open()
    page.locator("#dense input").uncheck()
    page.locator("#ask-go").click()
    page.locator("#ask-answer output", has_text="37.40").wait_for()
    page.locator("#question textarea").fill("What is the date?")
    page.keyboard.press("Enter")
    page.locator("#ask-answer output", has_text="12/03/2026").wait_for()
    page.locator("#ask-facts", has_text="built for an earlier question").wait_for()
    page.wait_for_url(re.compile(r"question=What\+is\+the\+date"))


def test_compare_with_a_box_drawn_by_hand(visitor: Open) -> None:
    watched = visitor()
    page = watched.open()
    page.get_by_role("tab", name="Compare").click()
    board = page.locator("#compare-board .board")
    board.scroll_into_view_if_needed()
    area = board.bounding_box()
    page.mouse.move(area["x"] + 0.1 * area["width"], area["y"] + 0.02 * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + 0.9 * area["width"], area["y"] + 0.08 * area["height"], steps=4)
    page.mouse.up()
    field = page.locator("#box textarea, #box input")
    page.wait_for_function("document.querySelector('#box textarea, #box input').value !== ''")
    sides = [float(side) for side in field.input_value().split(",")]
    assert sides == pytest.approx([56, 24, 504, 97], abs=6)
    page.locator("#compare-go").click()
    page.locator("#compare-columns figure", has_text="evidence kept").nth(2).wait_for()
    assert page.locator("#compare-columns figure").count() == 3
    assert "37.40" in page.locator("#compare-columns figure").first.inner_text()
    page.locator("#compare-note", has_text="as many cells as arr-coc finds enough").wait_for()
    assert "box=" in page.url
    watched.screen("compare")


def test_channels(visitor: Open) -> None:
    watched = visitor()
    page = watched.open()
    page.get_by_role("tab", name="Channels").click()
    page.locator(".tile[data-channel=red]").wait_for()
    assert page.locator(".tile").count() == 40
    page.locator(".tile[data-channel=text]").focus()
    page.keyboard.press("Enter")
    page.locator("#channels-about", has_text="likelihood that a pixel").wait_for()
    assert page.locator(".tile[aria-pressed=true]").get_attribute("data-channel") == "text"
    large = page.locator("#channels-large .board")
    area = large.bounding_box()
    large.click(position={"x": area["width"] / 2, "y": area["height"] / 4})
    page.locator("#channels-values", has_text=re.compile(r"At 0\.(50|49)")).wait_for()
    values = page.locator("#channels-values").inner_text()
    assert float(re.search(r"\by\s+([\d.]+)", values).group(1)) == pytest.approx(0.25, abs=0.01)  # type: ignore[union-attr]
    page.locator("#level input[type=range]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.locator("#channels-about", has_text="3 of 10").wait_for()
    assert "channel=text" in page.url
    watched.screen("channels")


def test_knowing_by_hand(visitor: Open) -> None:
    watched = visitor()
    page = watched.open()
    page.get_by_role("tab", name="Knowing").click()
    page.locator("#knowing-pictures figure").nth(4).wait_for()
    titles = page.locator("#knowing-pictures figcaption b").all_inner_texts()
    assert titles == ["information", "salience", "coupling", "balanced relevance", "kept cells"]
    before = page.locator("#knowing-pictures figure").nth(3).locator("img").get_attribute("src")
    watched.screen("knowing")
    page.locator("#knowing-coupling input[type=range]").focus()
    page.keyboard.press("Home")
    page.locator("#knowing-bars", has_text="(by hand)").wait_for()
    assert re.search(r"coupling\s+0\.00", page.locator("#knowing-bars").inner_text())
    assert page.locator("#knowing-pictures figure").nth(3).locator("img").get_attribute("src") != before
    assert "weights=" in page.url
    page.locator("#knowing-reset").click()
    page.wait_for_function("!document.querySelector('#knowing-bars').innerText.includes('(by hand)')")
    page.wait_for_function("!location.search.includes('weights=')")


def test_reports(visitor: Open) -> None:
    watched = visitor()
    page = watched.open()
    page.get_by_role("tab", name="Report").click()
    page.locator("#report-folder input").fill("runs/first")
    page.keyboard.press("Enter")
    page.locator("#against-folder input").fill("runs/second")
    page.keyboard.press("Enter")
    page.locator("#report-go").click()
    page.frame_locator("#report-page iframe").get_by_text("Worst and best cases").wait_for()
    assert "No answer changed sides" in page.locator("#report-changes").inner_text()
    watched.screen("report")
    page.locator("#report-folder input").fill("runs/none")
    page.keyboard.press("Enter")
    page.locator("#report-go").click()
    page.locator("#report-told [role=alert]", has_text="there is no folder 'runs/none'").wait_for()


def test_a_link_opens_its_view(visitor: Open) -> None:
    page = visitor().open("?tab=knowing&image=receipt&question=What+is+the+date%3F&exploit=0.25&budget=6.25%25")
    page.locator("#knowing-bars", has_text="(by hand)").wait_for()
    assert re.search(r"exploit\s+0\.25", page.locator("#knowing-bars").inner_text())
    assert page.locator("#question textarea").input_value() == "What is the date?"
    assert "54 of 860" in page.locator("#knowing-pictures").inner_text()
    other = visitor().open("?tab=cellar")
    other.locator("#picture-told", has_text="This link is not quite right").wait_for()


def test_what_is_sent_is_seen_by_nobody_else(visitor: Open, tmp_path: Path) -> None:
    arr_coc.pictures.receipt().crop((0, 640, 560, 900)).save(tmp_path / "mine.jpg")
    mine, other = visitor().open(), visitor().open()
    mine.get_by_label("Remove Image").click()
    mine.locator("#picture input[type=file]").set_input_files(tmp_path / "mine.jpg")
    mine.wait_for_function("document.querySelector('#example input').value === 'my own picture'")
    mine.locator("#ask-go").click()
    mine.locator("#ask-dense output").wait_for()
    assert "37.40" in mine.locator("#ask-answer").inner_text()
    other.locator("#example input").click()
    other.get_by_role("option", name="my own picture").click()
    other.locator("#ask-go").click()
    other.locator("#ask-told [role=alert]", has_text="There is no picture here").wait_for()
    assert other.locator("#ask-pictures img").count() == 0


BAD = {
    "broken.png": (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "not an image|corrupt"),
    "letter.jpg": (b"Dear reader", "not an image"),
    "huge.png": (Image.new("1", (10_000, 10_000)), "10000 x 10000 pixels"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_a_sentence(visitor: Open, tmp_path: Path, name: str) -> None:
    data, said = BAD[name]
    if isinstance(data, bytes):
        (tmp_path / name).write_bytes(data)
    else:
        data.save(tmp_path / name)
    watched = visitor()
    page = watched.open()
    page.get_by_label("Remove Image").click()
    page.locator("#picture input[type=file]").set_input_files(tmp_path / name)
    page.locator("#picture-told [role=alert]", has_text=re.compile(said)).wait_for()
    page.locator("#ask-go").click()
    page.locator("#ask-told [role=alert]", has_text="There is no picture here").wait_for()


def test_too_large_a_file_is_a_sentence(visitor: Open, tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(os.urandom(1_500_000))
    watched = visitor()
    page = watched.open()
    page.get_by_label("Remove Image").click()
    page.locator("#picture input[type=file]").set_input_files(tmp_path / "large.png")
    page.get_by_text(re.compile("exceed|too large", re.I)).first.wait_for()
    page.locator("#example input").click()
    page.get_by_role("option", name="receipt", exact=True).click()
    page.locator("#dense input").uncheck()
    page.locator("#ask-go").click()
    page.locator("#ask-answer output", has_text="37.40").wait_for()
    watched.wrong[:] = [one for one in watched.wrong if not re.search("upload|Response", one)]  # that it was refused


def test_bad_questions_and_budgets_are_a_sentence_and_the_page_lives_on(visitor: Open) -> None:
    page = visitor().open()
    question = page.locator("#question textarea")
    for words, said in (("", "no question here"), ("why? " * 100, "at most 300 letters")):
        question.fill(words)
        page.locator("#ask-go").click()
        page.locator("#ask-told [role=alert]", has_text=said).wait_for()
    question.fill("What is the total amount? 合計 é {{1}}")
    page.get_by_text("Model, layer, exact budget").click()
    for field, words, said in (
        ("budget-words", "200%", "between 0% and 100%"),
        ("layer", "nowhere", "there is no folder"),
    ):
        box = page.locator(f"#{field} textarea, #{field} input")
        usual = box.input_value()
        box.fill(words)
        page.locator("#ask-go").click()
        page.locator("#ask-told [role=alert]", has_text=said).wait_for()
        box.fill(usual)
    page.locator("#dense input").uncheck()
    page.locator("#ask-go").click()
    page.locator("#ask-pictures img").nth(2).wait_for()
    assert page.locator("#ask-told").inner_text().strip() == ""


def test_a_phone_in_the_dark(visitor: Open) -> None:
    watched = visitor(width=390, dark=True)
    page = watched.open("?tab=ask")
    page.locator("#ask-dense output").wait_for()
    assert page.evaluate("document.body.classList.contains('dark')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    tabs = page.get_by_role("tab")
    assert [tabs.nth(i).inner_text() for i in range(tabs.count())] == [
        "Ask",
        "Compare",
        "Channels",
        "Knowing",
        "Report",
    ]
    watched.screen("phone")
    page.locator("#theme").click()
    assert not page.evaluate("document.body.classList.contains('dark')")
