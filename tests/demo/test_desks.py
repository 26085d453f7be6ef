"""Everybody has a desk of their own, and old ones are cleared."""

from __future__ import annotations

import pytest
from PIL import Image

from arr_coc.demo.desks import Desks
from arr_coc.demo.limits import Limits
from arr_coc.demo.uploads import Upload
from arr_coc.demo.views import View
from arr_coc.demo.visit import House
from arr_coc.errors import ImageError


def upload(side: int = 10, colour: str = "red") -> Upload:
    return Upload("a.png", Image.new("RGB", (side, side), colour))


def test_two_people_do_not_see_each_other_s_pictures(house: House) -> None:
    for visitor, colour in (("one", "red"), ("two", "blue")):
        house.desks.of(visitor).put(upload(colour=colour))
    shown = [house.visit(visitor, View(image="")).subject.image.getpixel((0, 0)) for visitor in ("one", "two")]
    assert shown == [(255, 0, 0), (0, 0, 255)]
    house.desks.leave("one")
    with pytest.raises(ImageError, match="no picture here"):
        _ = house.visit("one", View(image="")).subject
    with pytest.raises(ImageError, match="no picture here"):
        _ = house.visit(None, View(image="")).subject
    house.desks.leave("two")


def test_a_new_picture_takes_the_place_of_the_last(house: House) -> None:
    desk = house.desks.of("one")
    desk.put(upload(colour="red"))
    first = house.visit("one", View(image="")).subject
    assert house.visit("one", View(image="")).subject is first
    desk.put(upload(colour="blue"))
    assert house.visit("one", View(image="")).subject.image.getpixel((0, 0)) == (0, 0, 255)
    house.desks.leave("one")


def test_a_desk_holds_few_pictures(house: House) -> None:
    for name in house.examples:
        _ = house.visit("one", View(image=name)).subject
    assert len(house.examples) > 2
    assert len(house.desks.of("one").subjects) == 2
    house.desks.leave("one")


def test_desks_are_cleared_by_number_age_and_size() -> None:
    now = [0.0]
    desks = Desks(Limits(visitors=3, minutes=1, kept_megapixels=0.05), lambda: now[0])
    for name in "abcd":
        desks.of(name).put(upload())
    assert len(desks) == 3
    assert desks.of("b").upload is not None
    now[0] = 50
    desks.of("c")
    now[0] = 100  # b and d were last here more than a minute ago
    desks.of("e")
    assert len(desks) == 2
    desks.of("e").put(upload(200))  # 0.04 megapixels
    desks.of("f").put(upload(200))
    assert desks.of("f").upload is not None
    assert len(desks) == 1
    assert desks.of("e").upload is None


def test_what_is_worked_out_of_a_picture_counts(house: House) -> None:
    subject = house.visit("one", View(image="scene")).subject
    before = subject.megapixels
    texture = subject.texture()
    for name in ("edges", "saliency", "text"):
        _ = texture[name]
    planes = 6 * texture["edges"].nbytes / 3e6  # the pixels, and these three
    assert subject.megapixels - before >= 0.9 * planes
    house.desks.leave("one")
