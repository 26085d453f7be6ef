"""Sessions do not see each other's images, and old sessions are dropped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PIL import Image

from arr_coc.demo.app import AppState
from arr_coc.demo.inputs import Upload
from arr_coc.demo.limits import Limits
from arr_coc.demo.session import SessionStore
from arr_coc.demo.state import PageState
from arr_coc.errors import ImageError


@pytest.fixture(autouse=True)
def remove_sessions(app: AppState) -> Iterator[None]:
    yield
    for name in ("one", "two"):
        app.sessions.remove(name)


def upload(side: int = 10, colour: str = "red") -> Upload:
    return Upload("a.png", Image.new("RGB", (side, side), colour))


def test_sessions_do_not_see_each_others_images(app: AppState) -> None:
    for name, colour in (("one", "red"), ("two", "blue")):
        app.sessions.get(name).set_upload(upload(colour=colour))
    shown = [app.request(name, PageState(image="")).image.image.getpixel((0, 0)) for name in ("one", "two")]
    assert shown == [(255, 0, 0), (0, 0, 255)]
    app.sessions.remove("one")
    for name in ("one", None):
        with pytest.raises(ImageError, match="there is no image yet"):
            _ = app.request(name, PageState(image="")).image


def test_a_new_upload_replaces_the_last(app: AppState) -> None:
    session = app.sessions.get("one")
    session.set_upload(upload(colour="red"))
    first = app.request("one", PageState(image="")).image
    assert app.request("one", PageState(image="")).image is first
    session.set_upload(upload(colour="blue"))
    assert app.request("one", PageState(image="")).image.image.getpixel((0, 0)) == (0, 0, 255)


def test_a_session_keeps_two_images(app: AppState) -> None:
    for name in app.examples:
        _ = app.request("one", PageState(image=name)).image
    assert len(app.examples) > 2
    assert len(app.sessions.get("one").images) == 2


def test_sessions_are_dropped_by_number_age_and_size() -> None:
    now = [0.0]
    store = SessionStore(Limits(visitors=3, minutes=1, kept_megapixels=0.05), lambda: now[0])
    for name in "abcd":
        store.get(name).set_upload(upload())
    assert len(store) == 3
    assert store.get("b").upload is not None
    now[0] = 50
    store.get("c")
    now[0] = 100  # b and d were last used more than a minute ago
    store.get("e")
    assert len(store) == 2
    store.get("e").set_upload(upload(200))  # 0.04 megapixels
    store.get("f").set_upload(upload(200))
    assert store.get("f").upload is not None
    assert len(store) == 1
    assert store.get("e").upload is None


def test_computed_channels_count_for_the_size(app: AppState) -> None:
    image = app.request("one", PageState(image="scene")).image
    before = image.megapixels
    texture = image.texture()
    for name in ("edges", "saliency", "text"):
        _ = texture[name]
    planes = 6 * texture["edges"].nbytes / 3e6  # the pixels (3 planes), and these three channels
    assert image.megapixels - before >= 0.9 * planes
