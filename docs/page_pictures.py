"""Take the screenshots of the web page for the documentation.

python docs/page_pictures.py
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

import arr_coc
from arr_coc.demo.app import load_app
from arr_coc.demo.limits import Limits
from arr_coc.demo.server import Address, serve
from arr_coc.errors import ArrCocError

TARGET = Path(__file__).with_name("images")
WIDE, PHONE = 1400, 390
MAX_HEIGHT = {WIDE: 1250, PHONE: 1900}  # pixels of a screenshot, by its width
TIMEOUT = 180_000  # milliseconds
ASKED = "image=receipt&question=What+is+the+total+amount%3F"
VIEWS = {  # the query of each view, and what is there when it is complete
    "ask": (f"?tab=ask&{ASKED}", "#ask-facts :text('median of 2 rounds')"),
    "compare": (
        f"?tab=compare&{ASKED}&selectors=arr-coc+divprune+saliency+uniform",
        "#compare-columns .cards > figure:nth-of-type(5) .viewer[data-ready]",
    ),
    "channels": ("?tab=channels&image=receipt&channel=text&point=0.8,0.62", "#channels-values b"),
    "knowing": (f"?tab=knowing&{ASKED}", "#knowing-pictures .viewer[data-ready]"),
    "report": ("?tab=report&report=with-layer&against=without", "#report-page iframe"),
}
# name of the picture: view, width, dark
PICTURES = {
    **{name: (name, WIDE, False) for name in VIEWS},
    "dark": ("ask", WIDE, True),
    "phone": ("ask", PHONE, False),
    "phone_dark": ("ask", PHONE, True),
}


def write_reports(root: Path) -> None:
    """Two small runs about the bundled receipt: with the trained layer and without."""
    data = root / "receipt"
    data.mkdir()
    arr_coc.pictures.receipt().save(data / "receipt.png")
    asked = {
        "What is the total amount?": ("37.40", [422, 732, 522, 772]),
        "How much is the Oat croissant?": ("3.45", [455, 424, 522, 454]),
    }
    lines = [
        {"image": "receipt.png", "question": question, "answer": answer, "evidence": [[box]]}
        for question, (answer, box) in asked.items()
    ]
    (data / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    selectors = ["all", "arr-coc", "divprune", "uniform"]
    for name, layer in (("with-layer", "auto"), ("without", None)):
        arr_coc.evaluate("reader", str(data), selectors, ["12.5%", "6.25%"], layer=layer).page(root / name)


def save_screenshot(page: Any, name: str, width: int) -> None:
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    shot.crop((0, 0, width, min(shot.height, MAX_HEIGHT[width]))).save(
        TARGET / f"page_{name}.jpg", quality=72, optimize=True
    )


def show_cell(page: Any) -> None:
    """Point at the cell of the total, so that its values are shown."""
    area = page.locator("#ask-pictures canvas").first.bounding_box()
    page.mouse.move(area["x"] + 0.8 * area["width"], area["y"] + 0.625 * area["height"])
    page.locator("#tip").wait_for()


def main() -> None:
    from playwright.sync_api import sync_playwright

    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        raise ArrCocError("the screenshots need a browser, and there is no Chromium: install the package chromium")
    options: dict[str, Any] = {"executable_path": browser, "args": ["--no-sandbox"] if os.geteuid() == 0 else []}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        write_reports(Path(folder))
        app = load_app(["reader"], Limits(), Path(folder))
        with serve(app, Address()) as address:
            chromium = driver.chromium.launch(**options)
            for name, (view, width, dark) in PICTURES.items():
                query, ready = VIEWS[view]
                height = 1250 if name in ("ask", "dark") else 900
                shape: Any = {"width": width, "height": height}
                page = chromium.new_page(viewport=shape, color_scheme="dark" if dark else "light")
                page.goto(address + query)
                page.locator(ready).first.wait_for(timeout=TIMEOUT)
                page.wait_for_timeout(800)
                if name == "dark":
                    show_cell(page)
                save_screenshot(page, name, width)
                page.close()
            chromium.close()


if __name__ == "__main__":
    main()
