"""`Ask` as a stage of Ray Data, on two worker processes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.errors import BudgetError, PromptError, SelectorError
from arr_coc.ray import Ask
from tests.serve.conftest import QUESTION, receipt, wait_until

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
def in_order(ray: Any) -> Iterator[Any]:
    """Ray Data, which keeps the order of rows only if asked to."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    yield ray.data
    context.checkpoint_config = None


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


def test_an_interrupted_job_continues_with_the_rows_that_are_missing(
    in_order: Any, ray: Any, paths: list[str], tmp_path: Path
) -> None:
    """Ray Data's checkpoints: rows that were written are not asked again.

    A job that ends between writing rows and noting that writes these rows twice, so they are compared by their ids.
    """

    class Fails(Ask):
        def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
            with (tmp_path / "asked").open("a") as file:
                file.write("".join(f"{number}\n" for number in batch["id"]))
            if 9 in batch["id"] and not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                wait_until(lambda: len(list((tmp_path / "checkpoint").rglob("*.parquet"))) > 1, 60)
                raise RuntimeError("no more")
            return super().__call__(batch)

    from ray.data.checkpoint import CheckpointConfig

    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=str(tmp_path / "checkpoint"))
    out = str(tmp_path / "out")
    with pytest.raises(Exception, match="no more"):
        run(in_order, paths, Fails).write_parquet(out)
    run(in_order, paths, Fails).write_parquet(out)
    asked = [int(line) for line in (tmp_path / "asked").read_text().split()]
    context.checkpoint_config = None
    found = {row["id"]: row["answer"] for row in in_order.read_parquet(out).take_all()}
    assert found == dict(enumerate(TOTALS))
    assert len(asked) < 2 * len(TOTALS)
