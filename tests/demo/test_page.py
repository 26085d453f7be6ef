"""The page in a real browser: every tab is used, without console errors and without requests to other servers."""

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
from arr_coc.demo.server import find_port
from tests.demo.browser import REQUIRED, WatchedPage, executable, launch_options

if executable() is None and not os.environ.get(REQUIRED):
    pytest.skip("no Chromium here (Debian: apt-get install chromium): the page is not tried", allow_module_level=True)

sync_api = pytest.importorskip("playwright.sync_api")
TIMEOUT = 30_000  # milliseconds; the machine may be busy
NewUser = Callable[..., WatchedPage]


@pytest.fixture(scope="module")
def address(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`arr-coc demo` as a process. After the tests Ctrl-C ends it with code 0, and it leaves no file."""
    port = find_port("127.0.0.1", None)
    temporary = tmp_path_factory.mktemp("temporary")
    options = ["--port", str(port), "--files", str(files), "--data", str(files / "data"), "--letters", "300"]
    with subprocess.Popen(
        [sys.executable, "-m", "arr_coc.cli", "demo", *options, "--megabytes", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it for background jobs
    ) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert "The page is at" in line, process.stderr.read() if process.stderr else ""
        yield f"http://127.0.0.1:{port}/"
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, errors
    assert "Traceback" not in errors, errors
    assert not [path.name for path in temporary.iterdir() if path.name.startswith("arr-coc-demo-")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(**launch_options())
        yield browser
        browser.close()


@pytest.fixture
def new_user(chromium: Any, address: str) -> Iterator[NewUser]:
    """A function that opens a window with a session of its own. After the test no window may have recorded a problem."""
    windows: list[WatchedPage] = []

    def open_window(width: int = 1280, dark: bool = False) -> WatchedPage:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(TIMEOUT)
        windows.append(WatchedPage(context.new_page(), address))
        return windows[-1]

    yield open_window
    problems = [problem for window in windows for problem in window.problems]
    for window in windows:
        window.page.context.close()
    assert problems == []


def test_problems_are_recorded(chromium: Any, address: str) -> None:
    window = WatchedPage(chromium.new_page(), address)
    page = window.open()
    page.evaluate(
        "console.error('broken'); setTimeout(() => { throw new Error('worse') }); fetch('http://127.0.0.1:1/').catch(() => {})"
    )
    page.wait_for_timeout(500)
    assert any("broken" in problem for problem in window.problems)
    assert any("worse" in problem for problem in window.problems)
    assert "request to http://127.0.0.1:1/" in window.problems
    page.close()


def test_ask(new_user: NewUser, tmp_path: Path) -> None:
    window = new_user()
    page = window.open()
    page.locator("#ask-go").click()
    page.locator("#ask-dense output").wait_for()
    assert page.locator("#ask-answer output").inner_text() == "37.40"
    assert page.locator("#ask-dense output").inner_text() == "37.40"
    assert "860 in total, 516 encoded" in page.locator("#ask-facts").inner_text()
    assert "speed-up" in page.locator("#ask-facts").inner_text()
    drawn = page.locator("#ask-pictures img")
    assert drawn.count() == 3
    assert all(drawn.nth(i).evaluate("image => image.naturalWidth") > 300 for i in range(3))
    window.screenshot("ask")
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


def test_enter_asks_a_second_question_that_reuses_the_encoding(new_user: NewUser) -> None:
    page = new_user().open()
    page.locator("#dense input").uncheck()
    page.locator("#ask-go").click()
    page.locator("#ask-answer output", has_text="37.40").wait_for()
    page.locator("#question textarea").fill("What is the date?")
    page.keyboard.press("Enter")
    page.locator("#ask-answer output", has_text="12/03/2026").wait_for()
    page.locator("#ask-facts", has_text="computed for an earlier question").wait_for()
    page.wait_for_url(re.compile(r"question=What\+is\+the\+date"))


def test_compare_with_a_drawn_box(new_user: NewUser) -> None:
    window = new_user()
    page = window.open()
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
    window.screenshot("compare")


def test_channels(new_user: NewUser) -> None:
    window = new_user()
    page = window.open()
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
    window.screenshot("channels")


def test_weights_set_by_hand(new_user: NewUser) -> None:
    window = new_user()
    page = window.open()
    page.get_by_role("tab", name="Knowing").click()
    page.locator("#knowing-pictures figure").nth(4).wait_for()
    titles = page.locator("#knowing-pictures figcaption b").all_inner_texts()
    assert titles == ["information", "salience", "coupling", "balanced relevance", "kept cells"]
    before = page.locator("#knowing-pictures figure").nth(3).locator("img").get_attribute("src")
    window.screenshot("knowing")
    page.locator("#knowing-coupling input[type=range]").focus()
    page.keyboard.press("Home")
    page.locator("#knowing-bars", has_text="(by hand)").wait_for()
    assert re.search(r"coupling\s+0\.00", page.locator("#knowing-bars").inner_text())
    assert page.locator("#knowing-pictures figure").nth(3).locator("img").get_attribute("src") != before
    assert "weights=" in page.url
    page.locator("#knowing-reset").click()
    page.wait_for_function("!document.querySelector('#knowing-bars').innerText.includes('(by hand)')")
    page.wait_for_function("!location.search.includes('weights=')")


def test_reports(new_user: NewUser) -> None:
    window = new_user()
    page = window.open()
    page.get_by_role("tab", name="Report").click()
    page.locator("#report-folder input").fill("runs/first")
    page.keyboard.press("Enter")
    page.locator("#against-folder input").fill("runs/second")
    page.keyboard.press("Enter")
    page.locator("#report-go").click()
    page.frame_locator("#report-page iframe").get_by_text("Worst and best cases").wait_for()
    assert "No answer became right or wrong" in page.locator("#report-changes").inner_text()
    window.screenshot("report")
    page.locator("#report-folder input").fill("runs/none")
    page.keyboard.press("Enter")
    page.locator("#report-go").click()
    page.locator("#report-message [role=alert]", has_text="there is no folder 'runs/none'").wait_for()


def test_a_link_restores_the_page(new_user: NewUser) -> None:
    page = new_user().open("?tab=knowing&image=receipt&question=What+is+the+date%3F&exploit=0.25&budget=6.25%25")
    page.locator("#knowing-bars", has_text="(by hand)").wait_for()
    assert re.search(r"exploit\s+0\.25", page.locator("#knowing-bars").inner_text())
    assert page.locator("#question textarea").input_value() == "What is the date?"
    assert "54 of 860" in page.locator("#knowing-pictures").inner_text()
    other = new_user().open("?tab=kitchen")
    other.locator("#picture-message", has_text="This link cannot be read").wait_for()


def test_an_upload_is_visible_to_its_user_only(new_user: NewUser, tmp_path: Path) -> None:
    arr_coc.pictures.receipt().crop((0, 640, 560, 900)).save(tmp_path / "mine.jpg")
    mine, other = new_user().open(), new_user().open()
    mine.get_by_label("Remove Image").click()
    mine.locator("#picture input[type=file]").set_input_files(tmp_path / "mine.jpg")
    mine.locator("#picture img[src*='mine.jpg']").wait_for()  # the upload has arrived
    mine.wait_for_function("document.querySelector('#example input').value === 'my image'")
    mine.locator("#ask-go").click()
    mine.locator("#ask-dense output").wait_for()
    assert "37.40" in mine.locator("#ask-answer").inner_text()
    other.locator("#example input").click()
    other.get_by_role("option", name="my image").click()
    other.locator("#ask-go").click()
    other.locator("#ask-message [role=alert]", has_text="There is no image yet").wait_for()
    assert other.locator("#ask-pictures img").count() == 0


BAD_IMAGES = {
    "broken.png": (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "not an image|corrupt"),
    "letter.jpg": (b"Dear reader", "not an image"),
    "huge.png": (Image.new("1", (10_000, 10_000)), "10000 x 10000 pixels"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_bad_image_is_one_sentence(new_user: NewUser, tmp_path: Path, name: str) -> None:
    data, message = BAD_IMAGES[name]
    if isinstance(data, bytes):
        (tmp_path / name).write_bytes(data)
    else:
        data.save(tmp_path / name)
    window = new_user()
    page = window.open()
    page.get_by_label("Remove Image").click()
    page.locator("#picture input[type=file]").set_input_files(tmp_path / name)
    page.locator("#picture-message [role=alert]", has_text=re.compile(message)).wait_for()
    page.locator("#ask-go").click()
    page.locator("#ask-message [role=alert]", has_text="There is no image yet").wait_for()


def test_a_file_over_the_limit_is_refused(new_user: NewUser, tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(os.urandom(1_500_000))
    window = new_user()
    page = window.open()
    page.get_by_label("Remove Image").click()
    page.locator("#picture input[type=file]").set_input_files(tmp_path / "large.png")
    page.get_by_text(re.compile("exceed|too large", re.I)).first.wait_for()
    page.locator("#example input").click()
    page.get_by_role("option", name="receipt", exact=True).click()
    page.locator("#dense input").uncheck()
    page.locator("#ask-go").click()
    page.locator("#ask-answer output", has_text="37.40").wait_for()
    # Chromium logs the refused upload as an error.
    window.problems[:] = [problem for problem in window.problems if not re.search("upload|Response", problem)]


def test_bad_settings_are_one_sentence_and_the_page_goes_on(new_user: NewUser) -> None:
    page = new_user().open()
    question = page.locator("#question textarea")
    for text, message in (("", "There is no question yet"), ("why? " * 100, "at most 300 letters")):
        question.fill(text)
        page.locator("#ask-go").click()
        page.locator("#ask-message [role=alert]", has_text=message).wait_for()
    question.fill("What is the total amount? 合計 é {{1}}")
    page.get_by_text("Model, layer, exact budget").click()
    for field, text, message in (
        ("budget-words", "200%", "between 0% and 100%"),
        ("layer", "nowhere", "there is no folder"),
    ):
        box = page.locator(f"#{field} textarea, #{field} input")
        usual = box.input_value()
        box.fill(text)
        page.locator("#ask-go").click()
        page.locator("#ask-message [role=alert]", has_text=message).wait_for()
        box.fill(usual)
    page.locator("#dense input").uncheck()
    page.locator("#ask-go").click()
    page.locator("#ask-pictures img").nth(2).wait_for()
    assert page.locator("#ask-message").inner_text().strip() == ""


def test_a_phone_in_dark_mode(new_user: NewUser) -> None:
    window = new_user(width=390, dark=True)
    page = window.open("?tab=ask")
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
    window.screenshot("phone")
    page.locator("#theme").click()
    assert not page.evaluate("document.body.classList.contains('dark')")
