"""Small papers: bank slips, tickets, timetables, letters, business cards and labels, with questions as people ask them."""

import random
from collections.abc import Sequence

from arr_coc.training.documents import names, text
from arr_coc.training.documents.invoice import Colour, Paper
from arr_coc.training.documents.page import Document, FontSet

Row = tuple[str, Sequence[str], str, float]  # kind of question, labels to choose from, value, how often it is printed

_JOBS = (
    "Sales Manager", "Software Engineer", "Head of Design", "Tax Adviser", "Architect", "Managing Director", "Dentist",
    "Research Assistant", "Photographer", "Account Manager", "Electrician", "Physiotherapist", "Editor", "Lawyer",
    "Product Owner", "Chief Financial Officer", "Consultant", "Interior Designer", "Professor of Chemistry", "Translator",
)  # fmt: skip
_EVENTS = (
    "Summer Concert", "The Magic Flute", "Jazz Night", "City Marathon", "Film Festival", "Book Fair", "Hamlet", "Open Air",
    "Museum Night", "Ice Hockey Final", "Comedy Evening", "Swan Lake", "Science Day", "Rock in the Park", "Chess Open",
)  # fmt: skip
_VENUES = (
    "Town Hall",
    "Opera House",
    "Main Stage",
    "Arena",
    "Park Theatre",
    "Museum Hall",
    "Stadium",
    "Cinema 3",
    "Club",
)
_SUBJECTS = (
    "Maths", "English", "History", "Biology", "Music", "Art", "Physics", "Sports", "Chemistry", "Geography", "French",
    "Drama", "Computing", "Free", "Library", "Assembly",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_FOODS = (
    "Strawberry Jam", "Oat Biscuits", "Olive Oil", "Tomato Soup", "Green Tea", "Rye Bread", "Goat Cheese", "Apple Juice",
    "Dark Chocolate", "Wild Rice", "Honey", "Peanut Butter", "Muesli", "Yoghurt", "Smoked Salmon", "Lentil Curry",
)  # fmt: skip
_STORAGE = (
    "Keep cool and dry.", "Store below 8 degrees.", "Keep refrigerated.", "Keep away from light.", "Store frozen.",
    "Once opened, use within 3 days.",
)  # fmt: skip
_REASONS = (
    "Your application", "Change of address", "Rent for flat {n}", "Invitation to an interview", "Your order {n}",
    "Annual inspection", "Notice of termination", "Complaint about delivery {n}", "Parking permit", "Our meeting",
    "School trip", "Insurance claim {n}", "Repair of the lift", "Membership", "Delay of your delivery",
)  # fmt: skip
_OPENINGS = (
    "Thank you for your letter.", "We write to you about the matter above.", "We are glad to hear from you.",
    "I hope that this letter finds you well.", "Please read this letter carefully.", "Thank you for your patience.",
)  # fmt: skip
_FILLERS = (
    "All documents that you sent have arrived.", "If you have questions, please call us.", "Nothing else has changed.",
    "Please bring this letter with you.", "We regret the delay.", "The papers are enclosed.",
    "We ask you to reply within two weeks.", "You do not need to do anything else.", "Costs are covered by us.",
)  # fmt: skip


def _clock(rng: random.Random, first: int = 5, last: int = 23) -> int:
    """A time in minutes after midnight, in steps of one or of five."""
    minute = rng.randrange(first * 60, last * 60)
    return minute if rng.random() < 0.5 else minute // 5 * 5


def _hours(minutes: int) -> str:
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def _rows(
    paper: Paper, x: float, right: float, y: float, rows: Sequence[Row], layout: str, bottom: float = float("inf")
) -> float:
    """Labels with their values, from `y` down; `layout`: inline, columns, or stacked (the label small above). Returns the end.

    A row that is left out is asked for as something absent.
    """
    rng = paper.rng
    small = paper.font(-3)
    indent = max(paper.font(bold=True).width(label + "  ") for _, labels, _, _ in rows for label in labels)
    for kind, labels, value, chance in rows:
        label = rng.choice(labels)
        at = {"inline": x + paper.font().width(label + "  "), "columns": x + indent, "stacked": x}[layout]
        fits = at + paper.font(bold=True).width(value) <= right and y + paper.step * 2 < bottom
        if rng.random() > chance or not fits:
            paper.asker.ask_absent(kind)
            continue
        if layout == "stacked":
            lines = (
                paper.page.write(x, y, label, small, paper.ink),
                paper.write(x, y + small.size * 1.45, value, bold=True),
            )
            y += small.size * 1.45 + paper.step * 1.35
        else:
            lines = (paper.write(x, y, label, bold=layout == "columns"), paper.write(at, y, value))
            y += paper.step * 1.1
        paper.fact(kind, value, lines)
    return y


def _title(
    paper: Paper, x: float, y: float, words: str, align: str = "left", more: int = 8, ask: str = "heading"
) -> float:
    """A large line in the accent colour, shortened to the margins; returns where it ends."""
    font = paper.font(more, bold=True)
    words = font.shorten(words, paper.page.width - 2 * paper.margin)
    line = paper.page.write(x, y, words, font, paper.accent, align)
    if ask:
        paper.fact(ask, words, (line,))
    return y + font.size * 1.6


def _block(paper: Paper, x: float, y: float, rows: Sequence[str], width: float, bold_first: bool = False) -> list[int]:
    """Lines one below the other, each shortened to `width`; returns their indices."""
    found = []
    for number, row in enumerate(rows):
        bold = bold_first and number == 0
        found.append(paper.write(x, y + number * paper.step, paper.font(bold=bold).shorten(row, width), bold=bold))
    return found


def _shown(paper: Paper, lines: Sequence[int]) -> str:
    return ", ".join(paper.page.lines[line].text for line in lines)


def _bars(paper: Paper, x: float, y: float, wide: float, high: float) -> None:
    """A barcode, which nothing is asked about."""
    x = round(x)
    while wide > 6 and high > 4:
        bar, gap = paper.rng.choice((1, 1, 2, 3)), paper.rng.choice((1, 2, 2, 3))
        paper.page.draw.rectangle((x, y, x + bar - 1, y + high), fill=paper.ink)
        x, wide = x + bar + gap, wide - bar - gap


def _frame(paper: Paper, box: tuple[float, float, float, float], fill: Colour | None = None) -> None:
    paper.page.draw.rounded_rectangle(box, radius=paper.rng.choice((0, 0, 8)), outline=paper.accent, width=2, fill=fill)


def slip(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool, invented: bool) -> Document:
    """A bank slip: a transfer form, a deposit or what a cash machine prints."""
    paper = Paper.start(rng, fonts, width, height, held_out, invented, max(9, round(width / rng.uniform(34, 46))))
    left, right, who = paper.margin, width - paper.margin, paper.who
    bank = f"{who.last()} {rng.choice(('Bank', 'Savings Bank', 'Credit Union', 'National Bank'))}"
    y = height * 0.05
    if rng.random() < 0.6:
        _frame(paper, (left * 0.5, y * 0.5, width - left * 0.5, height - y * 0.5))
    font = paper.font(5, bold=True)
    paper.fact("bank", bank, (paper.page.write(left, y, font.shorten(bank, right - left), font, paper.accent),))
    kind = rng.choice(
        ("Transfer", "SEPA transfer", "Deposit slip", "Payment order", "Transfer receipt", "Credit transfer")
    )
    y = _title(paper, left, y + font.size * 1.6, kind, more=2)
    spent, left_over = text.amount(rng, 400000), text.amount(rng, 900000)
    rows: list[Row] = [
        ("payee", ("Payee", "Beneficiary", "To", "Pay to"), who.company() if rng.random() < 0.6 else who.person(), 0.97),
        ("IBAN", ("IBAN", "Account of payee", "Account no."), names.iban(rng), 0.95),
        ("BIC", ("BIC", "SWIFT"), names.bic(rng), 0.6),
        ("transfer amount", ("Amount", "Sum", "Amount paid"), paper.priced(spent), 1.0),
        ("reference", ("Reference", "Purpose", "Payment for"), rng.choice((text.code(rng), f"Invoice {text.code(rng)}", "Rent", "Donation")), 0.8),
        ("payer", ("Payer", "Account holder", "From", "Paid by"), who.person(), 0.85),
        ("day", ("Date", "Booked on", "Execution date"), names.date(rng, paper.date_form), 0.9),
        ("balance", ("Balance", "New balance", "Balance after"), paper.priced(left_over), 0.3),
    ]  # fmt: skip
    layout = rng.choice(("columns", "columns", "stacked", "inline"))
    y = _rows(paper, left, right, y, rows, layout, height * 0.97)
    if y < height - paper.step * 3:
        paper.page.rule(left, left + width * 0.35, height - paper.step * 2, paper.ink)
        paper.page.write(left, height - paper.step * 1.8, "Signature", paper.font(-3), paper.ink)
    facts = paper.facts
    summary = f"A bank slip of {bank} over {facts.get('transfer amount', 'an amount')}"
    return paper.page.document(
        paper.asker.questions, summary=f"{summary} to {facts.get('payee', 'a payee').rstrip('.')}."
    )


def ticket(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool, invented: bool) -> Document:
    """A ticket for a train, a bus, a flight or an event."""
    paper = Paper.start(rng, fonts, width, height, held_out, invented, max(9, round(width / rng.uniform(36, 46))))
    left, right, who = paper.margin, width - paper.margin, paper.who
    trip = rng.choice(("train", "bus", "flight", "event"))
    y = height * 0.06
    heads = {
        "train": ("TRAIN TICKET", "Ticket", "Rail ticket"),
        "bus": ("BUS TICKET", "Coach ticket"),
        "flight": ("BOARDING PASS", "Boarding pass"),
        "event": ("ADMIT ONE", "Ticket", "Entrance ticket"),
    }[trip]
    stub = right - width * 0.26 if rng.random() < 0.5 else right  # where the part with the bars begins
    y = _title(paper, left, y, rng.choice(heads), more=4)
    begin = _clock(rng)
    number: Row = ("ticket number", ("Ticket no.", "Booking code", "Ticket number"), text.code(rng), 0.8)
    price: Row = ("ticket price", ("Price", "Fare", "Paid"), paper.priced(150 + text.amount(rng, 9000)), 0.75)
    date: Row = ("day", ("Date", "Valid on", "Day"), names.date(rng, paper.date_form), 0.95)
    start, goal = who.town(), who.town()
    if trip == "event":
        y = _title(
            paper,
            left,
            y,
            rng.choice(_EVENTS) if rng.random() < 0.7 else f"{who.first()} {who.last()} live",
            more=8,
            ask="event",
        )
        rows: list[Row] = [
            ("venue", ("Venue", "Place", "Where"), f"{rng.choice(_VENUES)}, {goal}", 0.95), date,
            ("begin", ("Begins", "Starts at", "Time"), _hours(begin), 0.85),
            ("seat", ("Seat", "Row / seat"), f"{rng.choice('ABCDEFGH')}{rng.randint(1, 40)}", 0.8), price, number,
        ]  # fmt: skip
    else:
        arrive = _hours(begin + rng.randint(35, 600))
        stop: Row = ("gate", ("Gate",), f"{rng.choice('ABCD')}{rng.randint(1, 60)}", 0.9) if trip == "flight" else ("platform", ("Platform", "Track"), str(rng.randint(1, 24)), 0.6)  # fmt: skip
        rows = [
            ("passenger", ("Passenger", "Name", "Traveller"), who.person(), 0.85),
            ("from", ("From", "Departure from"), start, 1.0), ("to", ("To", "Destination"), goal, 1.0 if goal != start else 0.0),
            date, ("departure", ("Departure", "Departs", "Dep."), _hours(begin), 0.95), ("arrival", ("Arrival", "Arrives", "Arr."), arrive, 0.7),
            ("seat", ("Seat",), f"{rng.randint(1, 40)}{rng.choice('ABCDEF')}", 0.75), stop,
            ("class", ("Class",), rng.choice(("First", "Second", "Economy", "Business", "2nd", "1st")), 0.5), price, number,
        ]  # fmt: skip
    layout = rng.choice(("columns", "inline", "stacked", "stacked"))
    if layout == "stacked":  # in two columns
        half = left + (stub - left) * 0.52
        middle = (len(rows) + 1) // 2
        end = max(
            _rows(paper, left, half - 6, y, rows[:middle], layout, height * 0.97),
            _rows(paper, half, stub - 6, y, rows[middle:], layout, height * 0.97),
        )
    else:
        end = _rows(paper, left, stub - 6, y, rows, layout, height * 0.97)
    if stub < right:
        paper.page.draw.line((stub, height * 0.03, stub, height * 0.97), fill=(150, 150, 150))
        _bars(paper, stub + 12, height * 0.2, right - stub - 12, height * 0.45)
    elif end < height * 0.8:
        _bars(paper, left, height * 0.83, (right - left) * 0.5, height * 0.12)
    facts = paper.facts
    what = (
        f"for {facts['event']}"
        if "event" in facts
        else f"from {facts.get('from', 'a place')} to {facts.get('to', 'another')}"
    )
    return paper.page.document(paper.asker.questions, summary=f"A {trip} ticket {what}.")


def timetable(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool, invented: bool) -> Document:
    """A board of departures, or the timetable of a school week."""
    paper = Paper.start(rng, fonts, width, height, held_out, invented, max(9, round(width / rng.uniform(40, 52))))
    return (_departures if rng.random() < 0.6 else _week)(paper)


def _departures(paper: Paper) -> Document:
    rng, page = paper.rng, paper.page
    left, right, y = paper.margin, page.width - paper.margin, page.height * 0.05
    if rng.random() < 0.35:  # a dark board
        page.draw.rectangle((0, 0, page.width, page.height), fill=(20, 24, 40))
        paper.ink, paper.accent = (235, 235, 225), (250, 200, 60)
    station = paper.who.town() + rng.choice(("", " Central", " Station", " Airport"))
    title = rng.choice((f"Departures {station}", "Departures", f"{station}: departures", f"{station} timetable"))
    y = _title(paper, left, y, title)
    wide = right - left
    columns = [
        ("time", left),
        ("line", left + wide * 0.18),
        ("place", left + wide * 0.38),
        ("platform", left + wide * 0.84),
    ]
    heads = {"time": ("Time", "Departure"), "line": ("Line", "Train", "No."), "place": ("To", "Destination"), "platform": ("Platform", "Track", "Gate")}  # fmt: skip
    head = {name: paper.write(x, y, rng.choice(heads[name]), bold=True, ink=paper.accent) for name, x in columns}
    y += paper.step * 1.4
    page.rule(left, right, y - paper.step * 0.35, paper.accent)
    at, listed = _clock(rng, 5, 20), []
    places: list[str] = []
    step = paper.step * rng.uniform(1.05, 1.5)
    for _ in range(min(rng.randint(4, 16), int((page.height - y) / step) - 1)):
        place = paper.font().shorten(
            paper.who.town() + rng.choice(("", "", " North", " Central", " via " + paper.who.town())), wide * 0.44
        )
        values = {"time": _hours(at), "line": f"{rng.choice(('S', 'RE', 'IC', 'U', 'Bus ', ''))}{rng.randint(1, 99)}", "place": place, "platform": str(rng.randint(1, 24))}  # fmt: skip
        listed.append((values, {name: paper.write(x, y, values[name]) for name, x in columns}))
        places.append(place)
        at, y = at + rng.randint(2, 25), y + step
    for values, lines in rng.sample(listed, min(5, len(listed))):
        place = values["place"]
        if sum(place in other for other in places) > 1:
            continue
        row = (lines["place"], head["place"])
        paper.asker.ask("departs", values["time"], (*row, lines["time"], head["time"]), place=place)
        paper.asker.ask("departs from", values["platform"], (*row, lines["platform"], head["platform"]), place=place)
        if rng.random() < 0.6:
            paper.asker.ask("line to", values["line"], (*row, lines["line"], head["line"]), place=place)
        if rng.random() < 0.6:
            paper.asker.ask("goes to", place, (lines["time"], lines["place"]), time=values["time"])
    stranger = paper.who.town()
    if rng.random() < 0.6 and not any(stranger in other for other in (*places, title)):
        paper.asker.ask_absent(rng.choice(("departs", "departs from")), place=stranger)
    return page.document(
        paper.asker.questions, summary=f"A board of {len(listed)} departures, titled {paper.facts['heading']}."
    )


def _week(paper: Paper) -> Document:
    rng, page = paper.rng, paper.page
    left, right, y = paper.margin, page.width - paper.margin, page.height * 0.05
    y = _title(
        paper,
        left,
        y,
        rng.choice(("Timetable", f"Timetable class {rng.randint(1, 13)}{rng.choice('ABC')}", "My week", "Schedule")),
    )
    days = _DAYS[: rng.randint(3, 5)]
    first = paper.font(bold=True).width("00:00   ")
    room = (right - left - first) / len(days)
    short = any(paper.font(bold=True).width(day) > room - 8 for day in days)
    heads = [
        paper.write(left + first + room * k + 4, y, day[:3] if short else day, bold=True, ink=paper.accent)
        for k, day in enumerate(days)
    ]
    top, step, at = (
        y - paper.step * 0.4,
        paper.step * rng.uniform(1.3, 1.9),
        rng.randint(7, 9) * 60 + rng.choice((0, 15, 30)),
    )
    y += paper.step * 1.5
    cells = []
    for _ in range(max(1, min(rng.randint(4, 9), int((page.height * 0.96 - y) / step)))):
        time = _hours(at)
        line = paper.write(left, y, time, bold=True)
        page.rule(left, right, y - step * 0.25, (170, 170, 170))
        for k, day in enumerate(days):
            subject = rng.choice(_SUBJECTS) if rng.random() < 0.85 else text.invented_word(rng, (2, 3)).capitalize()
            if rng.random() < 0.93 and paper.font().width(subject) <= room - 8:
                cells.append(
                    (day, time, subject, (line, heads[k], paper.write(left + first + room * k + 4, y, subject)))
                )
        at, y = at + rng.choice((45, 50, 60)), y + step
    for k in range(len(days)):
        x = left + first + room * k - 2
        page.draw.line((x, top, x, y - step * 0.3), fill=(170, 170, 170))
    for day, time, subject, lines in rng.sample(cells, min(8, len(cells))):
        paper.asker.ask("lesson", subject, lines, day=day, time=time)
    paper.asker.ask_absent("lesson", day="Sunday", time=_hours(at))
    return page.document(paper.asker.questions, summary=f"A timetable of {len(days)} days with {len(cells)} entries.")


def letter(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool, invented: bool) -> Document:
    """A letter: sender, recipient, date, subject, a text that may name an appointment, and a signature."""
    paper = Paper.start(
        rng, fonts, width, height, held_out, invented, max(9, min(20, round(width / rng.uniform(44, 56))))
    )
    page, who = paper.page, paper.who
    left, right, y = paper.margin * 1.3, width - paper.margin * 1.3, height * rng.uniform(0.04, 0.1)
    half = (right - left) * 0.5
    writer, reader = who.person(), who.person()
    firm = who.company() if rng.random() < 0.65 else ""
    head = _block(paper, left if rng.random() < 0.6 else left + half, y, [firm or writer, *who.address()], half, True)
    y += paper.step * (len(head) + 1.2)
    to = _block(paper, left, y, [reader, *who.address()], half)
    y += paper.step * (len(to) + 1)
    day, later = names.dates(rng, paper.date_form)
    paper.fact("day", day, (paper.write(right, y, f"{who.town()}, {day}" if rng.random() < 0.4 else day, "right"),))
    y += paper.step * 1.6
    if rng.random() < 0.85:
        subject = rng.choice(_REASONS).format(n=rng.randint(2, 9999))
        printed = rng.choice(("", "", "Re: ", "Subject: ")) + subject
        paper.fact(
            "subject", subject, (paper.write(left, y, paper.font(bold=True).shorten(printed, right - left), bold=True),)
        )
        y += paper.step * 1.6
    else:
        paper.asker.ask_absent("subject")
    paper.write(left, y, f"Dear {reader},")
    y += paper.step * 1.5
    sentences = [rng.choice(_OPENINGS), *rng.sample(_FILLERS, rng.randint(2, 7))]
    meeting = None
    if rng.random() < 0.65:
        meeting = later, _hours(_clock(rng, 8, 18)), f"room {rng.randint(1, 420)}"
        sentences.insert(1, rng.choice(("Your appointment is on {} at {} in {}.", "We would like to meet you on {} at {} in {}.", "Please come on {} at {} to {}.")).format(*meeting))  # fmt: skip
    body: list[int] = []
    cut = rng.randint(2, len(sentences))
    for part in (sentences[:cut], sentences[cut:]):
        rows = paper.font().wrap(" ".join(part), right - left)
        body += _block(paper, left, y, rows, right - left)
        y += paper.step * (len(rows) + (0.8 if rows else 0.0))
    for kind, value in zip(("appointment", "appointment time", "appointment place"), meeting or (), strict=False):
        line = next((line for line in body if value in page.lines[line].text), None)
        if line is not None:
            paper.asker.ask(kind, value, (line,))
    if meeting is None:
        paper.asker.ask_absent(rng.choice(("appointment", "appointment time", "appointment place")))
    paper.write(left, y, rng.choice(("Yours sincerely,", "Kind regards,", "Best wishes,", "Yours faithfully,")))
    signature = paper.write(left, y + paper.step * 2.6, writer)
    page.draw.line([(left + k * 7, y + paper.step * 2.0 - rng.uniform(0, paper.size)) for k in range(rng.randint(8, 16))], fill=(40, 50, 130), width=2)  # fmt: skip
    paper.fact("signed by", writer, (signature,))
    paper.asker.ask("sender", _shown(paper, head[:1]), (head[0],), () if firm else ((signature,),))
    paper.asker.ask("sender address", _shown(paper, head[1:]), tuple(head))
    paper.asker.ask("recipient", _shown(paper, to[:1]), (to[0],))
    paper.asker.ask("recipient address", _shown(paper, to[1:]), tuple(to))
    about = f" about: {paper.facts['subject']}" if "subject" in paper.facts else ""
    return page.document(paper.asker.questions, summary=f"A letter from {firm or writer} to {reader}{about}.")


def card(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool, invented: bool) -> Document:
    """A business card."""
    paper = Paper.start(rng, fonts, width, height, held_out, invented, max(9, round(height / rng.uniform(15, 20))))
    page, who = paper.page, paper.who
    left, right = paper.margin, width - paper.margin
    style = rng.choice(("plain", "plain", "band", "dark"))
    if style == "dark":
        page.draw.rectangle((0, 0, width, height), fill=tuple(part // 3 for part in paper.accent))
        paper.ink, paper.accent = (240, 240, 240), (250, 220, 150)
    elif style == "band":
        page.draw.rectangle((0, 0, width * 0.04, height), fill=paper.accent)
    align = "left" if style == "band" else rng.choice(("left", "left", "center"))
    x = {"left": left + (width * 0.03 if style == "band" else 0), "center": width / 2}[align]
    wide = right - x if align == "left" else right - left
    y = height * 0.08
    parts = ["employer", "person"]
    if rng.random() < 0.5:
        parts.reverse()
    for kind in parts:
        words = who.company() if kind == "employer" else who.person()
        font = paper.font(rng.choice((3, 6, 9)) if kind == "person" else rng.choice((0, 2, 5)), bold=True)
        words = font.shorten(words, wide)
        paper.fact(
            kind, words, (page.write(x, y, words, font, paper.accent if kind == "employer" else paper.ink, align),)
        )
        y += font.size * 1.5
        if kind == "person" and rng.random() < 0.85:
            job = paper.font().shorten(rng.choice(_JOBS), wide)
            paper.fact("job", job, (paper.write(x, y, job, align),))
            y += paper.step * 1.3
    if "job" not in paper.facts:
        paper.asker.ask_absent("job")
    y = max(y + paper.step * 0.5, height - paper.step * rng.uniform(5, 6.5))
    address = who.address()
    contacts = [
        ("phone", ("T ", "Tel. ", "Phone: ", "Office: "), names.phone(rng), 0.75), ("mobile", ("M ", "Mobile: ", "Cell: "), names.phone(rng), 0.5),
        ("email", ("", "E ", "Email: "), who.email(), 0.85), ("website", ("", "W ", "Web: "), f"www.{who.domain()}", 0.6),
        ("postal address", ("",), ", ".join(address), 0.75),
    ]  # fmt: skip
    for kind, labels, value, chance in contacts:
        printed = rng.choice(labels) + value
        if rng.random() > chance or paper.font().width(printed) > wide or y + paper.step > height:
            paper.asker.ask_absent(kind)
            continue
        paper.fact(kind, value, (paper.write(x, y, printed, align),))
        y += paper.step
    job = f", {paper.facts['job']}" if "job" in paper.facts else ""
    return page.document(
        paper.asker.questions,
        summary=f"The business card of {paper.facts['person']}{job}, {paper.facts['employer'].rstrip('.')}.",
    )


def label(rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool, invented: bool) -> Document:
    """A label of a parcel or of a product."""
    paper = Paper.start(rng, fonts, width, height, held_out, invented, max(9, round(width / rng.uniform(28, 38))))
    page = paper.page
    _frame(paper, (4, 4, page.width - 5, page.height - 5))
    return (_parcel if rng.random() < 0.55 else _product)(paper)


def _parcel(paper: Paper) -> Document:
    rng, page, who = paper.rng, paper.page, paper.who
    left, right, y = paper.margin, page.width - paper.margin, page.height * 0.05
    service = rng.choice(("EXPRESS", "STANDARD", "PRIORITY", "Economy", "Next day", "Parcel"))
    y = _title(paper, left, y, service, more=6, ask="service")
    for kind, labels, chance in (
        ("sender", ("From:", "Sender", "FROM"), 0.85),
        ("recipient", ("To:", "Ship to", "Deliver to"), 1.0),
    ):
        if rng.random() > chance:
            paper.asker.ask_absent(kind)
            continue
        mark = page.write(left, y, rng.choice(labels), paper.font(-2), paper.accent)
        big = kind == "recipient"
        lines = _block(paper, left + page.width * (0.14 if big else 0.0), y + paper.step * 0.95, [who.person() if rng.random() < 0.6 else who.company(), *who.address()], (right - left) * 0.8, big)  # fmt: skip
        paper.fact(kind, _shown(paper, lines[:1]), (mark, lines[0]))
        paper.asker.ask(f"{kind} address", _shown(paper, lines[1:]), (mark, *lines))
        y += paper.step * (len(lines) + 1.6)
        page.rule(left, right, y - paper.step * 0.4, paper.ink)
    rows: list[Row] = [
        ("tracking number", ("Tracking no.", "Tracking", "Parcel no."), text.digits(rng, 4) + " " + text.digits(rng, 4) + " " + text.digits(rng, 4), 0.9),
        ("weight", ("Weight", "Gross weight"), f"{rng.randint(0, 30)}.{rng.randint(1, 9)} kg", 0.75),
        ("order number", ("Order no.", "Order"), text.code(rng), 0.5),
    ]  # fmt: skip
    y = _rows(paper, left, right, y + paper.step * 0.3, rows, rng.choice(("inline", "columns")), page.height * 0.97)
    if y < page.height * 0.85:
        _bars(
            paper,
            left,
            y + paper.step * 0.4,
            (right - left) * 0.9,
            min(paper.step * 3, page.height * 0.95 - y - paper.step * 0.4),
        )
    return page.document(
        paper.asker.questions,
        summary=f"A parcel label for {paper.facts['recipient']}, sent as {paper.facts['service']}.",
    )


def _product(paper: Paper) -> Document:
    rng, page = paper.rng, paper.page
    left, right, y = paper.margin, page.width - paper.margin, page.height * 0.06
    brand = paper.font().shorten(paper.who.company(), right - left)
    paper.fact("brand", brand, (paper.write(left, y, brand),))
    name = rng.choice(_FOODS) if rng.random() < 0.7 else text.words(rng, 1, 2).title()
    y = _title(paper, left, y + paper.step * 1.3, name, more=rng.randint(6, 12), ask="product")
    rows: list[Row] = [
        ("weight", ("Net weight", "Contents", "Net"), rng.choice((f"{rng.randint(5, 99) * 10} g", f"{rng.randint(1, 5)} kg", f"{rng.randint(2, 15) * 100} g")), 0.9),
        ("best before", ("Best before", "Use by", "Expires"), names.date(rng, paper.date_form), 0.85),
        ("lot", ("Lot", "Batch", "LOT no."), text.code(rng), 0.6),
        ("label price", ("Price", "Our price"), paper.priced(40 + text.amount(rng, 3000)), 0.5),
    ]  # fmt: skip
    y = (
        _rows(paper, left, right, y, rows, rng.choice(("inline", "columns", "columns")), page.height * 0.95)
        + paper.step * 0.4
    )
    nutrients = rng.sample(("energy", "fat", "sugar", "protein", "salt", "fibre"), rng.randint(2, 5))
    if rng.random() < 0.6 and y + paper.step * 1.2 * (len(nutrients) + 2) < page.height * 0.95:
        head = paper.write(left, y, "Per 100 g", bold=True)
        for nutrient in nutrients:
            y += paper.step * 1.15
            page.rule(left, left + (right - left) * 0.6, y - paper.step * 0.2, (170, 170, 170))
            value = (
                f"{rng.randint(20, 600)} kcal"
                if nutrient == "energy"
                else f"{rng.randint(0, 60)}.{rng.randint(0, 9)} g"
            )
            lines = (
                paper.write(left, y, nutrient.capitalize()),
                paper.write(left + (right - left) * 0.6, y, value, "right"),
            )
            paper.asker.ask("nutrient", value, (*lines, head), name=nutrient)
        y += paper.step * 1.6
    else:
        paper.asker.ask_absent("nutrient", name=nutrients[0])
    advice = rng.choice(_STORAGE)
    if rng.random() < 0.6 and y + paper.step < page.height * 0.97 and paper.font().width(advice) < right - left:
        paper.fact("storage", advice, (paper.write(left, y, advice),))
    else:
        paper.asker.ask_absent("storage")
    return page.document(paper.asker.questions, summary=f"A label of {paper.facts['product']} by {brand.rstrip('.')}.")
