"""`Ask` as a stage of Ray Data, on two worker processes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.errors import BudgetError, PromptError, SelectorError
from arr_coc.ray import Ask
from arr_coc.ray.ask import KeptAnswers
from tests.serve.conftest import QUESTION, receipt

pytestmark = pytest.mark.filterwarnings("default")  # of ray
OPTIONS = {"budget": "50%", "glance": "75%", "tokens": 8}
TOTALS = [f"{10 + 7 * number}.{10 + 9 * number % 90}" for number in range(10)]


@pytest.fixture(scope="module")
def stage() -> Ask:
    return Ask("reader", **OPTIONS)  # type: ignore[arg-type]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for number, total in enumerate(TOTALS):
        receipt(total).save(tmp_path / f"{number}.png")
    return [str(tmp_path / f"{number}.png") for number in range(len(TOTALS))]


def column(*values: Any) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def test_images_of_every_kind_and_bad_rows(stage: Ask, paths: list[str]) -> None:
    buffer = io.BytesIO()
    receipt("7.35").save(buffer, "PNG")
    images = column(
        paths[0], buffer.getvalue(), np.asarray(receipt("96.04")), "/no/where.png", b"GIF89a", paths[1], paths[2]
    )
    texts = column(QUESTION, QUESTION, QUESTION, QUESTION, QUESTION, None, "<|image_pad|>")
    made = stage({"image": images, "question": texts, "id": np.arange(7)})
    assert made["answer"].tolist() == [TOTALS[0], "7.35", "96.04", "", "", "", ""]
    assert [error.split(" ")[0] for error in made["error"]] == ["", "", "", "there", "expected", "expected", "the"]
    assert made["visual_kept"].tolist() == [75, 75, 75, 0, 0, 0, 0]
    assert made["visual_encoded"][0] == 113
    assert made["id"].tolist() == list(range(7))


def test_a_missing_column_raises(stage: Ask) -> None:
    with pytest.raises(PromptError, match="expected a column 'image', got picture"):
        stage({"picture": column("a.png"), "question": column("?")})


@pytest.mark.parametrize(
    ("options", "kind"), [({"budget": "lots"}, BudgetError), ({"glance": -1}, BudgetError), ({"selector": "x"}, SelectorError)]
)  # fmt: skip
def test_bad_options_raise_before_a_model_is_loaded(options: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Ask("/not/read", **options)


@pytest.fixture
def in_order(ray: Any) -> Any:
    """Ray Data, which keeps the order of rows only if asked to."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    return ray.data


def rows_of(paths: list[str]) -> list[dict[str, Any]]:
    return [{"id": number, "image": path, "question": QUESTION} for number, path in enumerate(paths)]


def run(data: Any, paths: list[str], stage: type = Ask, **options: Any) -> Any:
    return data.from_items(rows_of(paths), override_num_blocks=5).map_batches(
        stage,
        fn_constructor_kwargs={"model": "reader", **OPTIONS, **options},
        batch_size=2,
        compute=data.ActorPoolStrategy(size=2),
        num_cpus=1,
    )


def test_two_workers_give_the_rows_of_one_process_in_order_although_one_is_killed(
    in_order: Any, stage: Ask, paths: list[str], tmp_path: Path
) -> None:
    class Mortal(Ask):
        """Its process dies once, in the middle of the data."""

        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
            if 4 in batch["id"] and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(1)
            return super().__call__(batch) | {"process": np.full(len(batch["id"]), os.getpid())}

    found = run(in_order, paths, Mortal).take_all()
    assert (tmp_path / "died").exists()
    assert len({row.pop("process") for row in found}) >= 2
    rows = rows_of(paths)
    batches = [
        stage({name: column(*(row[name] for row in rows[i : i + 2])) for name in rows[0]}) for i in range(0, 10, 2)
    ]
    alone = [{name: batch[name][i] for name in batch} for batch in batches for i in range(2)]
    assert [{name: str(row[name]) for name in row} for row in found] == [
        {name: str(row[name]) for name in row} for row in alone
    ]
    assert [row["answer"] for row in found] == TOTALS


def test_an_interrupted_job_asks_only_what_is_missing(in_order: Any, paths: list[str], tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    class Fails(Ask):
        def _answer(self, rows: Any) -> Any:
            if len(rows) and not (tmp_path / "failed").exists() and len(list(kept.rglob("*.json"))) >= 4:
                (tmp_path / "failed").touch()
                raise RuntimeError("no more")
            with (tmp_path / "asked").open("a") as file:
                file.write("x" * len(rows))
            return super()._answer(rows)

    with pytest.raises(Exception, match="no more"):
        run(in_order, paths, Fails, kept=str(kept)).take_all()
    before = len((tmp_path / "asked").read_text())
    found = run(in_order, paths, Fails, kept=str(kept)).take_all()
    assert [row["answer"] for row in found] == TOTALS
    assert {row["visual_kept"] for row in found} == {75}
    assert len((tmp_path / "asked").read_text()) - before <= len(TOTALS) - 4


def test_kept_answers_are_of_the_same_image_question_and_options(paths: list[str], tmp_path: Path) -> None:
    kept = KeptAnswers(tmp_path / "kept", ["model", {"budget": "25%"}])
    answer = {"answer": "x", "visual_all": 3, "visual_encoded": 2, "visual_kept": 1}
    key = kept.key(paths[0], "What?")
    assert kept.read(key) is None
    kept.write(key, answer)
    assert kept.read(kept.key(Path(paths[0]).read_bytes(), "What?")) == answer
    others = [kept.key(paths[1], "What?"), kept.key(paths[0], "Who?"), kept.key(np.asarray(receipt()), "What?")]
    others.append(KeptAnswers(tmp_path / "kept", ["model", {"budget": "50%"}]).key(paths[0], "What?"))
    assert [kept.read(other) for other in others] == [None] * 4
    next((tmp_path / "kept").rglob("*.json")).write_text('{"answer"')
    assert kept.read(key) is None  # a damaged file is asked again
