"""The table of docs/families.md says what the code does, and lists no family without a tiny model that passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from arr_coc.adapters.families import FAMILIES
from tests.adapters import families, more_families

PAGE = (Path(__file__).parents[2] / "docs" / "families.md").read_text()
LINES = PAGE.split("<!-- table -->\n")[1].split("<!-- end of table -->")[0].splitlines()[2:]
CELLS = {line.split(" | ")[0].removeprefix("| "): line.strip("| ").split(" | ") for line in LINES}
TRIED = set(families.FAMILIES) | set(more_families.MORE) | {"smolvlm"}  # which some versions of transformers lack


def test_every_family_has_one_line() -> None:
    assert [line.split(" | ")[0].removeprefix("| ") for line in LINES] == [known.family for known in FAMILIES]


@pytest.mark.parametrize("known", FAMILIES, ids=lambda known: known.family)
def test_a_line_says_what_the_code_does(known: type) -> None:
    _, types, gaze, glance, video, semantics, difference, version = CELLS[known.family]
    assert gaze == "yes"
    assert glance == ("yes" if known.glances else "no")
    assert video == ("yes" if "video" in known.kinds else "no")
    assert all(f"`{kind}`" in types for kind in known.model_types)
    assert all(kind in TRIED for kind in known.model_types), "a type without a tiny model"
    assert {more_families.MORE[kind].semantics for kind in known.model_types if kind in more_families.MORE} <= {
        semantics
    }
    assert float(difference) < 2e-5, "run: python benchmarks/families.py"
    assert tuple(int(part) for part in version.split(".")[:2]) >= known.oldest
