"""The matplotlib plot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

from arr_coc.errors import ArrCocError
from arr_coc.evaluation import Report
from tests.evaluation.conftest import Folder, run


@pytest.fixture
def report(folder: Folder) -> Report:
    return run(folder(3), budgets=["50%", "25%"])


def test_a_plot_is_written(report: Report, tmp_path: Path) -> None:
    report.plot(tmp_path / "pareto.png")
    with Image.open(tmp_path / "pareto.png") as drawn:
        assert drawn.width > 800
    with pytest.raises(ArrCocError, match="cannot write"):
        report.plot(tmp_path / "no" / "pareto.png")


def test_without_matplotlib_the_page_has_plots(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ArrCocError, match="pip install matplotlib"):
        report.plot(tmp_path / "pareto.png")
    assert "visual tokens that a language layer reads" in report.page(tmp_path).read_text()
