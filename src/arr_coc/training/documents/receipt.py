"""Till receipts and tax invoices: a till's print on paper that fills the page, lies on a desk or is small on a sheet.

Everything on a receipt is answered in capitals, whatever case it is printed in, because the scanned receipts are
labelled that way.
"""

import random

from arr_coc.training.documents import text
from arr_coc.training.documents.fonts import FontShelf
from arr_coc.training.documents.page import Document, Page
from arr_coc.training.documents.pen import Pen, text_size
from arr_coc.training.documents.till import Till


def _paper(rng: random.Random, width: int, height: int) -> tuple[Page, tuple[float, float, float, float], int]:
    """The page, the receipt's margins on it and its ink: filling the page, lying on a desk, or small on a white sheet."""
    paper, ink = rng.randint(190, 255), rng.randint(0, 110)
    style = rng.random()
    if style < 0.6:
        page = Page(width, height, paper)
        side = width * 0.09
        return (
            page,
            (rng.uniform(3, side), rng.uniform(3, height * 0.12), width - rng.uniform(3, side), height - 3),
            ink,
        )
    page = Page(width, height, rng.randint(0, 140) if style < 0.8 else rng.randint(235, 255))
    share = rng.uniform(0.75, 0.96) if style < 0.8 else rng.uniform(0.5, 0.9)
    wide, tall = width * share, height * min(1.0, share * rng.uniform(0.95, 1.2))
    left, top = rng.uniform(0, width - wide), rng.uniform(0, height - tall)
    page.draw.rectangle((left, top, left + wide, top + tall), fill=paper)
    return page, (left + 8, top + 6, left + wide - 8, top + tall - 4), ink


def render(rng: random.Random, shelf: FontShelf, width: int, height: int, held_out: bool = False) -> Document:
    """A receipt on a gray page of `width` x `height` pixels."""
    page, (left, top, right, bottom), ink = _paper(rng, width, height)
    size = min(text_size(rng, int(right - left)), max(8, int((bottom - top) / 22)))
    pen = Pen(page, rng, shelf.pick(rng, 0.6), size, left, right, top, bottom, ink)
    till = Till(pen, rng, text.Case.choose(rng, 0.6), held_out)
    till.header()
    has_date, date_is_late, has_total = rng.random() < 0.93, rng.random() < 0.25, rng.random() < 0.95
    till.particulars(with_date=has_date and not date_is_late)
    room = (pen.rows_left - 10) // 2
    subtotal = till.items(rng.randint(max(1, min(room, 20) // 3), max(1, min(room, 20))))
    till.totals(subtotal, has_total)
    if has_date and date_is_late:
        pen.down(0.5)
        till.date_row()
    elif not has_date:
        till.answer("date", "", ())
    till.small_print()
    return page.document(till.questions, capitals=True)
