"""Slips, tickets, timetables, letters, cards and labels: what is special to each of them."""

from __future__ import annotations

import itertools
import random

import pytest

from arr_coc.training.documents import papers
from arr_coc.training.documents.page import Document, bundled_fonts

SIZES = {
    papers.slip: (600, 360), papers.ticket: (600, 330), papers.timetable: (640, 560), papers.letter: (700, 900),
    papers.card: (520, 310), papers.label: (460, 480),
}  # fmt: skip


def documents(render: object, count: int = 25) -> list[Document]:
    fonts = bundled_fonts()
    return [render(random.Random(seed), fonts, *SIZES[render], False, False) for seed in range(count)]  # type: ignore[index, operator]


def shown(document: Document, lines: tuple[int, ...]) -> list[str]:
    return [document.lines[line].text for line in lines]


@pytest.mark.parametrize(
    ("render", "kinds"),
    [
        (papers.slip, {"payee", "payer", "IBAN", "BIC", "bank", "transfer amount", "reference", "day", "balance"}),
        (papers.ticket, {"from", "to", "departure", "arrival", "seat", "platform", "gate", "event", "venue", "ticket price"}),
        (papers.timetable, {"departs", "departs from", "line to", "goes to", "lesson"}),
        (papers.letter, {"sender", "recipient", "subject", "day", "signed by", "appointment", "appointment time"}),
        (papers.card, {"person", "job", "employer", "phone", "mobile", "email", "website", "postal address"}),
        (papers.label, {"recipient", "tracking number", "weight", "product", "best before", "nutrient", "storage"}),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)  # fmt: skip
def test_every_kind_of_question_is_asked_with_evidence(render: object, kinds: set[str]) -> None:
    asked = {one.kind for document in documents(render, 40) for one in document.questions if one.evidence}
    assert kinds <= asked


@pytest.mark.parametrize("render", SIZES, ids=lambda render: render.__name__)
def test_lines_do_not_run_into_each_other(render: object) -> None:
    """Boxes of two lines overlap by a descender at most."""
    for document in documents(render):
        boxes = [line.box for line in document.lines if line.text]
        for number, one in enumerate(boxes):
            for other in boxes[:number]:
                wide = min(one[2], other[2]) - max(one[0], other[0])
                high = min(one[3], other[3]) - max(one[1], other[1])
                assert wide <= 1 or high <= 0.45 * min(one[3] - one[1], other[3] - other[1]), (one, other)


def test_a_departure_is_asked_for_by_a_place_that_is_there_once() -> None:
    for document in documents(papers.timetable):
        texts = [line.text for line in document.lines]
        for question in document.questions:
            slots = dict(question.slots)
            if question.kind == "departs" and question.evidence:
                assert sum(slots["place"] in text for text in texts) == 1 or slots["place"] in texts[0]
                assert slots["place"] in shown(document, question.evidence)
                assert question.answer in shown(document, question.evidence)
            if question.kind in ("departs", "departs from") and question.absent:
                assert not any(slots["place"] in text for text in texts)


def test_times_of_a_board_rise() -> None:
    for document in documents(papers.timetable):
        times = [line.text for line in document.lines if len(line.text) == 5 and line.text[2] == ":"]
        minutes = [int(one[:2]) * 60 + int(one[3:]) for one in times]
        assert all((later - first) % 1440 < 720 for first, later in itertools.pairwise(minutes))


def test_a_letter_without_a_firm_is_from_the_one_who_signs() -> None:
    own = 0
    for document in documents(papers.letter):
        sender = next(one for one in document.questions if one.kind == "sender")
        signed = next(one for one in document.questions if one.kind == "signed by")
        if sender.others:
            own += 1
            assert shown(document, sender.others[0]) == [signed.answer]
    assert own > 3


def test_an_appointment_in_a_letter_is_on_the_line_that_says_so() -> None:
    for document in documents(papers.letter):
        for question in document.questions:
            if question.kind.startswith("appointment") and question.evidence:
                assert question.answer in shown(document, question.evidence)[0]
