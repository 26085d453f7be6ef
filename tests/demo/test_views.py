"""A link leads back to the view it was made of."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from arr_coc.demo.views import FIELDS, View, from_query
from arr_coc.errors import ArrCocError

UNUSUAL = View(
    image="scene", question="Wie heißt «das» & was kostet 100% + ?", model="folder/model", layer="none", budget="mass 90%",
    glance="25%", selector="fastv", dense=False, heat=5, selectors=("random", "ink"), box="1, 2, 3, 4", channel="text", level=3,
    point="0.5, 0.25", learned=False, exploit=0.25, weights="coupling 1, text 0.5", report="runs/a", against="runs/b",
)  # fmt: skip


@pytest.mark.parametrize("tab", FIELDS)
def test_a_link_leads_back(tab: str) -> None:
    view = replace(UNUSUAL, tab=tab)
    found = from_query(dict(parse_qsl(view.query()[1:], keep_blank_values=True)))
    for name in ("tab", *FIELDS[tab]):
        assert getattr(found, name) == getattr(view, name), name


def test_a_link_holds_what_its_tab_shows_and_no_more() -> None:
    assert View().query() == "?tab=ask&image=receipt&question=What+is+the+total+amount%3F"
    assert "box" not in replace(UNUSUAL, tab="ask").query()
    assert "exploit=0.25" in replace(UNUSUAL, tab="knowing").query()


def test_a_theme_in_a_link_is_not_ours() -> None:
    assert from_query({"__theme": "dark"}) == View()


@pytest.mark.parametrize("query", [{"tab": "cellar"}, {"colour": "red"}, {"level": "deep"}, {"dense": "perhaps"}])
def test_links_that_no_view_has(query: dict[str, str]) -> None:
    with pytest.raises(ArrCocError, match="expected"):
        from_query(query)


def test_numbers_and_weights() -> None:
    assert View(box=" 1,2, 3 4 ").numbers("box", 4) == (1, 2, 3, 4)
    assert View().numbers("box", 4) == ()
    assert View(weights="coupling 1, text 0.2").weighed() == {"coupling": 1.0, "text": 0.2}
    for wrong in ("1, 2", "a b c d", "1 2 3 1e99", "nan 1 1 1"):
        with pytest.raises(ArrCocError, match="4 numbers"):
            View(box=wrong).numbers("box", 4)
    with pytest.raises(ArrCocError, match="weights such as"):
        View(weights="coupling much").weighed()
