"""The journal: the log file, the printed lines, and TensorBoard's event files read back."""

import json
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arr_coc.errors import ArrCocError
from arr_coc.training.journal import Journal, writer_class

REPORT = {"receipts: total": {"exact": 0.9, "similarity": 0.97, "count": 39}}


def entry(step: int) -> dict[str, float]:
    names = ("answer_loss", "cell_loss", "colour_loss", "cell_accuracy", "learning_rate", "images_per_second")
    values = {name: step + 0.125 * number for number, name in enumerate(names)}
    return {"minutes": step / 100, "step": step} | values | {"fresh_share": 0.5}


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def test_event_files_hold_every_curve_by_step_and_time(tmp_path: Path) -> None:
    begun = time.time()
    with Journal(tmp_path, events=True) as journal:
        journal.open(0)
        journal.told(0.1, entry(50))
        journal.told(0.2, entry(100))
        journal.measured(1.0, 100, REPORT, [])
    found = events(tmp_path)
    assert set(found.Tags()["scalars"]) == {
        "loss/answer",
        "loss/cell",
        "loss/colour",
        "training/cell accuracy",
        "training/learning rate",
        "training/images per second",
        "training/fresh share",
        "exact/receipts: total",
        "similarity/receipts: total",
    }
    answers = found.Scalars("loss/answer")
    assert [(event.step, event.value) for event in answers] == [(50, 50.0), (100, 100.0)]
    assert begun - 1 < answers[0].wall_time <= answers[1].wall_time < time.time() + 1
    assert found.Scalars("training/learning rate")[0].value == 50.5
    assert found.Scalars("exact/receipts: total")[0].value == pytest.approx(0.9)


def test_a_later_call_goes_on_and_drops_the_steps_that_were_lost(tmp_path: Path) -> None:
    for start, steps in ((0, (50, 100, 150)), (100, (120, 170))):
        with Journal(tmp_path, events=True) as journal:
            journal.open(start)
            for step in steps:
                journal.told(0.1, entry(step))
        time.sleep(1.1)  # the files are named by the second
    assert [event.step for event in events(tmp_path).Scalars("loss/cell")] == [50, 120, 170]


def test_lines_are_printed_unless_a_bar_takes_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lines in (True, False):
        with Journal(tmp_path, lines=lines) as journal:
            journal.open(0)
            journal.told(0.25, entry(50))
            journal.measured(1.0, 50, REPORT, [("total?", "9.00", "9.60")])
        printed = capsys.readouterr().out
        assert (" 25% minutes 0.5  step 50" in printed) == lines
        assert "receipts: total" in printed
        assert "expected '9.00', got '9.60'" in printed
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log[::2] == [entry(50)] * 2
    assert log[1] == {"minutes": 1.0, "step": 50, "measured": REPORT}
    assert not (tmp_path / "tensorboard").exists()


def test_without_the_package_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ArrCocError, match=r"pip install 'arr-coc\[training\]'"):
        writer_class()
