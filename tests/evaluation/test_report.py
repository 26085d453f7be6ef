"""Plots, the page and the table's words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from arr_coc.errors import ArrCocError
from arr_coc.evaluation import Report, evaluate
from arr_coc.evaluation.table import share
from tests.adapters.conftest import wrapped


@pytest.fixture
def report(folder: Callable[[int], Path]) -> Report:
    options = {"tokens": 3, "seeds": 2}
    return evaluate(wrapped("qwen2_vl"), folder(3), ["all", "random", "uniform"], ["50%", "25%"], **options)  # type: ignore[arg-type]


def test_a_plot_is_written(report: Report, tmp_path: Path) -> None:
    report.plot(tmp_path / "pareto.png")
    with Image.open(tmp_path / "pareto.png") as drawn:
        assert drawn.width > 800
    with pytest.raises(ArrCocError, match="cannot write"):
        report.plot(tmp_path / "no" / "pareto.png")


def test_the_page_needs_nothing_beside_itself(report: Report, tmp_path: Path) -> None:
    text = report.page(tmp_path / "out").read_text()
    assert "<svg" in text
    assert "uniform at 25%: worst cases" in text
    assert text.count("data:image/jpeg;base64,") >= 6
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", text)
    assert text.count("<table>") == 2


def test_without_matplotlib_the_page_says_so(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ArrCocError, match="pip install matplotlib"):
        report.plot(tmp_path / "pareto.png")
    text = report.page(tmp_path).read_text()
    assert "plots need matplotlib" in text
    assert "worst cases" in text


def test_shares_read_well() -> None:
    assert share(0.5) == ".50"
    assert share(0.999, (0.0, 1.0)) == "1.00 [.00, 1.00]"
    assert share(None) == ""
