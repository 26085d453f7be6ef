"""When work is recorded, what is kept, and that replays say the same. Without a GPU, graphs are played by the work itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from arr_coc.texture.kernels import replaying, using
from arr_coc.texture.kernels.replaying import OFTEN, STALE, Replays, recordable
from arr_coc.texture.strokes import stroke_text

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")


class Doubling:
    """Work that writes where it wrote before, as a graph does, and counts."""

    def __init__(self) -> None:
        self.runs = 0
        self.results: dict[torch.Size, torch.Tensor] = {}

    def __call__(self, given: torch.Tensor) -> tuple[torch.Tensor]:
        self.runs += 1
        return (self.results.setdefault(given.shape, torch.empty_like(given)).copy_(2 * given),)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Graphs that were made: each plays its work again."""
    made: list[Any] = []

    class Graph:
        def __init__(self, work: Callable[[], object]) -> None:
            self.replay = work
            work()

    def captured(work: Callable[[], object], device: object, pool: object, aside: object) -> Graph:
        made.append(Graph(work))
        return made[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(replaying, "captured", captured)
    monkeypatch.setattr(replaying, "_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    return made


def asked(replays: Replays, work: Any, size: int, times: int, state: object = 0) -> None:
    for number in range(times):
        given = torch.full((size,), float(number))
        (found,) = replays.run(state, "double", work, (given,))
        assert torch.equal(found, 2 * given)


def test_what_comes_often_is_recorded_once(graphs: list[Any]) -> None:
    replays, work = Replays(4), Doubling()
    asked(replays, work, 3, OFTEN - 1)
    assert not graphs
    asked(replays, work, 3, 5)
    asked(replays, work, 4, OFTEN - 1)  # another shape
    assert len(graphs) == len(replays) == 1
    asked(replays, work, 4, 1)
    assert len(graphs) == len(replays) == 2


def test_results_are_not_written_over(graphs: list[Any]) -> None:
    replays, work = Replays(4), Doubling()
    asked(replays, work, 3, OFTEN)
    first, second = (replays.run(0, "double", work, (torch.full((3,), value),))[0] for value in (5.0, 6.0))
    assert first.tolist() == [10.0] * 3
    assert second.tolist() == [12.0] * 3


def test_another_state_drops_what_was_recorded(graphs: list[Any]) -> None:
    replays, work = Replays(4), Doubling()
    asked(replays, work, 3, OFTEN)
    asked(replays, work, 3, OFTEN - 1, state=1)
    assert len(replays) == 0
    asked(replays, work, 3, 1, state=1)
    assert len(replays) == 1
    assert len(graphs) == 2


def test_few_are_kept_until_others_come_often(graphs: list[Any]) -> None:
    replays, work = Replays(2), Doubling()
    for size in (1, 2, 3):
        asked(replays, work, size, OFTEN)
    assert len(replays) == 2  # no room for the third
    asked(replays, work, 3, STALE - OFTEN - 1)
    assert len(replays) == 2
    asked(replays, work, 3, 1)  # then the others make room, both of them
    assert len(replays) == 1
    asked(replays, work, 1, OFTEN - 1)
    assert len(replays) == 1
    asked(replays, work, 1, 1)
    assert len(replays) == 2


def test_what_cannot_be_recorded_is_done_as_it_is(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def fails(*given: object) -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(replaying, "captured", fails)
    replays, work = Replays(4), Doubling()
    with pytest.warns(UserWarning, match="could not be recorded and takes longer .operation not permitted"):
        asked(replays, work, 3, OFTEN + 3)
    assert tries == 1
    assert len(replays) == 0


def test_on_a_cpu_nothing_is_recorded() -> None:
    assert not recordable(torch.zeros(3))


@gpu
@pytest.mark.parametrize("size", [(64, 96), (65, 97), (700, 901)])
def test_recorded_text_is_the_same(size: tuple[int, int]) -> None:
    for number in range(OFTEN + 2):
        picture = (
            torch.rand(3, size[1], size[0], generator=torch.Generator().manual_seed(number)).cuda().transpose(1, 2)
        )
        with using("torch"):
            plain = stroke_text(picture)
        with torch.inference_mode(number % 2 == 0):
            assert torch.allclose(stroke_text(picture), plain, atol=1e-6)


@gpu
def test_a_failed_recording_leaves_the_stream() -> None:
    replays, given = Replays(4), torch.ones(3, device="cuda")
    before = torch.cuda.current_stream()

    def wait() -> None:
        replays.run(0, "waits", lambda one: (one * one.sum().item(),), (given,))

    for _ in range(OFTEN - 1):
        wait()
    with pytest.warns(UserWarning, match="could not be recorded"):
        wait()
    assert torch.cuda.current_stream() == before
    assert float((given + 1).sum()) == 6


@gpu
def test_recordings_outlive_those_of_others() -> None:
    """Products use memory that belongs to a stream: dropping one kind of recordings must not take it from another."""
    weights = torch.rand(256, 256, device="cuda")
    kept, dropped, given = Replays(4), Replays(4), torch.rand(64, 256, device="cuda")
    for replays in (kept, dropped):
        for _ in range(OFTEN):
            replays.run(0, "product", lambda one: (one @ weights,), (given,))
    dropped._clear(1)
    torch.cuda.empty_cache()
    filling = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(32)]
    (found,) = kept.run(0, "product", lambda one: (one @ weights,), (given,))
    assert torch.allclose(found, given @ weights, rtol=1e-3)
    assert len(filling) == 32
