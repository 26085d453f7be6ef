"""`python -m recipes.reader.export_pages`: pages that this package's renderers did not draw, as a folder for the exam.

Chromium renders invoices, tables, settings and dialogs from HTML; matplotlib plots charts. Layouts, wording and phrasings have
nothing in common with the training drawings, so the exam shows what a reader does with documents of other makers. One question
in five is about something that the page does not show.
"""

import argparse
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from arr_coc.errors import ArrCocError
from arr_coc.training.documents.questions import NOT_FOUND

_FIRST = [
    "Amara",
    "Bodil",
    "Cyrus",
    "Delia",
    "Edvin",
    "Farah",
    "Gustav",
    "Hanne",
    "Ivo",
    "Jolanta",
    "Kofi",
    "Lieke",
    "Mateo",
    "Nadia",
    "Oskar",
    "Petra",
]
_LAST = [
    "Abernathy",
    "Brisebois",
    "Castellan",
    "Dvorak",
    "Ekdahl",
    "Fontaine",
    "Grzyb",
    "Halloran",
    "Iturbe",
    "Jankowska",
    "Kettering",
    "Lindqvist",
]
_FIRMS = [
    "Northwind Traders",
    "Bluegrass Supply Co.",
    "Atelier Morvan",
    "Helix Robotics",
    "Quay Street Press",
    "Tundra Outdoor",
]
_STREETS = ["Alder Lane", "Quarry Road", "Rue du Port", "Mill Street", "Harbour View", "Station Parade"]
_TOWNS = ["Leeds LS1 4AP", "Portland OR 97205", "Ghent 9000", "Tartu 51003", "Bergen 5003", "Cork T12 W8XY"]
_GOODS = [
    "Walnut desk",
    "Ergonomic mouse",
    "Screen cleaner",
    "Server audit",
    "Ink refill",
    "Felt board",
    "Patch cable",
    "Annual support",
]
_STYLES = (
    "body{font:16px Arial;color:#222;background:#fff}h1{font-size:30px}",
    "body{font:15px Georgia,serif;color:#111;background:#fffdf7}h1{font-size:26px;letter-spacing:2px}",
    "body{font:16px 'Courier New',monospace;color:#103;background:#f4f7fb}h1{font-size:24px}",
    "body{font:15px Verdana,sans-serif;color:#e8e8e8;background:#1d2330}h1{font-size:26px;color:#8fd3ff}",
)
_TABLE = "table{border-collapse:collapse;width:100%;margin:16px 0}td,th{padding:7px 9px;text-align:left;border-bottom:1px solid #9aa}"
_ABSENT = (
    "What is the flight number?",
    "Which doctor signed it?",
    "What is the licence plate?",
    "How tall is the mountain?",
    "What is the name of the dog?",
    "Which blood group is noted?",
)

Asked = tuple[str, str, str, str | None]  # kind, question, answer, id of the element that shows it


@dataclass
class _Page:
    """A page in HTML, and what is asked about it."""

    kind: str
    html: str
    width: int
    asked: list[Asked] = field(default_factory=list)


def _person(rng: random.Random) -> str:
    return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"


def _money(value: float, sign: str) -> str:
    return f"{sign}{value:,.2f}"


def _rows(pairs: list[tuple[str, str, str]]) -> str:
    """Rows of a label and a value whose element has an id."""
    return "".join(
        f"<tr><td>{escape(label)}</td><td id={name}>{escape(value)}</td></tr>" for label, value, name in pairs
    )


def _invoice(rng: random.Random) -> _Page:
    sign = rng.choice(("", "$", "£"))
    seller, buyer = rng.choice(_FIRMS), _person(rng)
    number = f"{rng.choice(('INV', 'R', 'BX'))}-{rng.randint(1000, 99999)}"
    day = f"{rng.randint(1, 28):02d} {rng.choice(['Jan', 'Mar', 'May', 'Aug', 'Oct', 'Dec'])} 20{rng.randint(19, 26)}"
    due = f"{rng.randint(1, 28):02d} {rng.choice(['Feb', 'Apr', 'Jun', 'Sep', 'Nov'])} 20{rng.randint(19, 26)}"
    bought = [
        (name, rng.randint(1, 9), rng.randint(300, 24000) / 100) for name in rng.sample(_GOODS, rng.randint(2, 5))
    ]
    net = sum(count * price for _, count, price in bought)
    tax = round(net * 0.2, 2)
    lines = "".join(
        f"<tr><td>{name}</td><td id=n{row}>{count}</td><td id=p{row}>{_money(price, sign)}</td><td>{_money(count * price, sign)}</td></tr>"
        for row, (name, count, price) in enumerate(bought)
    )
    meta = [
        (rng.choice(("Invoice no.", "Reference", "Number")), number, "number"),
        ("Issued", day, "day"),
        ("Payable by", due, "due"),
    ]
    sums = [
        ("Net", _money(net, sign), "net"),
        ("VAT 20%", _money(tax, sign), "tax"),
        ("To pay", _money(net + tax, sign), "total"),
    ]
    rng.shuffle(meta)
    address = f"{rng.randint(1, 250)} {rng.choice(_STREETS)}, {rng.choice(_TOWNS)}"
    html = (
        f"<h1>INVOICE</h1><p><b id=seller>{seller}</b><br>{rng.randint(1, 99)} {rng.choice(_STREETS)}</p>"
        f"<p>Billed to:<br><span id=buyer>{buyer}</span><br><span id=address>{address}</span></p><table>{_rows(meta)}</table>"
        f"<table><tr><th>Description</th><th>Qty</th><th>Each</th><th>Sum</th></tr>{lines}</table><table>{_rows(sums)}</table>"
    )
    row = rng.randrange(len(bought))
    item, count, price = bought[row]
    return _Page(
        "invoice", html, 760,
        [
            ("total", "How much money do they want altogether?", _money(net + tax, sign), "total"),
            ("date", "On what day was this bill written?", day, "day"),
            ("due date", "Until when can I pay?", due, "due"),
            ("number", "Which number does this invoice carry?", number, "number"),
            ("buyer", "To whom is it addressed?", buyer, "buyer"),
            ("seller", "Which company wrote the bill?", seller, "seller"),
            ("tax", "How much VAT is in it?", _money(tax, sign), "tax"),
            ("quantity", f"How many {item} were ordered?", str(count), f"n{row}"),
            ("price", f"What does one {item} cost?", _money(price, sign), f"p{row}"),
        ],
    )  # fmt: skip


def _table(rng: random.Random) -> _Page:
    heads = rng.sample(("Score", "Region", "Start", "Hours", "Rate", "Team"), 3)
    makers = {
        "Score": lambda: str(rng.randint(10, 990)), "Region": lambda: rng.choice(("North", "South", "Coast", "Hills")),
        "Start": lambda: f"{rng.randint(6, 20):02d}:{rng.choice(('00', '15', '30', '45'))}", "Hours": lambda: f"{rng.randint(1, 60)} h",
        "Rate": lambda: f"{rng.randint(1, 99)}%", "Team": lambda: rng.choice(("Red", "Amber", "Cobalt", "Ivory")),
    }  # fmt: skip
    people = sorted({_person(rng) for _ in range(rng.randint(4, 8))})
    cells = [[makers[head]() for head in heads] for _ in people]
    title = rng.choice(("Shift plan", "Results, round two", "Field offices", "Open accounts"))
    body = "".join(
        f"<tr><td>{name}</td>" + "".join(f"<td id=c{i}_{j}>{value}</td>" for j, value in enumerate(row)) + "</tr>"
        for i, (name, row) in enumerate(zip(people, cells, strict=True))
    )
    head = "".join(f"<th>{one}</th>" for one in ("Name", *heads))
    asked: list[Asked] = [("title", "What title does the page have?", title, "title")]
    for i in rng.sample(range(len(people)), 3):
        j = rng.randrange(3)
        asked.append(("cell", f"Which {heads[j].lower()} is listed next to {people[i]}?", cells[i][j], f"c{i}_{j}"))
    return _Page("table", f"<h1 id=title>{title}</h1><table><tr>{head}</tr>{body}</table>", 700, asked)


def _settings(rng: random.Random) -> _Page:
    values = {
        "Display name": _person(rng), "Language": rng.choice(("English", "Dutch", "Polish", "Welsh")), "Time zone": rng.choice(("UTC+1", "UTC-5", "UTC+8")),
        "Sync every": rng.choice(("5 minutes", "1 hour", "1 day")), "Storage used": f"{rng.randint(1, 99)} GB", "Backup": rng.choice(("Off", "Weekly", "Nightly")),
        "Text size": rng.choice(("Small", "Medium", "Large")),
    }  # fmt: skip
    shown = rng.sample(sorted(values), 5)
    title = rng.choice(("Preferences", "Account", "Device settings"))
    rows = _rows([(name, values[name], f"s{number}") for number, name in enumerate(shown)])
    button = rng.choice(("Save changes", "Apply now", "Done"))
    html = f"<h1 id=title>{title}</h1><table>{rows}</table><button id=button style='padding:10px 22px;font-size:16px'>{button}</button>"
    asked: list[Asked] = [
        ("setting", f"What is chosen for {shown[number].lower()}?", values[shown[number]], f"s{number}")
        for number in rng.sample(range(5), 3)
    ]
    return _Page(
        "screen",
        html,
        560,
        [
            *asked,
            ("title", "How is this screen headed?", title, "title"),
            ("button", "What is printed on the button?", button, "button"),
        ],
    )


def _dialog(rng: random.Random) -> _Page:
    code = f"{rng.choice(('E', '0x', 'ERR-'))}{rng.randint(100, 9999)}"
    message = rng.choice(
        (
            "The file could not be saved.",
            "Connection to the printer was lost.",
            "Your session has ended.",
            "The disk is almost full.",
        )
    )
    title, button = (
        rng.choice(("Something went wrong", "Warning", "Upload failed")),
        rng.choice(("Retry", "Dismiss", "Close window")),
    )
    html = (
        f"<div style='border:2px solid #888;border-radius:10px;padding:24px'><h1 id=title>{title}</h1><p id=message>{message}</p>"
        f"<p>Error code: <b id=code>{code}</b></p><button id=button style='padding:8px 20px;font-size:16px'>{button}</button></div>"
    )
    return _Page(
        "screen", html, 520,
        [
            ("code", "Which error code is reported?", code, "code"),
            ("message", "What does the message tell me?", message, "message"),
            ("title", "How is this window headed?", title, "title"),
            ("button", "What is printed on the button?", button, "button"),
        ],
    )  # fmt: skip


_HTML = (_invoice, _invoice, _table, _settings, _dialog)


def _rendered(
    pages: list[tuple[str, random.Random, _Page]], out: Path
) -> Iterator[tuple[str, _Page, dict[str, list[float]]]]:
    """Write each page as a PNG; gives its name and the boxes of its elements by id."""
    from playwright.sync_api import sync_playwright

    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        raise ArrCocError("the pages need a browser, and there is no Chromium: install the package chromium")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, rng, page in pages:
            view = chromium.new_page(viewport={"width": page.width, "height": 400})
            style = f"{rng.choice(_STYLES)}{_TABLE}body{{margin:{rng.randint(20, 44)}px}}"
            view.set_content(f"<style>{style}</style>{page.html}")
            view.screenshot(path=out / name, full_page=True)
            boxes = view.evaluate(
                "Object.fromEntries([...document.querySelectorAll('[id]')].map(e => {const b = e.getBoundingClientRect();"
                " return [e.id, [b.left, b.top, b.right, b.bottom]]}))"
            )
            view.close()
            yield name, page, boxes
        chromium.close()


def _chart(rng: random.Random, path: Path) -> list[Asked]:
    """Plot a chart into `path`; returns what is asked about it."""
    from matplotlib.figure import Figure

    names = rng.sample(("Oslo", "Lima", "Pune", "Kyiv", "Rabat", "Quito", "Turin"), rng.randint(3, 5))
    values = rng.sample(range(5, 95), len(names))
    title, unit = (
        rng.choice(("Rainy days", "Visitors per hour", "Parcels sent", "Energy use")),
        rng.choice(("count", "kWh", "units")),
    )
    figure = Figure(figsize=(6.4, rng.choice((4.2, 4.8))), dpi=100)
    axes = figure.subplots()
    style = rng.choice(("bar", "line", "barh"))
    if style == "line":
        axes.plot(names, values, marker="o")
    else:
        bars = (axes.bar if style == "bar" else axes.barh)(
            names, values, color=rng.choice(("#4878a8", "#c05040", "#55a868"))
        )
        if rng.random() < 0.6:
            axes.bar_label(bars)
    axes.set_title(title)
    (axes.set_xlabel if style == "barh" else axes.set_ylabel)(unit)
    figure.savefig(path)
    return [
        ("title", "How is the figure titled?", title, None),
        ("unit", "In which unit are the values?", unit, None),
        ("largest", "Which place has the highest value?", names[values.index(max(values))], None),
        ("smallest", "Which place has the lowest value?", names[values.index(min(values))], None),
    ]


def export_pages(out: Path, count: int, seed: int) -> int:
    """Write `count` pages with their questions; returns the number of questions."""
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []

    def add(name: str, rng: random.Random, kind: str, asked: list[Asked], boxes: dict[str, list[float]]) -> None:
        absent: list[Asked] = [("absent", rng.choice(_ABSENT), NOT_FOUND, None)]
        for what, question, answer, element in rng.sample(asked, min(4, len(asked))) + absent:
            row = {"image": name, "question": question, "answer": answer, "kind": f"{kind}: {what}"}
            rows.append(row | ({"evidence": [[boxes[element]]]} if element in boxes else {}))

    plans = [(number, random.Random(f"page {seed} {number}")) for number in range(count)]
    html = [(f"page_{n:03d}.png", rng, _HTML[n % 6](rng)) for n, rng in plans if n % 6 < len(_HTML)]
    for (name, page, boxes), (_, rng, _page) in zip(_rendered(html, out), html, strict=True):
        add(name, rng, page.kind, page.asked, boxes)
    for number, rng in plans:
        if number % 6 >= len(_HTML):
            name = f"chart_{number:03d}.png"
            add(name, rng, "chart", _chart(rng, out / name), {})
    (out / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.reader.export_pages", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the pictures and samples.jsonl go")
    parser.add_argument("--count", type=int, default=60, help="number of pages (60)")
    parser.add_argument("--seed", type=int, default=0, help="other pages for another number (0)")
    given = parser.parse_args()
    try:
        print(f"{export_pages(given.out, given.count, given.seed)} questions in {given.out}")
    except (ArrCocError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
