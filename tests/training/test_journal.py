"""The journal: the log file, printed lines, and TensorBoard event files."""

import json
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from arr_coc.errors import ArrCocError
from arr_coc.training.journal import Journal, writer_class


def log(journal: Journal, step: int, progress: float = 0.1) -> None:
    journal.log_step(progress, {"step": step, "answer_loss": step / 2}, {"loss/answer": step / 2})


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def test_event_files_hold_every_curve_by_step_and_time(tmp_path: Path) -> None:
    begun = time.time()
    with Journal(tmp_path, events=True) as journal:
        journal.open(0)
        log(journal, 50)
        log(journal, 100)
        journal.add_scalars({"exact/total": 0.9}, 100)
    found = events(tmp_path)
    assert set(found.Tags()["scalars"]) == {"loss/answer", "exact/total"}
    answers = found.Scalars("loss/answer")
    assert [(event.step, event.value) for event in answers] == [(50, 25.0), (100, 50.0)]
    assert begun - 1 < answers[0].wall_time <= answers[1].wall_time < time.time() + 1
    assert found.Scalars("exact/total")[0].value == pytest.approx(0.9)


def test_a_later_call_drops_the_steps_that_were_lost(tmp_path: Path) -> None:
    for start, steps in ((0, (50, 100, 150)), (100, (120, 170))):
        with Journal(tmp_path, events=True) as journal:
            journal.open(start)
            for step in steps:
                log(journal, step)
        if start == 0:
            time.sleep(1.1)  # the files are named by the second
    assert [event.step for event in events(tmp_path).Scalars("loss/answer")] == [50, 120, 170]


def test_lines_are_printed_unless_a_progress_bar_replaces_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for lines in (True, False):
        with Journal(tmp_path, lines=lines) as journal:
            journal.open(0)
            log(journal, 50, 0.25)
        assert (" 25% step 50  answer_loss 25.0" in capsys.readouterr().out) == lines
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows == [{"step": 50, "answer_loss": 25.0}] * 2
    assert not (tmp_path / "tensorboard").exists()


def test_a_missing_tensorboard_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ArrCocError, match=r"pip install 'arr-coc\[training\]'"):
        writer_class()
