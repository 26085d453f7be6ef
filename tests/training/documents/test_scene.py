"""Scenes: objects are where their boxes say, in the colour that is asked for, and as many as are counted."""

from __future__ import annotations

import random

import numpy as np
import pytest

from arr_coc.training.documents import scene
from arr_coc.training.documents.page import Document, bundled_fonts


def documents(count: int = 25) -> list[Document]:
    fonts = bundled_fonts()
    return [scene.render(random.Random(seed), fonts, 480, 400) for seed in range(count)]


@pytest.mark.parametrize("name", scene.NAMES)
def test_a_cut_out_fills_its_box_and_has_its_colour(name: str) -> None:
    for colour in ("red", "blue"):
        image = np.asarray(scene.cut_out(random.Random(1), name, scene.COLOURS[colour], 80))
        solid = image[..., 3] > 100
        assert solid.any(0).all() or solid.any(1).all() or solid.mean() > 0.1
        assert solid[0].any()  # cropped to the ink
        assert solid[-1].any()
        assert solid[:, 0].any()
        assert solid[:, -1].any()
        near = np.abs(image[..., :3].astype(int) - np.array(scene.COLOURS[colour])).max(-1) < 60
        assert (near & solid).sum() > 0.08 * solid.sum()


def test_the_colour_that_is_asked_for_is_in_the_box() -> None:
    asked = 0
    for document in documents():
        for question in document.questions:
            if question.kind == "object colour" and question.evidence:
                left, top, right, bottom = (round(edge) for edge in document.lines[question.evidence[0]].box)
                inside = document.image[top:bottom, left:right].reshape(-1, 3).astype(int)
                near = np.abs(inside - np.array(scene.COLOURS[question.answer])).max(-1) < 40
                assert near.mean() > 0.03
                asked += 1
    assert asked > 7


def test_what_is_counted_has_that_many_boxes_apart_from_each_other() -> None:
    several = 0
    for document in documents():
        boxes = [line.box for line in document.lines if not line.text]
        for number, one in enumerate(boxes):
            for other in boxes[:number]:
                assert one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
        for question in document.questions:
            if question.kind == "count" and question.evidence:
                assert question.answer == str(len(set(question.evidence)))
                several += len(question.evidence) > 1
            if question.kind == "is there" and question.evidence:
                assert question.answer == "yes"
                assert all(len(group) == 1 for group in question.others)
    assert several > 5


def test_places_are_named_by_where_the_box_is() -> None:
    assert scene.region((0, 0, 20, 20), 300, 300) == "top left"
    assert scene.region((140, 140, 160, 160), 300, 300) == "centre"
    assert scene.region((280, 140, 300, 160), 300, 300) == "right"
    assert scene.region((140, 280, 160, 300), 300, 300) == "bottom"


def test_absent_things_are_in_no_summary() -> None:
    asked = 0
    for document in documents():
        for question in document.questions:
            if question.absent:
                slots = dict(question.slots)
                assert f"{slots['thing_']}" not in document.summary.split("; background")[0], question
                asked += 1
    assert asked >= 25


def test_a_relation_names_the_only_object_on_that_side() -> None:
    axis = {"to the left of": (0, -1), "to the right of": (0, 1), "above": (1, -1), "below": (1, 1)}
    asked = 0
    for document in documents(40):
        boxes = [line.box for line in document.lines if not line.text]
        for question in document.questions:
            if question.kind != "relation":
                continue
            own, other = (document.lines[line].box for line in question.evidence)
            which, sign = axis[dict(question.slots)["relation"]]

            def along(box: tuple[float, ...], which: int = which) -> float:
                return (box[which] + box[which + 2]) / 2

            beyond = [box for box in boxes if sign * (along(box) - along(own)) > 8]
            assert other in beyond
            asked += 1
    assert asked > 5
