"""The model for lmms-eval, run by its own command without a network. `make test-lmms` makes the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arr_coc

pytest.importorskip("lmms_eval", reason="lmms-eval has an environment of its own: make test-lmms")
pytestmark = pytest.mark.filterwarnings("default")
TASK = Path(__file__).parent / "lmms_task"
QUESTIONS = ("What is the total amount?", "What is the date?")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The task's folder with a receipt and two questions."""
    place = tmp_path_factory.mktemp("task")
    arr_coc.pictures.receipt().save(place / "receipt.png")
    vlm = arr_coc.load("reader")
    answers = {question: vlm.ask(place / "receipt.png", question, budget="all").text for question in QUESTIONS}
    rows = [{"image": str(place / "receipt.png"), "question": q, "answer": a} for q, a in answers.items()]
    (place / "questions.json").write_text("\n".join(json.dumps(row) for row in rows))
    for file in TASK.iterdir():
        if file.is_file():
            (place / file.name).write_text(file.read_text().replace("DATA", str(place)))
    return place


def evaluate(task: Path, out: Path, arguments: str, *more: str) -> subprocess.CompletedProcess[str]:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(out / "home"), "OMP_NUM_THREADS": "1"}
    words = ["--model", "arr_coc", "--model_args", arguments, "--tasks", "arr_coc_test", "--include_path", str(task)]
    return subprocess.run(
        [sys.executable, "-m", "lmms_eval", *words, "--output_path", str(out), "--log_samples", *more],
        env=os.environ | offline, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def results(out: Path) -> tuple[float, list[dict[str, Any]]]:
    [summary] = out.rglob("*_results.json")
    [samples] = out.rglob("*_samples_arr_coc_test.jsonl")
    scores = json.loads(summary.read_text())["results"]["arr_coc_test"]
    return scores["exact,none"], [json.loads(line) for line in samples.read_text().splitlines()]


def test_the_command_answers_a_local_task_from_a_part_of_the_tokens(task: Path, tmp_path: Path) -> None:
    done = evaluate(task, tmp_path, "pretrained=reader,budget=12.5%,glance=50%")
    assert done.returncode == 0, done.stderr[-3000:]
    score, samples = results(tmp_path)
    assert score == 1.0
    assert len(samples) == len(QUESTIONS)
    assert "(12.6%)" in done.stderr + done.stdout
    vlm = arr_coc.load("reader")
    for row in samples:
        answer = vlm.ask(task / "receipt.png", row["input"], budget="12.5%", glance="50%", max_new_tokens=24)
        assert row["filtered_resps"] == answer.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("pretrained=reader,budget=lots", "got 'lots'"),
        ("pretrained=reader,selector=nothing", "nothing"),
        ("pretrained=/no/such/folder", "/no/such/folder"),
    ],
)
def test_bad_arguments_are_one_sentence_and_no_result(
    task: Path, tmp_path: Path, arguments: str, sentence: str
) -> None:
    done = evaluate(task, tmp_path, arguments)  # lmms-eval prints errors and exits with 0
    assert sentence in (done.stderr + done.stdout)
    assert not list(tmp_path.rglob("*_results.json"))


def test_what_it_cannot_do_is_said() -> None:
    from arr_coc.engines.lmms import ArrCocModel

    with pytest.raises(arr_coc.ArrCocError, match="batch_size 1"):
        ArrCocModel(batch_size=4)
    model = ArrCocModel()
    with pytest.raises(arr_coc.ArrCocError, match="generate_until"):
        model.loglikelihood([])
    with pytest.raises(arr_coc.ArrCocError, match="one video"):
        model._answer(["clip.mp4", "other.mp4"], "What?", {})


def test_sampling_and_stop_strings() -> None:
    from arr_coc.engines.lmms import ArrCocModel, as_list, truncated

    assert as_list([[1, 2], (3,), None]) == [1, 2, 3]
    assert truncated("a\n\nb", "\n\n") == "a"
    assert truncated("a b", None) == "a b"
    model = ArrCocModel(budget="25%")
    picture = [arr_coc.pictures.receipt()]
    greedy = model._answer(picture, "What is the total amount?", {"max_new_tokens": 8, "temperature": 0, "top_p": None})
    sampled = model._answer(picture, "What is the total amount?", {"max_new_tokens": 8, "temperature": 0.01})
    assert greedy.text == sampled.text == "37.40"
