"""Options of an engine's plugin: what a server and what a request may set."""

from __future__ import annotations

from typing import Any

import pytest

from arr_coc.engines.options import GlanceOptions, ServerOptions
from arr_coc.errors import ArrCocError


def test_a_request_changes_the_servers_defaults() -> None:
    server = ServerOptions.parse({"budget": "12.5%", "embeddings": "labels", "layer": None})
    assert (server.defaults.budget, server.embeddings, server.layer) == ("12.5%", "labels", None)
    merged = server.defaults.merge({"selector": "uniform", "seed": 3})
    assert (merged.budget, merged.selector, merged.seed) == ("12.5%", "uniform", 3)
    assert server.defaults.merge({}) == server.defaults
    assert ServerOptions.parse({}) == ServerOptions()


def test_a_key_holds_the_cells_of_its_own_picture_alone() -> None:
    options = GlanceOptions().merge({"cells": [[1, 2], [3]]})
    assert (options.key(0)["cells"], options.key(1)["cells"]) == ([1, 2], [3])
    assert options.key(1) == GlanceOptions().merge({"cells": [[9], [3]]}).key(1)
    assert GlanceOptions().merge({"budget": 8}).key(0) != GlanceOptions().merge({"budget": 9}).key(0)


@pytest.mark.parametrize(
    ("given", "fixed"),
    [
        ({}, True),
        ({"budget": "100%"}, True),
        ({"cells": [[1]], "budget": 8}, True),
        ({"budget": 8}, False),
        ({"budget": "auto"}, False),
    ],
)
def test_options_whose_cells_do_not_depend_on_the_question(given: dict[str, Any], fixed: bool) -> None:
    assert GlanceOptions().merge(given).fixed == fixed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("12.5%", r"expected the option arr_coc of a request as \{\"budget\": \"12.5%\"\}, got '12.5%'"),
        ({"budgets": 8}, "expected the options of a request among budget, .* got 'budgets'"),
        ({"layer": "/somewhere"}, "expected the options of a request among"),
        ({"embeddings": "labels"}, "expected the options of a request among"),
        ({"budget": 0}, "expected a budget of at least one cell, got 0"),
        ({"budget": "0%"}, "expected a budget of at least one cell"),
        ({"budget": "half"}, "expected budget as a count"),
        ({"budget": None}, "expected budget as a count"),
        ({"selector": "os:system"}, "expected a selector among .* got 'os:system'"),
        ({"selector": 3}, "expected a selector among"),
        ({"seed": -1}, "expected a seed of 0 or more"),
        ({"question": "?" * 2001}, "expected a question of up to 2000 characters, got 2001"),
        ({"question": 3}, "expected the question as text, got int"),
        ({"cells": [1, 2]}, "expected cells as one list of cell numbers for each picture"),
        ({"cells": [[]]}, "expected cells as one list of cell numbers for each picture"),
        ({"cells": [[1.5]]}, "expected cells as whole numbers from 0 on"),
        ({"cells": [[True]]}, "expected cells as whole numbers from 0 on"),
    ],
)
def test_bad_options_of_a_request(given: Any, message: str) -> None:
    with pytest.raises(ArrCocError, match=message):
        GlanceOptions().merge(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "expected the option arr_coc of the server as"),
        ({"question": "What?"}, "expected the options of the server among budget, .* got 'question'"),
        ({"cells": [[1]]}, "expected the options of the server among"),
        ({"layer": 3}, "expected layer as text or null, got int"),
        ({"budget": "none"}, "expected budget as a count"),
    ],
)
def test_bad_options_of_a_server(given: Any, message: str) -> None:
    with pytest.raises(ArrCocError, match=message):
        ServerOptions.parse(given)
