"""Training the universal layer: a tiny run in seconds, which can be stopped and continued."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from arr_coc.layer.universal import UniversalLayer
from recipes.universal.train import PagePool, Training, choose_questions, found_targets, main, misspell, validate

TINY = ["--width", "16", "--least", "8"]


def train(shards: Path, out: Path, *more: str) -> UniversalLayer:
    main(["--pages", str(shards), "--out", str(out), *TINY, "--minutes", "1", *more])
    layer = UniversalLayer.from_pretrained(out / "layer")
    assert isinstance(layer, UniversalLayer)
    return layer


def test_a_continued_run_ends_like_an_uninterrupted_one(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(shards, tmp_path / "whole", "--steps", "3")
    step = Training.take_step
    stopped: list[int] = []

    def stop(self: Training, *given: object) -> dict[str, float]:
        if self.step == 1 and not stopped:
            stopped.append(self.step)
            self.save()
            raise KeyboardInterrupt
        return step(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Training, "take_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(shards, tmp_path / "parts", "--steps", "3")
    parts = train(shards, tmp_path / "parts", "--steps", "3")
    assert stopped == [1]
    for name, values in whole.state_dict().items():
        assert torch.equal(values, parts.state_dict()[name]), name
    last = json.loads((tmp_path / "parts" / "log.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 3
    assert set(last) == {"step", "recall", "intent"}


def test_the_loss_falls_on_pages_that_are_seen_often(shards: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    pool = PagePool(shards, [], set())
    pool.refresh()
    training = Training(tmp_path / "state.pt", 1e-2, {"width": 16, "heads": 2, "seeing": 1, "asking": 1})
    training.fit_channels(pool.pages)
    losses = [training.take_step(random.Random(0), pool.pages, 0.0, half=False)["ranking"] for _ in range(14)]
    assert sum(losses[-3:]) < 0.97 * sum(losses[:3])


def test_found_is_that_one_group_is_among_the_best_eighth() -> None:
    logits = torch.arange(16.0).flip(0)[None].repeat(3, 1)  # cells 0 and 1 are the best
    groups = [[torch.tensor([0, 1])], [torch.tensor([0, 5]), torch.tensor([1])], []]
    hit, known = found_targets(logits, groups)
    assert hit.tolist() == [1, 1, 0]
    assert known.tolist() == [True, True, False]
    assert found_targets(logits[:1], [[torch.tensor([0, 5])]])[0].tolist() == [0]


def test_questions_of_a_step_leave_room_for_one_without_evidence(shards: Path) -> None:
    pool = PagePool(shards, [], set())
    pool.refresh()
    for page in pool.pages:
        chosen = choose_questions(random.Random(1), page, 4)
        assert 1 <= len(chosen) <= 4
        assert any(one.intent != "find" for one in chosen)
    assert misspell(random.Random(0), "abc") == "abc"
    assert sum(misspell(random.Random(seed), "What is it?") != "What is it?" for seed in range(300)) in range(10, 60)


def test_validation_counts_recall_of_the_best_group(shards: Path) -> None:
    pool = PagePool(shards, [], set())
    pool.refresh()
    found = validate(Training(Path("/none"), 1e-3, {"width": 16}).average, pool.pages[:2], shares=(1.0, 0.01))
    assert found["recall"]["all"][0] == 1.0
    assert found["recall"]["all"][1] < 1.0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--pages", "/no/where"], "expected a folder of shards that recipes.universal.draw wrote, got /no/where"),
        (["--pages", ".", "--least", "2"], "expected --least from 8 on"),
    ],
)
def test_bad_input_is_one_sentence(
    given: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*given, "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_state_of_another_width_is_refused(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Training(tmp_path / "state.pt", 1e-3, {"width": 32}).save()
    with pytest.raises(SystemExit):
        train(shards, tmp_path, "--steps", "1")
    assert "has width 32, expected 16: use another folder" in capsys.readouterr().err
