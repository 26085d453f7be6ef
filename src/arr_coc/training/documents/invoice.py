"""Invoices: seller, buyer, numbers and dates, line items, taxes that add up, bank details.

The parts are placed as on real invoices, which differ a lot: the seller left, right or in the middle, details in columns or
in a box, a table with lines, stripes or a dark header, totals below it, and a foot with the bank.
"""

import random
from dataclasses import dataclass, field

from arr_coc.training.documents import names, text
from arr_coc.training.documents.names import Names
from arr_coc.training.documents.page import Document, Font, FontSet, Page, load_font
from arr_coc.training.documents.phrasings import Asker

Colour = tuple[int, int, int]
_ACCENTS: tuple[Colour, ...] = (
    (30, 70, 140),
    (150, 30, 40),
    (20, 110, 80),
    (60, 60, 70),
    (120, 60, 140),
    (200, 90, 20),
)
_GOODS = [
    "Desk lamp",
    "Office chair",
    "Printer paper A4",
    "USB cable 2 m",
    "Consulting, per hour",
    "Website hosting",
    "Coffee beans 1 kg",
    "Wall paint white",
    "Garden hose",
    "Steel screws M6",
    "Laptop stand",
    "Monitor 27 inch",
    "Wooden shelf",
    "Cleaning service",
    "Travel expenses",
    "Software licence",
    "Keyboard",
    "Winter tyres",
    "Brake pads",
    "Oil change",
    "Translation",
    "Logo design",
    "Photo prints",
    "Cotton shirts",
    "Rubber gloves",
    "LED bulbs",
    "Water bottles",
    "Notebooks",
    "Ceramic tiles",
    "Concrete mix",
    "Roof repair",
    "Piano lesson",
    "Yoga course",
    "Catering",
    "Flower bouquet",
    "Phone case",
    "Ink cartridge",
    "Server rental",
    "Door handle",
    "Window blinds",
    "Bicycle helmet",
    "Dog food 5 kg",
    "Training day",
    "Support contract",
    "Packing tape",
]
_HEADS = {
    "item": ("Description", "Item", "Product", "Service", "Article", "DESCRIPTION", "Goods"),
    "quantity": ("Qty", "Quantity", "Qty.", "Units", "Hours", "QTY", "Pcs"),
    "price": ("Unit price", "Price", "Rate", "Unit Price", "Each", "PRICE", "Per unit"),
    "amount": ("Amount", "Total", "Line total", "Sum", "AMOUNT", "Net", "Value"),
}


@dataclass
class Paper:
    """An invoice or another paper while it is printed: its page, fonts, colours and questions."""

    page: Page
    rng: random.Random
    who: Names
    asker: Asker
    body: str  # path of the font
    bold: str
    size: int
    ink: Colour
    accent: Colour
    margin: float
    money_style: int
    date_form: int
    currency: str
    facts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(
        cls, rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool, invented: bool, size: int
    ) -> "Paper":
        """An empty paper; `size` is the size of its letters in pixels."""
        white = rng.randint(238, 255)
        body = fonts.pick(rng, 0.1)
        dark = rng.randint(0, 70)
        return cls(
            Page(width, height, (white, white, max(0, white - rng.choice((0, 0, 3, 8))))),
            rng,
            Names(rng, invented),
            Asker(rng, held_out),
            body=body,
            bold=fonts.heavier(body),
            size=size,
            ink=(dark, dark, dark + rng.choice((0, 0, 15))),
            accent=rng.choice(_ACCENTS),
            margin=width * rng.uniform(0.05, 0.09),
            money_style=rng.choice((0, 1, 1, 2)),
            date_form=rng.randrange(6),
            currency=rng.choice(("$", "EUR", "EUR", "GBP", "USD", "CHF", "")),
        )

    def font(self, change: float = 0, bold: bool = False) -> Font:
        return load_font(self.bold if bold else self.body, max(8, round(self.size + change)))

    @property
    def step(self) -> float:
        return self.size * 1.45

    def write(
        self, x: float, y: float, words: str, align: str = "left", bold: bool = False, ink: Colour | None = None
    ) -> int:
        return self.page.write(x, y, words, self.font(bold=bold), ink or self.ink, align)

    def fact(self, kind: str, answer: str, evidence: tuple[int, ...]) -> None:
        self.facts[kind] = answer
        self.asker.ask(kind, answer, evidence)

    def money(self, cents: int) -> str:
        return names.money(cents, self.money_style)

    def priced(self, cents: int) -> str:
        """An amount with its currency."""
        return {"$": "${}", "EUR": "EUR {}", "GBP": "GBP {}", "USD": "{} USD", "CHF": "CHF {}", "": "{}"}[
            self.currency
        ].format(self.money(cents))


def _party(inv: Paper, x: float, y: float, align: str, label: str, buyer: bool) -> float:
    """A company or person with its address; returns where it ends."""
    rng, who = inv.rng, inv.who
    width = inv.page.width * 0.42
    marks: list[int] = []
    if label:
        marks.append(inv.write(x, y, label, align, bold=rng.random() < 0.6, ink=inv.accent))
        y += inv.step * 1.05
    name = who.person() if buyer and rng.random() < 0.45 else who.company()
    font = inv.font(0 if buyer else rng.choice((0, 3, 6)), bold=rng.random() < 0.6)
    name = font.shorten(name, width)
    line = inv.page.write(x, y, name, font, inv.ink, align)
    y += max(inv.step, font.size * 1.4)
    rows = [inv.font().shorten(row, width) for row in who.address()]
    found = []
    for row in rows:
        found.append(inv.write(x, y, row, align))
        y += inv.step
    inv.fact("buyer" if buyer else "company", name, (*marks, line))
    inv.fact(
        "buyer address" if buyer else "address", ", ".join(rows), (*((*marks, line) if buyer else (line,)), *found)
    )
    return y


def _contacts(inv: Paper, x: float, y: float, align: str) -> float:
    """Phone, mail, web and tax number of the seller, each with a label."""
    rng = inv.rng
    rows = [
        ("phone", rng.choice(("Tel: ", "Phone: ", "T ", "Tel. ")), names.phone(rng), 0.7),
        ("email", rng.choice(("", "Email: ", "E-mail: ", "Mail: ")), inv.who.email(), 0.6),
        ("website", rng.choice(("", "Web: ", "www.")), inv.who.domain(), 0.35),
        ("tax number", rng.choice(("VAT No. ", "VAT ID: ", "Tax ID: ", "VAT reg. no. ")), f"{rng.choice(('DE', 'GB', 'FR'))}{text.digits(rng, 9)}", 0.5),
    ]  # fmt: skip
    for kind, label, value, chance in rows:
        if rng.random() < chance and inv.font().width(label + value) < inv.page.width * 0.45:
            value = "www." + value if label == "www." else value
            index = inv.write(x, y, value if label == "www." else label + value, align)
            inv.fact(kind, value, (index,))
            y += inv.step
        elif rng.random() < 0.35:
            inv.asker.ask_absent(kind)
    return y


def _details(inv: Paper, x: float, right: float, y: float) -> float:
    """Invoice number, dates and the like, label and value in two columns or on one line."""
    rng = inv.rng
    number = rng.choice(
        (text.code(rng), f"INV-{rng.randint(1, 99999):05d}", f"{rng.randint(2019, 2027)}-{rng.randint(1, 999):03d}")
    )
    issued, due = names.dates(rng, inv.date_form)
    rows = [
        ("invoice number", ("Invoice No.", "Invoice number", "Invoice #", "Number", "Invoice no", "Document no.", "Bill number", "Nr."), number, 0.97),
        ("date", ("Date", "Invoice date", "Issue date", "Date of issue", "Billing date", "Issued on", "Dated"), issued, 0.95),
        ("due date", ("Due date", "Payment due", "Due", "Pay by", "Please pay by", "Payable until", "Deadline"), due, 0.75),
        ("order number", ("Order No.", "PO number", "Your order", "Order #"), text.code(rng), 0.4),
        ("terms", ("Terms", "Payment terms"), rng.choice(("Net 30", "Net 14", "14 days", "Due on receipt", "30 days net", "Prepaid")), 0.3),
    ]  # fmt: skip
    if rng.random() < 0.3:
        rng.shuffle(rows)
    inline, boxed = rng.random() < 0.4, rng.random() < 0.3
    middle = (
        x + (right - x) * rng.uniform(0.4, 0.55) if rng.random() < 0.25 else None
    )  # values in a column of their own
    ruled = middle is not None and rng.random() < 0.6
    top, bold = y, rng.random() < 0.5
    colon = rng.choice(("", ":", ":"))
    for kind, labels, value, chance in rows:
        if rng.random() > chance:
            inv.asker.ask_absent(kind)
            continue
        font = inv.font(bold=bold)
        room = (right if middle is None else middle) - x - (inv.font().width(value) if middle is None else 4)
        fitting = [label + colon for label in labels if font.width(label + colon + "  ") <= room]
        if not fitting or (
            middle is not None and inv.font().width(value) > right - middle
        ):  # a number cut short would be another one
            inv.asker.ask_absent(kind)
            continue
        label = rng.choice(fitting)
        left = inv.write(x, y, label, bold=bold)
        at = middle or (x + font.width(label + " ") + 3 if inline else right)
        inv.fact(kind, value, (left, inv.write(at, y, value, "left" if inline or middle else "right")))
        y += inv.step * 1.05
        if ruled:
            inv.page.rule(x, right, y, (170, 170, 170))
            y += inv.step * 0.5
    if boxed:
        inv.page.draw.rectangle((x - 8, top - 8, right + 8, y + 2), outline=inv.accent)
    return y


def _table_head(inv: Paper, columns: list[tuple[str, float, str]], y: float, style: str) -> dict[str, int]:
    """The header row; returns the line of each column's head."""
    left, right = inv.margin, inv.page.width - inv.margin
    dark = style == "dark"
    if dark:
        inv.page.draw.rectangle((left - 4, y - inv.size * 0.45, right + 4, y + inv.size * 1.3), fill=inv.accent)
    which = inv.rng.randrange(7)
    mixed = inv.rng.random() < 0.4
    heads = {
        name: inv.write(
            x,
            y,
            inv.rng.choice(_HEADS[name]) if mixed else _HEADS[name][which],
            align,
            bold=True,
            ink=(255, 255, 255) if dark else inv.ink,
        )
        for name, x, align in columns
    }
    if not dark:
        inv.page.rule(left, right, y + inv.size * 1.5, inv.accent, width=inv.rng.choice((1, 2)))
    return heads


def _items(inv: Paper, y: float, bottom: float) -> tuple[float, int]:
    """The line items, as many as fit above `bottom`; returns where they end and their sum in cents."""
    rng = inv.rng
    left, right = inv.margin, inv.page.width - inv.margin
    wide = right - left
    columns = [("item", left, "left"), ("quantity", left + wide * 0.58, "right"), ("price", left + wide * 0.79, "right"), ("amount", right, "right")]  # fmt: skip
    if rng.random() < 0.3:  # the quantity first
        columns[0], columns[1] = ("item", left + wide * 0.12, "left"), ("quantity", left, "left")
    elif rng.random() < 0.35:  # as browsers set them
        places = (0.0, rng.uniform(0.4, 0.5), rng.uniform(0.56, 0.66), rng.uniform(0.76, 0.82))
        columns = [(name, left + wide * at, "left") for (name, _, _), at in zip(columns, places, strict=True)]
    style = rng.choice(("dark", "lines", "striped", "plain"))
    heads = _table_head(inv, columns, y, style)
    y += inv.step * 1.6
    step = inv.step * rng.uniform(1.0, 1.5)
    total, listed = 0, []
    room = wide * (0.38 if columns[1][2] == "left" and columns[1][1] > left else 0.42)
    count = min(rng.randint(1, 12), max(1, int((bottom - y) / step)))
    for number in range(count):
        item = rng.choice(_GOODS) if rng.random() < 0.6 else text.words(rng, 1, 3).capitalize()
        item = inv.font().shorten(item, room)
        quantity = rng.choice((1, 1, 2, 3, 5, 10, rng.randint(1, 250)))
        unit = text.amount(rng, 60000)
        values = {
            "item": item,
            "quantity": str(quantity),
            "price": inv.money(unit),
            "amount": inv.money(unit * quantity),
        }
        total += unit * quantity
        if style == "striped" and number % 2 == 0:
            pale = tuple(240 + part // 17 for part in inv.accent)
            inv.page.draw.rectangle((left - 4, y - step * 0.2, right + 4, y + step * 0.8), fill=pale)
        found = {name: inv.write(x, y, values[name], align) for name, x, align in columns}
        listed.append((item, values, found))
        y += step
        if style == "lines":
            inv.page.rule(left, right, y - step * 0.25, (190, 190, 190))
    shown = [item for item, _, _ in listed]
    for item, values, found in rng.sample(listed, min(4, len(listed))):
        if sum(item.lower() in other.lower() for other in shown) > 1:
            continue
        for kind in rng.sample(("quantity", "price", "amount"), 2):
            inv.asker.ask(kind, values[kind], (found["item"], found[kind], heads[kind]), item=item)
    stranger = rng.choice(_GOODS)
    if rng.random() < 0.5 and not any(
        stranger.lower() in other.lower() or other.lower() in stranger.lower() for other in shown
    ):
        inv.asker.ask_absent(rng.choice(("quantity", "price", "amount")), item=stranger)
    return y, total


def _totals(inv: Paper, y: float, subtotal: int) -> float:
    """Subtotal, discount, shipping, tax and total, right below the table."""
    rng = inv.rng
    right = inv.page.width - inv.margin
    left = right - inv.page.width * rng.uniform(0.34, 0.45)
    ruled = rng.random() < 0.25  # rows over the whole width
    if ruled:
        left = inv.margin
    middle = left + (right - left) * rng.uniform(0.35, 0.6)
    rows: list[tuple[str, str, str]] = []
    rate = rng.choice((5, 7, 8, 10, 19, 20, 20, 21, 25))
    less = subtotal // rng.choice((10, 20)) if rng.random() < 0.2 else 0
    shipping = rng.choice((495, 990, 1500, 2500)) if rng.random() < 0.25 else 0
    taxed = rng.random() < 0.85
    tax = (subtotal - less + shipping) * rate // 100 if taxed else 0
    if taxed or less or shipping:
        rows.append(
            (
                "subtotal",
                rng.choice(
                    ("Subtotal", "Net amount", "Sub-total", "Total excl. VAT", "Net total", "Before tax", "Goods total")
                ),
                inv.money(subtotal),
            )
        )
    else:
        inv.asker.ask_absent("subtotal")
    if less:
        rows.append(("discount", rng.choice(("Discount", "Less discount", "Rebate")), inv.money(-less)))
    elif rng.random() < 0.3:
        inv.asker.ask_absent("discount")
    if shipping:
        rows.append(("shipping", rng.choice(("Shipping", "Delivery", "Freight")), inv.money(shipping)))
    named = rng.random() < 0.75
    if taxed:
        label = rng.choice(("VAT", "Tax", "Sales tax", "VAT amount", "GST"))
        rows.append(("tax", f"{label} {rate}%" if named else label, inv.money(tax)))
    else:
        inv.asker.ask_absent("tax")
    total = subtotal - less + shipping + tax
    rows.append(
        (
            "total",
            rng.choice(
                (
                    "Total",
                    "Total due",
                    "Amount due",
                    "TOTAL",
                    "Grand total",
                    "Balance due",
                    "Payable",
                    "Invoice total",
                    "To be paid",
                )
            ),
            inv.priced(total),
        )
    )
    for kind, label, value in rows:
        main = kind == "total"
        if main and rng.random() < 0.5:
            inv.page.rule(left, right, y - inv.size * 0.35, inv.accent)
        font = inv.font(rng.choice((0, 2, 4)) if main else 0, bold=main)
        label = font.shorten(label, (middle if ruled else right - font.width(value)) - left - 8)
        found = (
            inv.page.write(left, y, label, font, inv.ink),
            inv.page.write(middle if ruled else right, y, value, font, inv.ink, "left" if ruled else "right"),
        )
        inv.fact(kind, value, found)
        if kind == "tax" and named:
            inv.asker.ask("tax rate", f"{rate}%", (found[0],))
        y += max(inv.step * 1.1, font.size * 1.5)
        if ruled:
            inv.page.rule(left, right, y - inv.size * 0.15, (170, 170, 170))
            y += inv.size * 0.35
    return y


def _bank(inv: Paper, y: float) -> float:
    """Bank details at the foot, one below the other or side by side."""
    rng = inv.rng
    left, right = inv.margin, inv.page.width - inv.margin
    rows = [
        ("bank", rng.choice(("Bank:", "Bank")), f"{inv.who.last()} {rng.choice(('Bank', 'Savings Bank', 'Credit Union'))}", 0.85),
        ("IBAN", rng.choice(("IBAN:", "IBAN", "Account:")), names.iban(rng), 0.9),
        ("BIC", rng.choice(("BIC:", "BIC", "SWIFT:")), names.bic(rng), 0.7),
        ("reference", rng.choice(("Reference:", "Payment reference:", "Ref:")), text.code(rng), 0.45),
    ]  # fmt: skip
    if rng.random() < 0.6:
        heading = rng.choice(("Payment details", "Bank details", "How to pay", "Please transfer to"))
        inv.write(left, y, heading, bold=True, ink=inv.accent)
        y += inv.step * 1.2
    aligned = rng.random() < 0.5
    indent = max(inv.font().width(label + " ") for _, label, _, _ in rows) + 4
    for kind, label, value, chance in rows:
        at = left + (indent if aligned else inv.font().width(label + " ") + 2)
        if rng.random() > chance or inv.font().width(value) > right - at:
            inv.asker.ask_absent(kind)
            continue
        inv.fact(kind, value, (inv.write(left, y, label), inv.write(at, y, value)))
        y += inv.step
    return y


def render(
    rng: random.Random, fonts: FontSet, width: int, height: int, held_out: bool = False, invented: bool = False
) -> Document:
    """An invoice on a page of `width` x `height` pixels, in colour."""
    size = max(9, min(20, round(width / rng.uniform(42, 62)), round(height / 52)))
    inv = Paper.start(rng, fonts, width, height, held_out, invented, size)
    left, right, y = inv.margin, width - inv.margin, height * rng.uniform(0.03, 0.06)
    if rng.random() < 0.3:  # a coloured bar
        inv.page.draw.rectangle((0, 0, width, height * 0.018), fill=inv.accent)
    title = rng.choice(("INVOICE", "Invoice", "Tax Invoice", "INVOICE", "Bill", "Proforma invoice"))
    big = inv.font(rng.randint(8, 18), bold=True)
    seller_left = rng.random() < 0.6
    shown = inv.page.write(
        right if seller_left else left, y, title, big, inv.accent, "right" if seller_left else "left"
    )
    inv.asker.ask("heading", title, (shown,))
    side, align = (left, "left") if seller_left else (right, "right")
    down = _contacts(inv, side, _party(inv, side, y, align, "", buyer=False), align)
    y = max(down, y + big.size * 1.6) + inv.step * rng.uniform(0.4, 1.2)
    label = rng.choice(("Bill to", "Bill to:", "Billed to", "Invoice to", "Customer", "Sold to", "BILL TO", "Client:"))
    wide = (right - left) * rng.uniform(0.4, 0.48)
    style = rng.random()
    if style < 0.25:
        y = _details(inv, left, right, _party(inv, left, y, "left", label, buyer=True) + inv.step * 0.5)
    elif style < 0.75:
        y = max(_party(inv, left, y, "left", label, buyer=True), _details(inv, right - wide, right, y))
    else:
        y = max(
            _details(inv, left, left + wide, y), _party(inv, left + (right - left) * 0.56, y, "left", label, buyer=True)
        )
    y += inv.step * rng.uniform(0.8, 1.8)
    y, subtotal = _items(inv, y, height - inv.step * 14)
    y = _totals(inv, y + inv.step * 0.6, subtotal) + inv.step
    if rng.random() < 0.85:
        y = _bank(inv, max(y, height - inv.step * rng.uniform(5, 9)) if rng.random() < 0.5 else y)
    else:
        for kind in ("IBAN", "bank"):
            inv.asker.ask_absent(kind)
    if y < height - inv.step * 1.5 and rng.random() < 0.6:
        thanks = rng.choice(
            (
                "Thank you for your business.",
                "Please pay within the stated time.",
                "Goods remain our property until paid.",
            )
        )
        inv.page.write(
            width / 2, height - inv.step, inv.font(-2).shorten(thanks, right - left), inv.font(-2), inv.ink, "center"
        )
    facts = inv.facts
    summary = f"An invoice from {facts['company']} to {facts['buyer']}; the total is {facts['total']}."
    if "due date" in facts:
        summary += f" It is due on {facts['due date']}."
    return inv.page.document(inv.asker.questions, summary=summary)
