"""Long runs on two worker processes: the same results in order, whatever happens to a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import arr_coc
from arr_coc.cli import main
from arr_coc.embedding.projection import Projection
from arr_coc.errors import ArrCocError
from arr_coc.evaluation.records import FILE
from arr_coc.evaluation.runner import Interrupted
from arr_coc.ray import Workers
from tests.cli.conftest import write_data, write_model, write_photos

pytestmark = pytest.mark.filterwarnings("default")  # of ray
VARYING = ("ms", "peak_mb", "moved")  # times and memory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


def test_results_come_in_order_and_a_killed_worker_is_replaced(ray: Any, tmp_path: Path) -> None:
    def work(state: int, task: int) -> tuple[int, int, int]:
        if task == 7 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return state, task * task, os.getpid()

    found = list(Workers(2)(lambda: 5, work, range(20)))
    assert (tmp_path / "died").exists()
    assert [one[:2] for one in found] == [(5, task * task) for task in range(20)]
    assert len({one[2] for one in found}) >= 2


def test_a_task_that_kills_every_worker_is_one_sentence(ray: Any) -> None:
    with pytest.raises(ArrCocError, match="died 2 times on the same task"):
        list(Workers(2, retries=1)(lambda: None, lambda state, task: os._exit(1), [1, 2]))


@pytest.mark.parametrize("where", ["make", "work"])
def test_bad_input_is_the_same_sentence_as_in_one_process(ray: Any, where: str) -> None:
    def fail(*rest: Any) -> None:
        raise ArrCocError("expected something else")

    make = fail if where == "make" else lambda: None
    with pytest.raises(ArrCocError, match=r"^expected something else$"):
        list(Workers(2)(make, fail, [1, 2, 3]))


def test_no_work_starts_nothing() -> None:
    assert list(Workers(2)(lambda: None, lambda state, task: None, [])) == []
    with pytest.raises(ArrCocError, match="at least 1 worker, got 0"):
        Workers(0)


def records(report: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in VARYING} for row in report]


def test_evaluate_gives_what_one_process_gives_and_continues(ray: Any, model: str, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", 6)
    (tmp_path / "data" / "3.png").write_bytes((tmp_path / "data" / "3.png").read_bytes()[:-2000])  # its header is valid
    settings: dict[str, Any] = {"selectors": ["random", "uniform", "arr-coc"], "budgets": ["25%"], "tokens": 4}
    alone: list[Any] = []
    arr_coc.evaluate(
        model, data, **settings, run=tmp_path / "a", then=lambda report: alone.append(saved(tmp_path / "a"))
    )

    def saved_twice(report: Any) -> None:
        spread.append(saved(tmp_path / "b"))
        assert report.resumed == 2

    spread: list[Any] = []

    class Interrupting(Workers):
        def __call__(self, *arguments: Any) -> Iterator[Any]:
            for number, result in enumerate(super().__call__(*arguments)):
                if number == 2:
                    raise KeyboardInterrupt
                yield result

    with pytest.raises(Interrupted, match="interrupted after 2 of 6 pictures"):
        arr_coc.evaluate(model, data, **settings, run=tmp_path / "b", workers=Interrupting(2))
    report = arr_coc.evaluate(model, data, **settings, run=tmp_path / "b", workers=Workers(2), then=saved_twice)
    assert [name for name, _ in spread[0]] == [name for name, _ in alone[0]] == [f"{n}.png" for n in (0, 1, 2, 4, 5)]
    assert [records(rows) for _, rows in spread[0]] == [records(rows) for _, rows in alone[0]]
    assert len(report.problems) == 2
    with pytest.raises(ArrCocError, match="expected the names of model and embeddings"):
        arr_coc.evaluate(arr_coc.load(model), data, **settings, workers=Workers(2))


def saved(folder: Path) -> list[tuple[str, Any]]:
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()][1:]
    return [(line["picture"], line["rows"]) for line in lines]


def test_the_commands(ray: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, photos = write_data(tmp_path / "data", 3), write_photos(tmp_path / "photos", 45)
    command = ["eval", data, "--model", model, "--selectors", "uniform", "--budgets", "25%", "--tokens", "2", "--json"]
    for name, more in (("one", []), ("two", ["--ray", "2"])):
        assert main([*command, str(tmp_path / f"{name}.json"), *more]) == 0
    one, two = (json.loads((tmp_path / f"{name}.json").read_text())["records"] for name in ("one", "two"))
    assert [[row["accuracy"], row["kept"]] for row in one] == [[row["accuracy"], row["kept"]] for row in two]
    fit = ["fit-embeddings", photos, "--encoder", "tests.embedding.fake:make", "-o"]
    for name, more in (("one", []), ("two", ["--ray", "2"])):
        assert main([*fit, str(tmp_path / f"{name}.safetensors"), *more]) == 0
    identities = {Projection.load(tmp_path / f"{name}.safetensors").identity for name in ("one", "two")}
    assert len(identities) == 1
    capsys.readouterr()
    assert main([*fit, str(tmp_path / "three.safetensors"), "--ray", "0"]) == 2
    assert "--ray of at least 1 worker, got 0" in capsys.readouterr().err


def test_an_index_is_the_same_from_worker_processes(ray: Any, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("lancedb", reason="the extra `find` is not installed")
    photos = Path(write_photos(tmp_path / "photos", 20))
    (photos / "bad.png").write_bytes(b"no image")
    for name, more in (("one", []), ("two", ["--ray", "2"])):
        words = [
            "index",
            str(photos),
            "--encoder",
            "tests.embedding.fake:make",
            "--index",
            str(tmp_path / name),
            "--json",
        ]
        assert main([*words, *more]) == 1
        report = json.loads(capsys.readouterr().out)
        assert (report["images"], report["added"], len(report["unreadable"])) == (20, 20, 1)
    one, two = (arr_coc.Index(photos, place=tmp_path / name).find("red", 20) for name in ("one", "two"))
    assert [(found.path, found.score) for found in one] == [(found.path, found.score) for found in two]
