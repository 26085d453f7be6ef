"""Runs that are interrupted and continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.evaluation import Interrupted, Report
from arr_coc.selectors import SelectionInput
from arr_coc.selectors.scope import Scope
from tests.evaluation.conftest import Folder, run, stop, untimed


def test_an_interrupted_run_continues_and_ends_as_an_uninterrupted_one(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(3), tmp_path / "run"
    whole = run(data)

    with pytest.raises(Interrupted, match=r"after 1 of 3 pictures.*goes on") as stopped:
        run(data, run=place, tick=stop)
    assert (stopped.value.done, stopped.value.total) == (1, 3)
    with (place / "records.jsonl").open("a") as file:
        file.write('{"picture": "1.png", "ro')  # killed while writing
    starts: list[int] = []
    again = run(data, run=place, tick=lambda done, total, what: starts.append(done))
    assert again.resumed == 1
    assert starts[0] == 4
    assert untimed(again) == untimed(whole)
    assert not (place / "records.jsonl").exists()  # done: the next run starts again


def test_a_run_with_other_settings_neither_continues_nor_overwrites_it(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(2), tmp_path / "run"
    with pytest.raises(Interrupted):
        run(data, run=place, tick=stop)
    kept = (place / "records.jsonl").read_text()
    with pytest.raises(ArrCocError, match=r"holds 1 pictures of a run with other settings.*--fresh"):
        run(data, run=place, budgets=["50%"])
    assert (place / "records.jsonl").read_text() == kept
    assert run(data, run=place, budgets=["50%"], fresh=True).resumed == 0
    assert list(place.iterdir()) == []
    with pytest.raises(Interrupted):
        run(data, run=place, tick=stop)
    assert run(data, run=place, fresh=True).resumed == 0


@pytest.mark.parametrize("change", ["the object", "the closure", "the kinds"])
def test_a_run_with_other_content_under_the_same_name_does_not_continue_it(
    folder: Folder, tmp_path: Path, change: str
) -> None:
    data, place = folder(2), tmp_path / "run"

    def first_cells(skip: int) -> Callable[[SelectionInput], torch.Tensor]:
        def first(selection: SelectionInput) -> torch.Tensor:
            return selection.candidates[skip : skip + selection.count]

        return first

    makers: dict[str, Callable[[int], Any]] = {"the object": lambda n: Scope(float(n)), "the closure": first_cells}
    make = makers.get(change, lambda n: "uniform")
    with pytest.raises(Interrupted):
        run(data, [make(0)], ["25%", "50%", "12.5%"], run=place, tick=stop)
    if change == "the kinds":
        written = (data / "samples.jsonl").read_text()
        (data / "samples.jsonl").write_text(written.replace("kind 0", "other"))
    with pytest.raises(ArrCocError, match="a run with other settings"):
        run(data, [make(1)], ["25%", "50%", "12.5%"], run=place)
    if change != "the kinds":
        assert run(data, [make(0)], ["25%", "50%", "12.5%"], run=place).resumed == 1


def test_two_processes_do_not_share_a_folder(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(1), tmp_path / "run"

    def second(done: int, total: int, what: str) -> None:
        if done == 1:
            with pytest.raises(ArrCocError, match="another run is writing"):
                run(data, run=place)
            seen.append(done)

    seen: list[int] = []
    assert run(data, run=place, tick=second).resumed == 0
    assert seen == [1]
    assert not place.exists()


def test_records_are_kept_until_the_report_is_saved(folder: Folder, tmp_path: Path) -> None:
    data, place = folder(2), tmp_path / "run"

    def full(report: Report) -> None:
        raise ArrCocError("no space left")

    with pytest.raises(ArrCocError, match="no space left"):
        run(data, run=place, then=full)
    again = run(data, run=place)
    assert again.resumed == 2
    assert untimed(again) == untimed(run(data))


def test_a_full_disk_is_reported(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode == "a":
            raise OSError(28, "No space left on device")
        return real(self, mode, *rest, **options)

    real = Path.open
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ArrCocError, match=r"cannot keep the run in .*No space left"):
        run(folder(1), run=tmp_path / "run")
