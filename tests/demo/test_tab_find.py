"""The tab Find, with an index of drawn pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from arr_coc.demo import tab_find
from arr_coc.demo.app import AppState, PageRequest
from arr_coc.demo.state import PageState
from arr_coc.errors import ArrCocError
from arr_coc.find.index import Index
from tests.demo.conftest import USER, last_outputs
from tests.find.test_index import FAKE, patch

pytest.importorskip("lancedb", reason="the extra `find` is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # of lancedb and pyarrow


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for colour in ("red", "green"):
        patch(tmp_path / "photos" / f"{colour}.png", colour)
    Index(tmp_path / "photos", encoder=FAKE).update()
    return tmp_path / "photos"


@pytest.fixture
def searching(app: AppState, photos: Path) -> Iterator[AppState]:
    yield replace(app, index=Index(photos))
    app.sessions.remove(USER)


def request(app: AppState, **settings: object) -> PageRequest:
    return app.request(USER, PageState(tab="find", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("heat", [False, True])
def test_the_nearest_images_come_with_scores_code_and_link(searching: AppState, heat: bool) -> None:
    found = last_outputs(tab_find.run(request(searching, find="the green one", find_heat=heat)))
    assert found["find_images"].index("green.png") < found["find_images"].index("red.png")
    assert found["find_images"].count("data:image/") == 2
    assert [one["image"] for one in json.loads(found["find_json"])["found"]] == ["green.png", "red.png"]
    assert found["find_link"] == f"?tab=find&find=the+green+one{'&find_heat=1' if heat else ''}"
    code: dict[str, object] = {}
    exec(found["find_python"], code)
    assert code["found"].path.name == "red.png"  # type: ignore[attr-defined]


def test_an_image_that_is_gone_is_named(searching: AppState, photos: Path) -> None:
    (photos / "green.png").unlink()
    found = last_outputs(tab_find.run(request(searching, find="green")))
    assert "green.png (gone since it was indexed)" in found["find_images"]


def test_bad_requests_are_one_sentence(app: AppState, searching: AppState) -> None:
    with pytest.raises(ArrCocError, match="arr-coc demo --find FOLDER"):
        list(tab_find.run(request(app, find="a dog")))
    with pytest.raises(ArrCocError, match="empty"):
        list(tab_find.run(request(searching, find="  ")))
    with pytest.raises(ArrCocError, match="at most 300"):
        list(tab_find.run(request(searching, find="dog " * 200)))
