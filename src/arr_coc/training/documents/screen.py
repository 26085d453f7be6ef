"""Screens: settings, dialogs with a message, web forms, and tables in windows, with light and dark themes."""

import random
from dataclasses import dataclass
from typing import Any

from arr_coc.training.documents import names, text
from arr_coc.training.documents.names import Names
from arr_coc.training.documents.page import Document, Font, FontSet, Page, load_font
from arr_coc.training.documents.phrasings import Asker

Colour = tuple[int, int, int]
_SWITCHES = [
    "Wi-Fi",
    "Bluetooth",
    "Dark mode",
    "Airplane mode",
    "Notifications",
    "Location services",
    "Automatic updates",
    "Night light",
    "Battery saver",
    "Sync",
    "Airdrop sharing",
    "Sounds",
    "Vibration",
    "Spell check",
    "Cloud backup",
    "Two-factor login",
    "Hotspot",
    "Do not disturb",
    "Crash reports",
    "Private browsing",
    "Autofill",
    "Screen lock",
    "Mobile data",
    "Read receipts",
    "Auto-save",
    "High contrast",
    "Show hidden files",
    "Remember password",
    "Guest access",
    "Animations",
]
_OPTIONS: dict[str, tuple[str, ...]] = {
    "Language": ("English", "Deutsch", "Italiano", "Polski", "Nederlands", "Suomi"),
    "Region": ("Canada", "Austria", "Kenya", "Japan", "Chile", "Ireland"),
    "Theme": ("Light", "Dark", "System", "Solarized", "Sepia"),
    "Text size": ("Small", "Medium", "Large", "120%", "150%"),
    "Time zone": ("UTC+1", "UTC-5", "UTC+9", "UTC", "UTC+3"),
    "Resolution": ("1920 x 1080", "1280 x 720", "2560 x 1440", "3840 x 2160"),
    "Sleep after": ("5 minutes", "10 minutes", "30 minutes", "Never"),
    "Default browser": ("Fox", "Compass", "Bluebird", "Lynx"),
    "Keyboard": ("QWERTY", "QWERTZ", "AZERTY", "Dvorak"),
    "Download folder": ("Downloads", "Desktop", "D:/Files", "Shared"),
    "Ringtone": ("Chimes", "Marimba", "Radar", "Harp"),
    "Brightness": ("20%", "45%", "60%", "85%", "100%"),
    "Volume": ("10%", "35%", "50%", "80%"),
    "Backup": ("Daily", "Weekly", "Monthly", "Off"),
    "Printer": ("Office 2", "LaserJet 40", "None", "Canteen"),
}
_MESSAGES = [
    "The file {file} could not be opened.",
    "Cannot connect to {host}. Check your network connection.",
    "Not enough disk space to save {file}.",
    "Your session has expired. Please sign in again.",
    "Do you want to save changes to {file}?",
    "The printer {host} is offline.",
    "Access to {file} was denied.",
    "An update is available. Restart now to install it.",
    "The password you entered is wrong.",
    "{file} already exists. Do you want to replace it?",
    "The payment was declined by your bank.",
    "Are you sure you want to delete {file}?",
    "The server {host} did not respond in time.",
    "Low battery: {n} percent left.",
    "The download of {file} is complete.",
    "{n} items were moved to the trash.",
    "The device was removed before it was ejected.",
    "Unknown user name {name}.",
]
_BUTTONS = [
    "OK",
    "OK, Cancel",
    "Retry, Cancel",
    "Yes, No",
    "Yes, No, Cancel",
    "Save, Don't save, Cancel",
    "Replace, Keep both, Cancel",
    "Restart now, Later",
    "Delete, Cancel",
    "Close",
    "Try again, Help",
    "Allow, Deny",
    "Sign in, Cancel",
    "Send report, Don't send",
]
_APPS = [
    "Files",
    "Editor",
    "Mail",
    "Player",
    "Photos",
    "Notes",
    "Calendar",
    "Browser",
    "Terminal",
    "Maps",
    "Backup",
    "Writer",
    "Sheets",
    "Paint",
    "Chat",
    "Updater",
]
_PAGES = [
    "General",
    "Account",
    "Privacy",
    "Display",
    "Sound",
    "Network",
    "Security",
    "Storage",
    "Apps",
    "Accessibility",
    "Updates",
    "About",
]


@dataclass
class _Screen:
    """One screen while it is drawn: its page, font, theme and questions."""

    page: Page
    rng: random.Random
    asker: Asker
    who: Names
    path: str
    bold: str
    size: int
    dark: bool
    accent: Colour

    def __post_init__(self) -> None:
        level = 38 if self.dark else self.rng.randint(246, 255)
        self.panel: Colour = (level, level, level + (4 if self.dark else 0))
        self.ink: Colour = (230, 230, 232) if self.dark else (30, 30, 34)
        self.faint: Colour = (150, 150, 155) if self.dark else (110, 110, 115)
        self.edge: Colour = (85, 85, 92) if self.dark else (200, 200, 206)

    def font(self, change: int = 0, bold: bool = False) -> Font:
        return load_font(self.bold if bold else self.path, max(9, self.size + change))

    def write(
        self, x: float, y: float, words: str, align: str = "left", ink: Colour | None = None, bold: bool = False
    ) -> int:
        """Write with the middle of the capitals at height `y`."""
        font = self.font(bold=bold)
        return self.page.write(x, y - font.ascent / 2, words, font, ink or self.ink, align)

    def rounded(
        self, box: tuple[float, float, float, float], fill: Colour | None, outline: Colour | None = None
    ) -> None:
        self.page.draw.rounded_rectangle(box, radius=min(8.0, (box[3] - box[1]) / 2), fill=fill, outline=outline)

    def file(self) -> str:
        word = self.rng.choice(
            (
                text.invented_word(self.rng, (1, 3)).lower(),
                self.who.last().lower(),
                "report",
                "photo",
                "budget",
                "notes",
            )
        )
        return f"{word}{self.rng.choice(('', '_2', '-final', str(self.rng.randint(1, 99))))}.{self.rng.choice(('pdf', 'txt', 'docx', 'png', 'zip', 'csv', 'mp3'))}"


def _window(screen: _Screen, left: float, top: float, right: float, bottom: float, title: str) -> float:
    """A window with a title bar; returns where its content begins."""
    rng, size, draw = screen.rng, screen.size, screen.page.draw
    bar = size * 2.0
    shade = rng.choice((screen.panel, screen.edge, screen.accent))
    draw.rectangle((left + 4, top + 5, right + 4, bottom + 5), fill=tuple(part // 2 + 20 for part in screen.edge))
    screen.rounded((left, top, right, bottom), screen.panel, screen.edge)
    screen.rounded((left, top, right, top + bar), shade, screen.edge)
    ink: Colour = (255, 255, 255) if sum(shade) < 400 else (30, 30, 34)
    middle = top + bar / 2
    if rng.random() < 0.5:  # round buttons at the left
        for k, colour in enumerate(((240, 95, 90), (245, 190, 70), (95, 200, 90))):
            x = left + size * (0.9 + 1.3 * k)
            draw.ellipse((x - size * 0.35, middle - size * 0.35, x + size * 0.35, middle + size * 0.35), fill=colour)
        index = screen.write((left + right) / 2, middle, title, "center", ink)
    else:
        index = screen.write(left + size * 0.9, middle, title, ink=ink)
        x, arm = right - size * 1.2, size * 0.35
        draw.line((x - arm, middle - arm, x + arm, middle + arm), fill=ink, width=2)
        draw.line((x - arm, middle + arm, x + arm, middle - arm), fill=ink, width=2)
        draw.rectangle((x - size * 1.9, middle - arm, x - size * 1.9 + 2 * arm, middle + arm), outline=ink)
        draw.line((x - size * 3.3, middle, x - size * 3.3 + 2 * arm, middle), fill=ink, width=2)
    screen.asker.ask("window title", title, (index,))
    return top + bar


def _buttons(screen: _Screen, labels: list[str], right: float, y: float, left: float) -> None:
    """A row of buttons that ends at `right`; one is highlighted."""
    size = screen.size
    main = screen.rng.choice((0, 0, len(labels) - 1))
    x = right
    found: list[Any] = []
    for k, label in reversed(list(enumerate(labels))):
        wide = screen.font().width(label) + size * 2.2
        if x - wide < left:
            continue
        box = (x - wide, y, x, y + size * 2)
        fill = screen.accent if k == main else screen.panel
        screen.rounded(box, fill, screen.accent if k == main else screen.edge)
        index = screen.write(x - wide / 2, y + size, label, "center", (255, 255, 255) if k == main else screen.ink)
        found.insert(0, (label, index))
        if k == main:
            screen.asker.ask("main button", label, (screen.page.mark(box), index))
        x -= wide + size * 0.8
    if found:
        screen.asker.ask("buttons", ", ".join(label for label, _ in found), tuple(index for _, index in found))


def _switch(screen: _Screen, right: float, y: float, on: bool, style: str) -> tuple[int, ...]:
    """A switch or check box that ends at `right`; returns its lines."""
    size, draw = screen.size, screen.page.draw
    if style == "word":
        return (screen.write(right, y, "On" if on else "Off", "right", screen.accent if on else screen.faint),)
    if style == "check":
        box = (right - size * 1.1, y - size * 0.55, right, y + size * 0.55)
        draw.rectangle(box, fill=screen.accent if on else screen.panel, outline=screen.faint)
        if on:
            points = [
                (box[0] + size * 0.2, y),
                (box[0] + size * 0.45, y + size * 0.3),
                (box[2] - size * 0.15, y - size * 0.3),
            ]
            draw.line(points, fill=(255, 255, 255), width=2)
        return (screen.page.mark(box),)
    box = (right - size * 2.2, y - size * 0.6, right, y + size * 0.6)
    screen.page.draw.rounded_rectangle(box, radius=size * 0.6, fill=screen.accent if on else screen.edge)
    x = right - size * 0.6 if on else right - size * 1.6
    draw.ellipse((x - size * 0.45, y - size * 0.45, x + size * 0.45, y + size * 0.45), fill=(250, 250, 250))
    return (screen.page.mark(box),)


def _tabs(screen: _Screen, left: float, top: float, bottom: float) -> float:
    """A list of pages at the left, one selected; returns where the content begins."""
    rng, size = screen.rng, screen.size
    pages = rng.sample(_PAGES, rng.randint(4, 8))
    wide = max(screen.font().width(page) for page in pages) + size * 2
    chosen = rng.randrange(min(4, len(pages)))
    screen.page.draw.rectangle((left, top, left + wide, bottom), fill=tuple(max(0, part - 12) for part in screen.panel))
    y = top + size * 1.5
    for k, page in enumerate(pages):
        if y > bottom - size:
            break
        if k == chosen:
            screen.rounded((left + 3, y - size, left + wide - 3, y + size), screen.accent)
        index = screen.write(left + size, y, page, ink=(255, 255, 255) if k == chosen else screen.ink)
        if k == chosen:
            screen.asker.ask("tab", page, (index,))
        y += size * 2.1
    return left + wide


def _settings(screen: _Screen) -> str:
    rng, size, page = screen.rng, screen.size, screen.page
    phone = page.height > page.width * 1.1
    title = rng.choice(("Settings", "Preferences", "Options", "System settings", f"{rng.choice(_APPS)} settings"))
    if phone:
        left, right, bottom = size * 0.5, page.width - size * 0.5, float(page.height - 4)
        y = size * 3.0
        screen.page.draw.rectangle((0, 0, page.width, page.height), fill=screen.panel)
        index = screen.page.write(left + size, size * 1.0, title, screen.font(6, bold=True), screen.ink)
        screen.asker.ask("heading", title, (index,))
    else:
        left, top = size * rng.uniform(0.8, 2.5), size * rng.uniform(0.8, 2)
        right, bottom = page.width - size * rng.uniform(1, 3), page.height - size * rng.uniform(1, 2.5)
        y = _window(screen, left, top, right, bottom, title)
        if rng.random() < 0.6:
            left = _tabs(screen, left, y, bottom)
    style, step = rng.choice(("switch", "switch", "check", "word")), size * rng.uniform(2.3, 3.2)
    y += step * 0.7
    rows: list[str] = [*rng.sample(_SWITCHES, 8), *rng.sample(sorted(_OPTIONS), 5)]
    rng.shuffle(rows)
    shown = []
    for name in rows:
        if y > bottom - size * 1.2:
            break
        index = screen.write(left + size, y, screen.font().shorten(name, (right - left) * 0.62))
        if name in _OPTIONS:
            value = rng.choice(_OPTIONS[name])
            if screen.font().width(value) > (right - left) * 0.32:
                continue
            screen.asker.ask(
                "option", value, (index, screen.write(right - size, y, value, "right", screen.faint)), name=name
            )
        else:
            on = rng.random() < 0.5
            found = _switch(screen, right - size, y, on, style)
            screen.asker.ask("setting", "on" if on else "off", (index, *found), name=name)
        shown.append(name)
        if rng.random() < 0.8:
            page.rule(left + size * 0.6, right - size * 0.6, y + step / 2, screen.edge)
        y += step
    absent = rng.choice([name for name in (*_SWITCHES, *_OPTIONS) if name not in shown])
    screen.asker.ask_absent("option" if absent in _OPTIONS else "setting", name=absent)
    return f"A settings screen with {', '.join(shown[:4])}."


def _dialog(screen: _Screen) -> str:
    rng, size, page = screen.rng, screen.size, screen.page
    wide = min(page.width - size * 2, page.width * rng.uniform(0.6, 0.85))
    message = rng.choice(_MESSAGES).format(
        file=screen.file(), host=screen.who.domain(), n=rng.randint(2, 40), name=screen.who.last().lower()
    )
    left = (page.width - wide) * rng.uniform(0.3, 0.7)
    rows = screen.font().wrap(message, wide - size * 5.5)
    code = rng.choice(
        ("", "", f"0x{rng.randrange(16**8):08X}", f"E{rng.randint(100, 9999)}", f"{rng.randint(400, 599)}")
    )
    tall = size * (7.2 + 1.5 * len(rows) + (1.8 if code else 0))
    top = max(4.0, (page.height - tall) * rng.uniform(0.3, 0.6))
    _clutter(screen, top)
    title = rng.choice(
        (rng.choice(_APPS), "Error", "Warning", f"{rng.choice(_APPS)} - Error", "Information", "Confirm")
    )
    y = _window(screen, left, top, left + wide, top + tall, title) + size * 1.6
    _symbol(screen, left + size * 2, y + size * 0.8)
    found = []
    for row in rows:
        found.append(screen.write(left + size * 4.2, y, row))
        y += size * 1.5
    screen.asker.ask("message", " ".join(rows), tuple(found))
    if code:
        label = rng.choice(("Error code: ", "Code: ", "Error "))
        screen.asker.ask(
            "error code", code, (screen.write(left + size * 4.2, y + size * 0.3, label + code, ink=screen.faint),)
        )
    else:
        screen.asker.ask_absent("error code")
    _buttons(screen, rng.choice(_BUTTONS).split(", "), left + wide - size, top + tall - size * 3, left + size)
    return f"A dialog that says: {' '.join(rows)}"


def _symbol(screen: _Screen, x: float, y: float) -> None:
    """The symbol of a dialog: an error, a warning or a hint."""
    size, draw, kind = screen.size * 1.1, screen.page.draw, screen.rng.choice(("error", "warning", "hint"))
    if kind == "warning":
        draw.polygon([(x, y - size), (x + size * 1.1, y + size), (x - size * 1.1, y + size)], fill=(245, 190, 40))
        draw.line((x, y - size * 0.4, x, y + size * 0.35), fill=(40, 40, 40), width=3)
        draw.ellipse((x - 2, y + size * 0.55, x + 2, y + size * 0.55 + 4), fill=(40, 40, 40))
        return
    draw.ellipse((x - size, y - size, x + size, y + size), fill=(205, 50, 45) if kind == "error" else (45, 110, 210))
    arm = size * 0.4
    if kind == "error":
        draw.line((x - arm, y - arm, x + arm, y + arm), fill=(255, 255, 255), width=3)
        draw.line((x - arm, y + arm, x + arm, y - arm), fill=(255, 255, 255), width=3)
    else:
        draw.line((x, y - size * 0.1, x, y + size * 0.6), fill=(255, 255, 255), width=3)
        draw.ellipse((x - 2, y - size * 0.55, x + 2, y - size * 0.55 + 4), fill=(255, 255, 255))


def _clutter(screen: _Screen, bottom: float) -> None:
    """Symbols of files on the desk behind a dialog."""
    size, rng = screen.size, screen.rng
    y = size
    while y + size * 4 < bottom and rng.random() < 0.8:
        for k in range(rng.randint(1, 4)):
            x = size * (1.5 + 7 * k)
            screen.rounded(
                (x, y, x + size * 1.6, y + size * 1.8), rng.choice(((240, 200, 90), (120, 170, 230), (235, 235, 235)))
            )
            font = screen.font(-3)
            screen.page.write(
                x - size * 0.5, y + size * 2.1, font.shorten(screen.file(), size * 6), font, (240, 240, 240)
            )
        y += size * 4


_ENTRIES = "First name, Last name, Email, Phone, Street, City, Postcode, Country, Company, User name, Date of birth, Card number, Coupon, Comment"


def _entry(screen: _Screen, name: str) -> str:
    rng, who = screen.rng, screen.who
    made = {
        "First name": who.first, "Last name": who.last, "Email": who.email, "Street": who.street, "City": who.town,
        "Company": who.company, "Country": lambda: rng.choice(names.COUNTRIES), "Phone": lambda: names.phone(rng),
        "Postcode": lambda: text.digits(rng, 5), "Date of birth": lambda: names.date(rng),
        "Card number": lambda: " ".join(text.digits(rng, 4) for _ in range(4)), "Coupon": lambda: text.code(rng),
        "User name": lambda: f"{who.first().lower()}{rng.randint(1, 99)}", "Comment": lambda: text.words(rng, 1, 3).capitalize(),
    }  # fmt: skip
    return made[name]()


def _web_form(screen: _Screen) -> str:
    rng, size, page = screen.rng, screen.size, screen.page
    page.draw.rectangle((0, 0, page.width, page.height), fill=screen.panel)
    y = size * 0.8
    if rng.random() < 0.7:  # the address bar
        page.draw.rectangle((0, 0, page.width, size * 3), fill=screen.edge)
        screen.rounded((size * 3, size * 0.5, page.width - size * 2, size * 2.5), screen.panel)
        url = f"https://www.{screen.who.domain()}/{rng.choice(('order', 'signup', 'login', 'contact', 'account'))}"
        screen.asker.ask(
            "website", url, (screen.write(size * 4, size * 1.5, screen.font().shorten(url, page.width - size * 8)),)
        )
        y = size * 4
    heading = rng.choice(
        ("Create account", "Sign up", "Checkout", "Contact us", "Your details", "Delivery address", "Register")
    )
    index = page.write(size * 2, y, heading, screen.font(8, bold=True), screen.ink)
    screen.asker.ask("heading", heading, (index,))
    y += size * 3
    left, right = size * 2, min(page.width - size * 2, size * rng.uniform(26, 42))
    beside = rng.random() < 0.4
    fields = rng.sample(_ENTRIES.split(", "), 10)
    absent, shown = fields.pop(), []
    step = size * (3.0 if beside else 4.3)
    start = left + (max(screen.font().width(name) for name in fields) + size if beside else 0)
    for name in fields:
        if y + step > page.height - size * 3.5:
            break
        label = screen.write(
            left,
            y + (size if beside else 0),
            name + rng.choice(("", "", " *", ":")),
            ink=screen.ink if beside else screen.faint,
        )
        top = y if beside else y + size * 0.9
        box = (start, top, right, top + size * 2.1)
        screen.rounded(box, screen.panel if screen.dark else (255, 255, 255), screen.edge)
        if rng.random() < 0.85:
            value = screen.font().shorten(_entry(screen, name), right - start - size)
            found = screen.write(start + size * 0.6, top + size * 1.05, value)
            screen.asker.ask("entry", value, (label, found), name=name)
        else:
            screen.asker.ask("entry", "empty", (label, page.mark(box)), name=name)
        shown.append(name)
        y += step
    screen.asker.ask_absent("entry", name=absent)
    if rng.random() < 0.6 and y + size * 4 < page.height:
        wish, on = (
            rng.choice(("I accept the terms", "Send me news", "Remember me", "Gift wrapping")),
            rng.random() < 0.5,
        )
        tick = _switch(screen, left + size * 1.1, y + size * 0.5, on, "check")
        words = screen.write(left + size * 1.8, y + size * 0.5, wish)
        screen.asker.ask("setting", "on" if on else "off", (*tick, words), name=wish)
        y += size * 2
    _buttons(
        screen,
        rng.choice(("Submit", "Send, Reset", "Sign up", "Continue, Back", "Place order, Cancel")).split(", "),
        right,
        y + size * 0.3,
        left,
    )
    return f'A web form "{heading}" with {", ".join(shown)}.'


def _file_table(screen: _Screen) -> str:
    rng, size, page = screen.rng, screen.size, screen.page
    left, top = size * rng.uniform(0.6, 2), size * rng.uniform(0.6, 2)
    right, bottom = page.width - size * rng.uniform(0.8, 2), page.height - size * rng.uniform(0.8, 2)
    people = rng.random() < 0.4
    title = (
        rng.choice(("Users", "Team", "Contacts"))
        if people
        else rng.choice(("Downloads", "Documents", "Projects", "Backup"))
    )
    y = _window(screen, left, top, right, bottom, title) + size * 1.3
    columns = ("Name", "Role", "Status") if people else ("Name", "Size", "Modified")
    places = (left + size, left + (right - left) * 0.5, left + (right - left) * 0.72)
    heads = [screen.write(x, y, column, bold=True) for x, column in zip(places, columns, strict=True)]
    page.rule(left, right, y + size, screen.edge)
    y += size * 2
    chosen, form, rows = rng.randrange(12), rng.randrange(6), []
    for number in range(rng.randint(4, 14)):
        if y > bottom - size:
            break
        if number == chosen:
            page.draw.rectangle((left + 1, y - size * 0.9, right - 1, y + size * 0.9), fill=screen.accent)
        ink = (255, 255, 255) if number == chosen else screen.ink
        if people:
            cells = (
                screen.who.person(),
                rng.choice(("Admin", "Editor", "Guest", "Owner")),
                rng.choice(("active", "away", "blocked", "invited")),
            )
        else:
            cells = (screen.file(), f"{rng.randint(1, 999)} {rng.choice(('KB', 'MB'))}", names.date(rng, form))
        cells = (screen.font().shorten(cells[0], places[1] - places[0] - 8), *cells[1:])
        rows.append((cells, [screen.write(x, y, cell, ink=ink) for x, cell in zip(places, cells, strict=True)]))
        y += size * 1.9
    listed = [cells[0] for cells, _ in rows]
    for cells, found in rng.sample(rows, min(4, len(rows))):
        k = rng.randint(1, 2)
        if sum(cells[0] in other for other in listed) == 1:
            screen.asker.ask("file", cells[k], (found[0], found[k], heads[k]), row=cells[0], column=columns[k].lower())
    stranger = screen.who.person() if people else screen.file()
    if not any(stranger in other or other in stranger for other in listed):
        screen.asker.ask_absent("file", row=stranger, column=columns[1].lower())
    return f'A window "{title}" that lists {", ".join(listed[:4])}.'


def render(
    rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False, invented: bool = False
) -> Document:
    """A screen of `width` x `height` pixels, in colour."""
    desk: Colour = (rng.randint(20, 110), rng.randint(40, 120), rng.randint(60, 160))
    path = fonts.pick(rng, 0.05)
    screen = _Screen(
        Page(width, height, desk),
        rng,
        Asker(rng, held_out),
        Names(rng, invented),
        path,
        fonts.heavier(path),
        size=max(10, min(18, round(min(width / 38, height / 22)))),
        dark=rng.random() < 0.3,
        accent=rng.choice(((40, 105, 215), (25, 140, 90), (120, 70, 190), (200, 80, 30), (180, 40, 80), (60, 70, 90))),
    )
    summary = rng.choice((_settings, _settings, _dialog, _web_form, _file_table))(screen)
    return screen.page.document(screen.asker.questions, summary=summary)
