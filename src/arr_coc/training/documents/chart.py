"""Charts: vertical, horizontal and grouped bars, lines and pies, with axes, ticks, legends and at times value labels.

The evidence of a value is its label on the axis, the end of its bar and the number: the printed one, or the ticks around it.
"""

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from arr_coc.training.documents.names import FIRST, TOWNS, Names
from arr_coc.training.documents.notice import ON_DARK, ON_LIGHT, Colour, vary_colour
from arr_coc.training.documents.page import Document, Font, FontSet, Page, load_font
from arr_coc.training.documents.phrasings import Asker

_FINE = 2  # shapes are drawn at twice the size, so that their edges are smooth
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_SUBJECTS = [
    "Sales",
    "Revenue",
    "Visitors",
    "Rainfall",
    "Output",
    "Exports",
    "Members",
    "Orders",
    "Energy use",
    "Traffic",
    "Downloads",
    "Profit",
    "Costs",
    "Births",
    "Temperature",
    "Production",
    "Complaints",
    "Deliveries",
    "Passengers",
    "Water level",
    "Votes",
    "Bookings",
]
_UNITS = [
    "EUR",
    "USD",
    "kg",
    "tons",
    "thousands",
    "units",
    "km",
    "litres",
    "hours",
    "percent",
    "points",
    "million",
    "people",
]
_GOODS = [
    "Coffee",
    "Tea",
    "Bread",
    "Apples",
    "Rice",
    "Milk",
    "Fish",
    "Cheese",
    "Shoes",
    "Books",
    "Bikes",
    "Phones",
    "Lamps",
    "Chairs",
    "Toys",
    "Paint",
    "Tiles",
    "Wool",
    "Steel",
    "Glass",
]


@dataclass
class _Chart:
    """One chart while it is drawn. `left` to `bottom` is the plotting area."""

    page: Page
    rng: random.Random
    asker: Asker
    path: str
    size: int
    ink: Colour
    paper: Colour
    palette: list[tuple[str, Colour]]
    left: float = 0
    top: float = 0
    right: float = 0
    bottom: float = 0

    def __post_init__(self) -> None:
        self.fine = Image.new("RGB", (self.page.width * _FINE, self.page.height * _FINE), self.paper)
        self.draw = ImageDraw.Draw(self.fine)

    def font(self, change: int = 0) -> Font:
        return load_font(self.path, max(9, self.size + change))

    def write(self, x: float, y: float, words: str, align: str = "left", change: int = 0) -> int:
        return self.page.write(x, y, words, self.font(change), self.ink, align)

    def box(
        self, left: float, top: float, right: float, bottom: float, fill: Colour, outline: Colour | None = None
    ) -> None:
        self.draw.rectangle([_FINE * side for side in (left, top, right, bottom)], fill=fill, outline=outline)

    def line(self, points: list[tuple[float, float]], ink: Colour, width: float = 1) -> None:
        self.draw.line([(_FINE * x, _FINE * y) for x, y in points], fill=ink, width=round(_FINE * width), joint="curve")

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        self.draw.ellipse([_FINE * side for side in (x - radius, y - radius, x + radius, y + radius)], fill=fill)

    def show_shapes(self) -> None:
        """Put the shapes onto the page. Texts come after this."""
        self.page.image.paste(self.fine.reduce(_FINE))


@dataclass(frozen=True)
class _Axis:
    """The axis of values: `low` to `high` in steps of `step`."""

    step: float
    high: float
    low: float = 0

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        return [self.low + self.step * k for k in range(round((self.high - self.low) / self.step) + 1)]

    @staticmethod
    def shown(value: float) -> str:
        return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 else f"{value:.2f}".rstrip("0")


def _axis(rng: random.Random) -> _Axis:
    step = rng.choice((1, 2, 5, 10, 10, 20, 25, 50, 100, 200, 500, 1000, 0.5, 0.2))
    return _Axis(step, step * rng.randint(4, 8))


def _categories(rng: random.Random, who: Names, count: int) -> tuple[str, list[str]]:
    """What the categories are, and their names, all different."""
    style = rng.random()
    if style < 0.2:
        first = rng.randint(1985, 2026 - count)
        return "Year", [str(first + k) for k in range(count)]
    if style < 0.35:
        start = rng.randint(0, 12 - min(12, count))
        return "Month", _MONTHS[start : start + count]
    if style < 0.43 and count <= 8:
        return "Quarter", [f"Q{k % 4 + 1} {2020 + k // 4}" for k in range(count)]
    kind, listed = rng.choice((("City", TOWNS), ("Product", tuple(_GOODS)), ("Name", FIRST), ("Team", ())))
    found: list[str] = []
    while len(found) < count:
        name = rng.choice(listed) if listed and not who.invented and rng.random() < 0.8 else who.last()
        name = name if listed or rng.random() < 0.5 else f"Team {chr(65 + len(found))}"
        if not any(name in other or other in name for other in found):
            found.append(name)
    return kind, found


def _values(rng: random.Random, axis: _Axis, count: int, exact: bool) -> list[float]:
    """Values with one largest and one smallest; on half ticks unless they are printed (`exact`)."""
    while True:
        halves = round(2 * axis.high / axis.step)
        if exact:
            unit = 1 if axis.high > 20 else 0.1
            values = [round(rng.uniform(0.06, 1) * axis.high / unit) * unit for _ in range(count)]
        else:
            values = [rng.randint(1, halves) * axis.step / 2 for _ in range(count)]
        if values.count(max(values)) == 1 and values.count(min(values)) == 1:
            return [round(value, 2) for value in values]


def _series_names(rng: random.Random, who: Names, count: int) -> list[str]:
    style = rng.random()
    if style < 0.3:
        return ["2023", "2024", "2025", "2026"][:count]
    if style < 0.5:
        return rng.sample(("North", "South", "East", "West", "Export"), count)
    if style < 0.7:
        return rng.sample(("Online", "Shop", "Phone", "Mail", "Partner"), count)
    found: list[str] = []
    while len(found) < count:
        name = who.company().rsplit(" ", 1)[0] if style < 0.8 else rng.choice(_GOODS) if style < 0.9 else who.first()
        if not any(name in other or other in name for other in found):
            found.append(name)
    return found


def _title(chart: _Chart, subject: str, suffix: str) -> float:
    """The title at the top; returns where the chart may begin."""
    rng = chart.rng
    if rng.random() < 0.12:
        chart.asker.ask_absent("chart title") if rng.random() < 0.5 else None
        return chart.size * 1.2
    font = chart.font(rng.choice((2, 4, 6)))
    title = font.shorten(f"{subject} {suffix}", chart.page.width - 20)
    at, x = rng.choice((("center", chart.page.width / 2), ("center", chart.page.width / 2), ("left", 14.0)))
    index = chart.page.write(x, chart.size * 0.7, title, font, chart.ink, at)
    chart.asker.ask("chart title", title, (index,))
    return chart.size * 1.2 + font.size * 1.6


def _legend(
    chart: _Chart, names: list[str], colours: list[tuple[str, Colour]], top: float, beside: bool
) -> list[tuple[int, int]]:
    """Swatches and names, below each other at the right or in a row under the title; returns `(swatch, name)` lines."""
    size = chart.size
    x = chart.page.width - 12 - max(chart.font().width(name) for name in names) - size * 1.4 if beside else chart.left
    y, found = top, []
    for name, (_, colour) in zip(names, colours, strict=True):
        square = (x, y, x + size, y + size)
        chart.page.draw.rectangle(square, fill=colour)
        found.append((chart.page.mark(square), chart.write(x + size * 1.4, y + size * 0.1, name)))
        if beside:
            y += size * 1.7
        else:
            x += chart.font().width(name) + size * 3
    return found


def _ask_legend(
    chart: _Chart, names: list[str], colours: list[tuple[str, Colour]], legend: list[tuple[int, int]]
) -> None:
    k = chart.rng.randrange(len(names))
    chart.asker.ask("legend colour", colours[k][0], legend[k], series=names[k])
    k = chart.rng.randrange(len(names))
    chart.asker.ask("legend series", names[k], legend[k], colour=colours[k][0])
    if chart.rng.random() < 0.3:
        other = next(name for name in sorted(ON_LIGHT) if name not in {used for used, _ in colours})
        chart.asker.ask_absent("legend series", colour=other)


def _write_axes(chart: _Chart, axis: _Axis, category: str, subject: str, unit: str, sideways: bool) -> dict[float, int]:
    """Tick labels and axis titles; returns the line of each tick."""
    rng, size = chart.rng, chart.size
    ticks = {}
    for value in axis.ticks:
        shown = axis.shown(value)
        if sideways:
            x = chart.left + axis.share(value) * (chart.right - chart.left)
            ticks[value] = chart.write(x, chart.bottom + size * 0.5, shown, "center")
        else:
            y = chart.bottom - axis.share(value) * (chart.bottom - chart.top)
            ticks[value] = chart.write(chart.left - 6, y - chart.font().ascent / 2, shown, "right")
    values = rng.choice((f"{subject} ({unit})", f"{subject} in {unit}", unit))
    upright, flat = (category, values) if sideways else (values, category)
    middle = (chart.left + chart.right) / 2, (chart.top + chart.bottom) / 2
    if rng.random() < 0.7:
        words = chart.font().shorten(upright, chart.bottom - chart.top)
        index = chart.page.write_upwards(size * 0.9, middle[1], words, chart.font(), chart.ink)
        chart.asker.ask("y axis", words, (index,))
    elif rng.random() < 0.5:
        chart.asker.ask_absent("y axis")
    if rng.random() < 0.6:
        index = chart.write(middle[0], chart.page.height - size * 1.35, flat, "center")
        chart.asker.ask("x axis", flat, (index,))
    elif rng.random() < 0.5:
        chart.asker.ask_absent("x axis")
    return ticks


def _around(axis: _Axis, ticks: dict[float, int], value: float) -> tuple[int, ...]:
    """The ticks at or next to a value."""
    return tuple(index for tick, index in ticks.items() if abs(tick - value) < axis.step * 0.99)


def _bars(chart: _Chart, who: Names, kind: str, top: float) -> str:
    """Bars: "bar" upright, "sideways", or "grouped" with two or three series."""
    rng, size = chart.rng, chart.size
    sideways, grouped = kind == "sideways", kind == "grouped"
    count = rng.randint(2, 5) if grouped else rng.randint(3, 9)
    category, names = _categories(rng, who, count)
    axis, labelled = _axis(rng), rng.random() < 0.5
    series = _series_names(rng, who, rng.randint(2, 3) if grouped else 1)
    subject, unit = rng.choice(_SUBJECTS), rng.choice(_UNITS)
    data = [_values(rng, axis, count, labelled) for _ in series]
    top += size * 1.8 if grouped else 0
    widest = max(chart.font().width(name) for name in names) if sideways else chart.font().width(axis.shown(axis.high))
    chart.left, chart.right = size * 2.4 + widest, chart.page.width - size * (2.5 if labelled and sideways else 1.5)
    chart.top, chart.bottom = top + size * (1.3 if labelled else 0.4), chart.page.height - size * 3.8
    colours = chart.palette[: len(series)]
    varied = not grouped and rng.random() < 0.3
    span = (chart.bottom - chart.top if sideways else chart.right - chart.left) / count
    thick = span * rng.uniform(0.5, 0.85) / len(series)
    _grid(chart, axis, sideways)
    ends: dict[tuple[int, int], tuple[float, float, float, float]] = {}
    for s, values in enumerate(data):
        for k, value in enumerate(values):
            colour = chart.palette[k % len(chart.palette)][1] if varied else colours[s][1]
            start = span * k + (span - thick * len(series)) / 2 + thick * s
            if sideways:
                box = (chart.left, chart.top + start, chart.left + axis.share(value) * (chart.right - chart.left), chart.top + start + thick)  # fmt: skip
            else:
                box = (chart.left + start, chart.bottom - axis.share(value) * (chart.bottom - chart.top), chart.left + start + thick, chart.bottom)  # fmt: skip
            chart.box(*box, fill=colour)
            ends[s, k] = box
    chart.show_shapes()
    ticks = _write_axes(chart, axis, category, subject, unit, sideways)
    labels = [_category_label(chart, name, span, k, sideways) for k, name in enumerate(names)]
    legend = _legend(chart, series, colours, top - size * 1.4, beside=False) if grouped else []
    if grouped:
        _ask_legend(chart, series, colours, legend)
    asked = rng.sample(sorted(ends), min(len(ends), 4))
    for s, k in sorted(ends):
        left, high, right, low = ends[s, k]
        value, printed = data[s][k], -1
        if labelled and (sideways or chart.font(-2).width(axis.shown(value)) < thick + 6):
            spot = (right + 4, (high + low) / 2 - chart.font(-2).ascent / 2, "left") if sideways else ((left + right) / 2, high - size * 0.95, "center")  # fmt: skip
            printed = chart.write(spot[0], spot[1], axis.shown(value), spot[2], -2)
        end = chart.page.mark(
            (max(left, right - 14), high, right, low) if sideways else (left, high, right, min(low, high + 14))
        )
        if (s, k) not in asked or (labelled and printed < 0) or labels[k] < 0:
            continue
        needed = (labels[k], end, *((printed,) if printed >= 0 else _around(axis, ticks, value)))
        if grouped:
            chart.asker.ask("series value", axis.shown(value), (*needed, *legend[s]), series=series[s], name=names[k])
        else:
            chart.asker.ask("value", axis.shown(value), needed, name=names[k])
    if not grouped:
        for kind_, best in (("largest", max(data[0])), ("smallest", min(data[0]))):
            k = data[0].index(best)
            if labels[k] >= 0:
                chart.asker.ask(kind_, names[k], (labels[k], chart.page.mark(ends[0, k])))
    return f"{subject} by {category.lower()}: " + ", ".join(names)


def _category_label(chart: _Chart, name: str, span: float, k: int, sideways: bool) -> int:
    """A category's name at its bar; -1 if it does not fit."""
    if sideways:
        if chart.font().size > span:
            return -1
        return chart.write(chart.left - 6, chart.top + span * (k + 0.5) - chart.font().ascent / 2, name, "right")
    change = next((c for c in (0, -2, -4) if chart.font(c).width(name) < span - 3), None)
    if change is None:
        return -1
    return chart.write(chart.left + span * (k + 0.5), chart.bottom + chart.size * 0.5, name, "center", change)


def _grid(chart: _Chart, axis: _Axis, sideways: bool) -> None:
    """Axes, and often lines at the ticks."""
    rng = chart.rng
    pale = (205, 205, 205) if sum(chart.paper) > 380 else (80, 80, 85)
    lines = rng.random() < 0.65
    for value in axis.ticks:
        if sideways:
            x = chart.left + axis.share(value) * (chart.right - chart.left)
            chart.line([(x, chart.top if lines else chart.bottom), (x, chart.bottom + 4)], pale if lines else chart.ink)
        else:
            y = chart.bottom - axis.share(value) * (chart.bottom - chart.top)
            chart.line([(chart.left - 4, y), (chart.right if lines else chart.left, y)], pale if lines else chart.ink)
    chart.line([(chart.left, chart.top), (chart.left, chart.bottom), (chart.right, chart.bottom)], chart.ink)


def _lines(chart: _Chart, who: Names, top: float) -> str:
    """One to three lines over time."""
    rng, size = chart.rng, chart.size
    count, several = rng.randint(4, 9), rng.random() < 0.6
    category, names = _categories(rng, who, count)
    while category not in ("Year", "Month", "Quarter"):
        category, names = _categories(rng, who, count)
    axis = _axis(rng)
    series = _series_names(rng, who, rng.randint(2, 3)) if several else [rng.choice(_SUBJECTS)]
    subject, unit = (rng.choice(_SUBJECTS) if several else series[0]), rng.choice(_UNITS)
    trends = [rng.choice(("rising", "falling", "up and down")) for _ in series]
    data = [_course(rng, axis, count, trend) for trend in trends]
    top += size * 1.8 if several else 0
    chart.left, chart.right = size * 2.4 + chart.font().width(axis.shown(axis.high)), chart.page.width - size * 1.8
    chart.top, chart.bottom = top + size * 0.4, chart.page.height - size * 3.8
    _grid(chart, axis, False)
    span = (chart.right - chart.left) / count
    points = [
        [
            (chart.left + span * (k + 0.5), chart.bottom - axis.share(v) * (chart.bottom - chart.top))
            for k, v in enumerate(values)
        ]
        for values in data
    ]
    marked = rng.random() < 0.7
    for s, course in enumerate(points):
        chart.line(course, chart.palette[s][1], rng.choice((1.5, 2, 3)))
        for x, y in course if marked else ():
            chart.disc(x, y, size * 0.25, chart.palette[s][1])
    chart.show_shapes()
    ticks = _write_axes(chart, axis, category, subject, unit, False)
    labels = [_category_label(chart, name, span, k, False) for k, name in enumerate(names)]
    legend = _legend(chart, series, chart.palette[: len(series)], top - size * 1.4, beside=False) if several else []
    if several:
        _ask_legend(chart, series, chart.palette[: len(series)], legend)
    marks = [[chart.page.mark((x - 8, y - 8, x + 8, y + 8)) for x, y in course] for course in points]
    for s, name in enumerate(series):
        known = legend[s] if several else ()
        chart.asker.ask("trend", trends[s], (*known, *marks[s]), series=name)
        for k in rng.sample(range(count), 2):
            needed = (labels[k], marks[s][k], *_around(axis, ticks, data[s][k]), *known)
            if labels[k] < 0:
                continue
            if several:
                chart.asker.ask("series value", axis.shown(data[s][k]), needed, series=name, name=names[k])
            else:
                chart.asker.ask("value", axis.shown(data[s][k]), needed, name=names[k])
    if not several:
        for kind, best in (("largest", max(data[0])), ("smallest", min(data[0]))):
            k = data[0].index(best)
            if data[0].count(best) == 1 and labels[k] >= 0:
                chart.asker.ask(kind, names[k], (labels[k], marks[0][k]))
    return f"{subject} by {category.lower()}, {names[0]} to {names[-1]}: " + ", ".join(
        f"{name} is {trend}" for name, trend in zip(series, trends, strict=True)
    )


def _course(rng: random.Random, axis: _Axis, count: int, trend: str) -> list[float]:
    """A course on half ticks: it never turns, or it turns at every step."""
    halves = round(2 * axis.high / axis.step)
    if trend == "up and down":
        low, high = rng.randint(1, halves // 2 - 1), rng.randint(halves // 2 + 1, halves)
        found = [high if k % 2 else low for k in range(count)]
        return [min(halves, max(1, value + rng.choice((-1, 0, 0, 1)))) * axis.step / 2 for value in found]
    found = sorted(rng.randint(1, halves) for _ in range(count - 2))
    found = sorted([rng.randint(1, 2), *found, rng.randint(halves - 2, halves)])
    return [value * axis.step / 2 for value in (found if trend == "rising" else found[::-1])]


def _pie(chart: _Chart, who: Names, top: float) -> str:
    """A pie or a ring with shares in percent."""
    rng, size = chart.rng, chart.size
    count = rng.randint(3, min(6, len(chart.palette)))
    category, names = _categories(rng, who, count)
    while category in ("Year", "Month", "Quarter"):
        category, names = _categories(rng, who, count)
    shares = _shares(rng, count)
    subject = rng.choice(_SUBJECTS)
    wide, tall = chart.page.width, chart.page.height - top - size
    radius = min(wide * 0.3, tall * 0.46)
    x, y = wide * rng.uniform(0.32, 0.36), top + tall / 2
    angle, middles = rng.uniform(0, 360), []
    for share, (_, colour) in zip(shares, chart.palette, strict=False):
        frame = [_FINE * side for side in (x - radius, y - radius, x + radius, y + radius)]
        chart.draw.pieslice(frame, angle, angle + 3.6 * share, fill=colour, outline=chart.paper, width=_FINE)
        middles.append(math.radians(angle + 1.8 * share))
        angle += 3.6 * share
    ring = rng.random() < 0.3
    if ring:
        chart.disc(x, y, radius * 0.5, chart.paper)
    chart.show_shapes()
    colours = chart.palette[:count]
    legend = _legend(chart, names, colours, y - count * size * 0.85, beside=True)
    printed = rng.random() < 0.75
    for k, (share, at) in enumerate(zip(shares, middles, strict=True)):
        far = radius * (0.75 if ring else 0.65)
        spot = x + far * math.cos(at), y + far * math.sin(at)
        reach = radius * 0.3
        slice_ = chart.page.mark((spot[0] - reach, spot[1] - reach, spot[0] + reach, spot[1] + reach))
        if printed and share >= 6:
            ink = (255, 255, 255) if sum(colours[k][1]) < 420 else (20, 20, 20)
            number = chart.page.write(spot[0], spot[1] - size * 0.35, f"{share}%", chart.font(), ink, "center")
            chart.asker.ask("share", f"{share}%", (number, *legend[k]), name=names[k])
        for kind, best in (("largest", max(shares)), ("smallest", min(shares))):
            if share == best and shares.count(best) == 1:
                chart.asker.ask(kind, names[k], (slice_, *legend[k]))
    _ask_legend(chart, names, colours, legend)
    return f"{subject} by {category.lower()}: " + ", ".join(names)


def _shares(rng: random.Random, count: int) -> list[int]:
    """Percentages that add up to 100, none below 4."""
    cuts = sorted(rng.sample(range(1, 100 - 4 * count), count - 1))
    return [4 + high - low for low, high in zip((0, *cuts), (*cuts, 100 - 4 * count), strict=True)]


def render(
    rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False, invented: bool = False
) -> Document:
    """A chart on a page of `width` x `height` pixels, in colour."""
    dark = rng.random() < 0.12
    level = rng.randint(20, 40) if dark else rng.randint(244, 255)
    paper, grey = (level, level, level + (6 if dark else 0)), rng.randint(0, 80)
    palette = [(name, vary_colour(rng, colour)) for name, colour in (ON_DARK if dark else ON_LIGHT).items()]
    palette = [(name, colour) for name, colour in palette if name not in ("black", "white")]
    rng.shuffle(palette)
    chart = _Chart(
        Page(width, height, paper),
        rng,
        Asker(rng, held_out),
        fonts.pick(rng, 0.1),
        size=max(10, min(20, round(min(width / 40, height / 26)))),
        ink=(225, 225, 225) if dark else (grey, grey, grey),
        paper=paper,
        palette=palette,
    )
    kind = rng.choice(("bar", "bar", "sideways", "grouped", "grouped", "line", "line", "pie"))
    top = chart.size * 4.0
    who = Names(rng, invented)
    if kind == "line":
        content = _lines(chart, who, top)
    elif kind == "pie":
        content = _pie(chart, who, top)
    else:
        content = _bars(chart, who, kind, top)
    subject = content.split(" by ")[0]
    _title(
        chart, subject, rng.choice(("per year", "in 2025", "overview", "at a glance", "compared", "report", "by group"))
    )
    shown = {
        "bar": "bar chart",
        "sideways": "bar chart",
        "grouped": "grouped bar chart",
        "line": "line chart",
        "pie": "pie chart",
    }[kind]
    if rng.random() < 0.3:
        whole = chart.page.mark((chart.left, chart.top, chart.right or width, chart.bottom or height))
        chart.asker.ask("chart kind", shown, (whole,))
    return chart.page.document(chart.asker.questions, summary=f"A {shown} of {content}.")
