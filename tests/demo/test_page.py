"""The page in a real browser: every tab is used, without console errors and without requests to other servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import arr_coc
import arr_coc.demo.markup
from arr_coc.demo.security import HEADERS
from arr_coc.demo.server import find_port
from tests.demo.browser import REQUIRED, WatchedPage, executable, launch_options

if executable() is None and not os.environ.get(REQUIRED):
    pytest.skip("no Chromium here (Debian: apt-get install chromium): the page is not tried", allow_module_level=True)

sync_api = pytest.importorskip("playwright.sync_api")
TIMEOUT = 60_000  # milliseconds; the machine may be busy
NewUser = Callable[..., WatchedPage]


@pytest.fixture(scope="module")
def address(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`arr-coc demo` as a process. After the tests SIGTERM ends it with code 0, and it leaves no file."""
    port = find_port("127.0.0.1", None)
    temporary = tmp_path_factory.mktemp("temporary")
    options = ["--port", str(port), "--files", str(files), "--data", str(files / "data"), "--letters", "300"]
    with subprocess.Popen(
        [sys.executable, "-m", "arr_coc.cli", "demo", *options, "--megabytes", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert "The page is at" in line, process.stderr.read() if process.stderr else ""
        yield f"http://127.0.0.1:{port}/"
        process.send_signal(signal.SIGTERM)
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
    page = window.page
    page.goto("about:blank")  # the page's own policy would block the request
    page.evaluate(
        "console.error('broken'); setTimeout(() => { throw new Error('worse') }); fetch('http://127.0.0.1:1/').catch(() => {})"
    )
    page.wait_for_timeout(500)
    assert any("broken" in problem for problem in window.problems)
    assert any("worse" in problem for problem in window.problems)
    assert "request to http://127.0.0.1:1/" in window.problems
    page.close()


CAPTION = "#ask-pictures .panel[data-layer=kept] figcaption > span"


def wait_for_start(page: Any) -> None:
    """The page opens with the receipt answered."""
    page.locator("#ask-answer output", has_text="37.40").wait_for()
    page.locator("#ask-pictures .viewer[data-ready]").wait_for()
    page.locator("#ask-copy-python:enabled").wait_for()


def test_the_page_opens_with_an_answer(new_user: NewUser, tmp_path: Path) -> None:
    window = new_user()
    page = window.open()
    wait_for_start(page)
    page.locator("#ask-answer .verdict.right").wait_for()
    assert page.locator("#ask-answer .token").all_inner_texts() == list("37.40")
    page.locator("#ask-strip .stop-cell").nth(5).wait_for()
    assert "209 of 860" in page.locator(CAPTION).inner_text()
    assert "860 in total, 516 encoded" in page.locator("#ask-facts").inner_text()
    page.locator("#ask-facts", has_text="speed-up").wait_for()
    assert page.locator("#ask-dense output").inner_text() == "37.40"
    window.screenshot("ask")
    page.locator("#ask-copy-python").click()
    page.locator("#ask-copy-python", has_text="Copied").wait_for()
    code = page.evaluate("navigator.clipboard.readText()")
    assert "vlm.ask(picture, 'What is the total amount?', budget='auto', glance='auto', selector='arr-coc'" in code
    page.locator("#ask-copy-link").click()
    page.locator("#ask-copy-link", has_text="Copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.endswith("?tab=ask&image=receipt&question=What+is+the+total+amount%3F")
    with page.expect_download() as coming:
        page.locator("#ask-save-json").click()
    coming.value.save_as(tmp_path / "answer.json")
    assert json.loads((tmp_path / "answer.json").read_text())["answer"] == "37.40"
    page.get_by_role("tab", name="Report").click()
    page.locator("#report-copy-python").wait_for()
    assert page.locator("#report-copy-python").is_disabled()  # there is nothing to copy


def test_cells_follow_the_budget_slider_and_the_answer_is_stale(new_user: NewUser) -> None:
    page = new_user().open()
    wait_for_start(page)
    slider, auto = page.locator("#budget-stop input[type=range]"), page.locator("#budget-auto input")
    assert auto.is_checked()
    area = slider.bounding_box()
    page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    page.mouse.down()
    page.mouse.move(area["x"] + 1, area["y"] + area["height"] / 2, steps=3)
    page.locator(CAPTION, has_text="9 of 860").wait_for()  # 1%, while the slider is held
    page.mouse.up()
    assert not auto.is_checked()
    assert page.locator("#budget-readout").inner_text() == "1%"
    assert page.locator("#tab-ask .stale-note").is_visible()
    assert page.locator("#ask-answer output").inner_text() == "37.40"
    page.wait_for_function("!document.querySelector('#ask-viewer').classList.contains('stale')")
    auto.check()
    page.locator(CAPTION, has_text="209 of 860").wait_for()
    page.wait_for_function("!document.documentElement.classList.contains('stale-ask')")  # it fits again
    page.locator("#question textarea").fill("Where is the shop?")
    page.locator("#tab-ask .stale-note").wait_for()
    assert "stale" in page.locator("#ask-viewer").get_attribute("class")


def test_cells_terms_and_layers_explain_themselves(new_user: NewUser, tmp_path: Path) -> None:
    page = new_user().open()
    wait_for_start(page)
    tip = page.locator("#tip")
    page.locator("#ask-facts .term", has_text="particularize").hover()
    assert "matches few of them" in tip.inner_text()
    canvas = page.locator("#ask-pictures canvas").first
    canvas.focus()
    page.keyboard.press("ArrowDown")
    assert re.match(r"row 23, column 11: (read|encoded|not encoded)", tip.inner_text())
    for name in ("relevance", "information", "coupling", "edges", "saliency"):
        assert re.search(rf"{name}\s*-?\d", tip.text_content()), name
    pixels = "canvas => canvas.toDataURL()"
    relevance, kept = (page.locator("#ask-pictures canvas").nth(i).evaluate(pixels) for i in (0, 1))
    page.locator("#ask-pictures input.split").check()
    assert page.locator("#ask-pictures .panel:visible").count() == 1
    both = canvas.evaluate(pixels)
    assert both not in (relevance, kept)
    page.locator("#ask-pictures .divider").fill("100")
    half = "canvas => canvas.getContext('2d').getImageData(0, 0, 200, canvas.height).data.join()"
    split_left = canvas.evaluate(half)
    page.locator("#ask-pictures input.split").uncheck()
    assert canvas.evaluate(half) == split_left  # the left layer on the whole picture
    page.locator("#ask-pictures select.layer").first.select_option("channel text")
    page.locator("#ask-pictures figcaption", has_text="likelihood that a pixel").wait_for()
    with page.expect_download() as coming:
        page.locator("#ask-pictures button.save").nth(1).click()
    coming.value.save_as(tmp_path / "kept.png")
    allocation = arr_coc.load("reader").prepare(
        arr_coc.pictures.receipt(), "What is the total amount?", budget="auto", glance="auto"
    )
    expected = allocation.allocations[0].overlay(arr_coc.demo.markup.shrink(arr_coc.pictures.receipt()))
    saved = Image.open(tmp_path / "kept.png").convert("RGB")
    difference = np.abs(np.asarray(saved, dtype=float) - np.asarray(expected, dtype=float))
    assert difference.mean() < 3  # the page's image is a JPEG


def test_back_returns_to_the_last_view(new_user: NewUser) -> None:
    page = new_user().open("?utm_source=letter")
    wait_for_start(page)
    page.locator("#dense input").uncheck()
    page.locator(".chip", has_text="What is the date?").click()
    page.locator("#ask-answer output", has_text="12/03/2026").wait_for()
    page.wait_for_url(re.compile(r"question=What\+is\+the\+date"))
    page.get_by_role("tab", name="Channels").click()
    page.locator(".tile[data-channel=red]").wait_for()
    assert not page.locator("#question").is_visible()
    assert not page.locator("#budget-stop").is_visible()
    page.go_back()
    page.locator("[role=tab][aria-selected=true]", has_text="Ask").wait_for()
    page.locator("#question textarea").wait_for()
    assert page.locator("#ask-answer output").inner_text() == "12/03/2026"
    page.go_back()
    page.wait_for_function("document.querySelector('#question textarea').value === 'What is the total amount?'")
    page.locator("#ask-answer output", has_text="37.40").wait_for()


def test_quick_presses_of_back_and_forward_end_at_the_last_one(new_user: NewUser) -> None:
    """Presses come before the server has answered the one before. The page then shows what its address says."""
    page = new_user().open()
    wait_for_start(page)
    page.locator("#dense input").uncheck()
    answers = {"date": "12/03/2026", "company": "HARBOUR MILL BAKERY"}
    for question in ("date", "company"):
        page.locator(".chip", has_text=question).click()
        page.wait_for_url(re.compile(rf"question=[^&]*{question}"))
        page.locator("#ask-answer output", has_text=answers[question]).wait_for()
    page.get_by_role("tab", name="Channels").click()
    page.locator(".tile[data-channel=red]").wait_for()
    entries, shown = page.evaluate("history.length"), "document.querySelector('#ask-answer output').innerText"
    for steps, question in (
        ((-1, -1), "date"),
        ((1, -1, 1), "company"),
        ((-2, 1, -1, 1), "date"),
    ):
        page.evaluate(
            "async (steps) => { for (const step of steps) { history.go(step); "
            "await new Promise((done) => addEventListener('popstate', done, { once: true })); } }",
            steps,
        )
        page.wait_for_function(
            "(question) => arrcoc.restored === arrcoc.step && arrcoc.shown.ask.replaceAll('+', ' ').includes(question)",
            arg=question,
        )
        page.wait_for_function(f"(answer) => {shown} === answer", arg=answers[question])
        page.wait_for_function(
            "(question) => document.querySelector('#question textarea').value.includes(question)", arg=question
        )
        assert page.evaluate("history.length") == entries


def test_security_headers_and_the_host_header(address: str) -> None:
    with urllib.request.urlopen(address) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
    assert HEADERS.items() <= headers.items()
    other = urllib.request.Request(address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(other)


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
    cards = page.locator("#compare-columns .cards > figure")
    cards.nth(3).locator("td", has_text="%").wait_for()
    assert cards.locator("figcaption > b").all_inner_texts()[::2] == ["all tokens", "arr-coc", "divprune", "uniform"]
    assert "✓ right" in cards.first.inner_text()
    page.locator("#compare-note", has_text="as many cells as arr-coc finds enough").wait_for()
    assert "box=" in page.url
    window.screenshot("compare")


def test_channels(new_user: NewUser) -> None:
    window = new_user()
    page = window.open()
    page.get_by_role("tab", name="Channels").click()
    page.locator(".tile[data-channel=red]").wait_for()
    assert page.locator(".tile:visible").count() == 17
    assert "23 channels are empty" in page.locator(".folded summary").inner_text()
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
    page.locator("#knowing-pictures .viewer[data-ready]").wait_for()
    titles = [title.lower() for title in page.locator("#knowing-pictures figcaption b").all_inner_texts()]
    assert titles == ["information", "salience", "coupling", "balanced relevance", "kept cells"]
    relevance = page.locator("#knowing-pictures canvas").nth(3)
    before = relevance.evaluate("canvas => canvas.toDataURL()")
    window.screenshot("knowing")
    page.locator("#knowing-coupling input[type=range]").focus()
    page.keyboard.press("Home")
    page.locator("#knowing-bars", has_text="(by hand)").wait_for()
    assert re.search(r"coupling\s+0\.00", page.locator("#knowing-bars").inner_text())
    page.locator("#knowing-pictures .viewer[data-ready]").wait_for()
    assert relevance.evaluate("canvas => canvas.toDataURL()") != before
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


def test_an_upload_is_visible_to_its_user_only_and_a_reload_says_that_it_is_gone(
    new_user: NewUser, tmp_path: Path
) -> None:
    arr_coc.pictures.receipt().crop((0, 640, 560, 900)).save(tmp_path / "mine.jpg")
    mine, other = new_user().open(), new_user().open()
    wait_for_start(mine)
    mine.locator("#dense input").uncheck()
    mine.get_by_label("Remove Image").click()
    mine.locator("#picture input[type=file]").set_input_files(tmp_path / "mine.jpg")
    mine.locator("#picture img[src*='mine.jpg']").wait_for()  # the upload has arrived
    mine.wait_for_function("document.querySelector('#example input').value === 'my image'")
    assert mine.locator("#tab-ask .stale-note").is_visible()
    mine.locator("#ask-go").click()
    mine.wait_for_url(re.compile("image=&"))
    assert "37.40" in mine.locator("#ask-answer").inner_text()
    other.locator("#example input").click()
    other.get_by_role("option", name="my image").click()
    other.locator("#ask-go").click()
    other.locator("#ask-message [role=alert]", has_text="There is no image yet").wait_for()
    assert other.locator("#ask-pictures canvas").count() == 0
    mine.reload()
    mine.locator("#picture-message [role=alert]", has_text="dropped when the page was reloaded").wait_for()
    assert mine.locator("#example input").input_value() == "my image"
    assert mine.locator("#picture img").count() == 0
    assert mine.locator("#ask-answer output").count() == 0


BAD_IMAGES = {
    "broken.png": (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "not an image|corrupt"),
    "letter.jpg": (b"Dear reader", "not an image"),
    "huge.png": (Image.new("1", (10_000, 10_000)), "10000 x 10000 pixels"),
    "large.png": (os.urandom(1_500_000), "at most 1 MB, got 'large.png' with 1.5 MB"),
}


def test_a_bad_image_is_one_sentence_that_stays(new_user: NewUser, tmp_path: Path) -> None:
    page = new_user().open()
    page.get_by_label("Remove Image").click()
    for name, (data, message) in BAD_IMAGES.items():
        if isinstance(data, bytes):
            (tmp_path / name).write_bytes(data)
        else:
            data.save(tmp_path / name)
        page.locator("#picture input[type=file]").set_input_files(tmp_path / name)
        page.locator("#picture-message [role=alert]", has_text=re.compile(message)).wait_for()
        page.locator("#picture img").wait_for(state="detached")  # the refused image goes, the reason stays
    page.locator("#question textarea").fill("What?")
    page.locator("#ask-go").click()
    page.locator("#ask-message [role=alert]", has_text="There is no image yet").wait_for()
    assert "at most 1 MB" in page.locator("#picture-message").inner_text()
    page.locator("#example input").click()
    page.get_by_role("option", name="receipt", exact=True).click()
    page.locator("#picture-message").wait_for(state="hidden")


def test_bad_settings_are_one_sentence_and_the_page_goes_on(new_user: NewUser) -> None:
    page = new_user().open()
    question = page.locator("#question textarea")
    for text, message in (("", "Expected a question, got an empty one"), ("why? " * 100, "at most 300 characters")):
        question.fill(text)
        page.locator("#ask-go").click()
        page.locator("#ask-message [role=alert]", has_text=message).wait_for()
    question.fill("What is the total amount? 合計 é {{1}}")
    page.get_by_text("Selector, model, exact budget").click()
    for field, text, message in (
        ("budget", "200%", "between 0% and 100%"),
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
    page.locator("#ask-pictures .viewer[data-ready]").wait_for()
    assert page.locator("#ask-message [role=alert]").count() == 0


def test_a_phone_in_dark_mode(new_user: NewUser) -> None:
    window = new_user(width=390, dark=True)
    page = window.open()
    wait_for_start(page)
    answer = page.locator("#ask-answer .answer").bounding_box()
    assert answer["y"] + answer["height"] < 844  # above the fold
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
