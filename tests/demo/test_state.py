"""A link restores the state that it was made from."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from arr_coc.demo.state import LINK_FIELDS, PageState
from arr_coc.errors import ArrCocError

CHANGED = PageState(
    image="scene", question="Wie heißt «das» & was kostet 100% + ?", model="folder/model", layer="none", budget="mass 90%",
    glance="25%", selector="fastv", dense=False, follow=True, gaze="3, 4", heat=5, selectors=("random", "ink"), box="1, 2, 3, 4", channel="text", level=3,
    point="0.5, 0.25", learned=False, exploit=0.25, weights="coupling 1, text 0.5", report="runs/a", against="runs/b",
    find="a cat", find_heat=True,
)  # fmt: skip


@pytest.mark.parametrize("tab", LINK_FIELDS)
def test_a_link_restores_the_state(tab: str) -> None:
    state = replace(CHANGED, tab=tab)
    found = PageState.from_query(dict(parse_qsl(state.to_query()[1:], keep_blank_values=True)))
    for name in ("tab", *LINK_FIELDS[tab]):
        assert getattr(found, name) == getattr(state, name), name


def test_a_link_holds_only_the_settings_of_its_tab() -> None:
    assert PageState().to_query() == "?tab=ask&image=receipt&question=What+is+the+total+amount%3F"
    assert "box" not in replace(CHANGED, tab="ask").to_query()
    assert "exploit=0.25" in replace(CHANGED, tab="knowing").to_query()


def test_unknown_parameters_are_ignored() -> None:
    assert PageState.from_query({"__theme": "dark", "utm_source": "mail", "fbclid": "1"}) == PageState()


@pytest.mark.parametrize("query", [{"tab": "kitchen"}, {"level": "deep"}, {"dense": "perhaps"}])
def test_a_bad_link_raises(query: dict[str, str]) -> None:
    with pytest.raises(ArrCocError, match="expected"):
        PageState.from_query(query)


def test_numbers_and_weights() -> None:
    assert PageState(box=" 1,2, 3 4 ").parse_numbers("box", 4) == (1, 2, 3, 4)
    assert PageState().parse_numbers("box", 4) == ()
    assert PageState(weights="coupling 1, text 0.2").parse_weights() == {"coupling": 1.0, "text": 0.2}
    for wrong in ("1, 2", "a b c d", "1 2 3 1e99", "nan 1 1 1"):
        with pytest.raises(ArrCocError, match="4 numbers"):
            PageState(box=wrong).parse_numbers("box", 4)
    with pytest.raises(ArrCocError, match="weights such as"):
        PageState(weights="coupling much").parse_weights()
