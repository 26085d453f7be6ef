"""When work is captured, what is cached, and that replays give the same. Without a GPU the work itself stands in for a graph."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arr_coc.texture.channels.text import stroke_text
from arr_coc.texture.kernels import cuda_graph, using
from arr_coc.texture.kernels.cuda_graph import CAPTURE_AFTER, EVICT_AFTER, GraphCache, RecordedWork, can_capture

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")


class Double:
    """Work that writes into the same memory each time, as a graph does, and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.results: dict[torch.Size, torch.Tensor] = {}

    def __call__(self, given: torch.Tensor) -> tuple[torch.Tensor]:
        self.runs += 1
        return (self.results.setdefault(given.shape, torch.empty_like(given)).copy_(2 * given),)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs captured so far; each runs its work again."""
    made: list[Any] = []

    class Graph:
        def __init__(self, work: Callable[[], object]) -> None:
            self.replay = work
            work()

    def capture_graph(work: Callable[[], object], device: object, pool: object, stream: object) -> Graph:
        made.append(Graph(work))
        return made[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(cuda_graph, "capture_graph", capture_graph)
    monkeypatch.setattr(cuda_graph, "_current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    return made


def run(cache: GraphCache, work: Any, size: int, times: int, state: object = 0) -> None:
    for number in range(times):
        given = torch.full((size,), float(number))
        (found,) = cache.run(state, "double", work, (given,))
        assert torch.equal(found, 2 * given)


def test_a_repeated_shape_is_captured_once(graphs: list[Any]) -> None:
    cache, work = GraphCache(4), Double()
    run(cache, work, 3, CAPTURE_AFTER - 1)
    assert not graphs
    run(cache, work, 3, 5)
    run(cache, work, 4, CAPTURE_AFTER - 1)  # another shape
    assert len(graphs) == len(cache) == 1
    run(cache, work, 4, 1)
    assert len(graphs) == len(cache) == 2


def test_results_are_not_overwritten(graphs: list[Any]) -> None:
    cache, work = GraphCache(4), Double()
    run(cache, work, 3, CAPTURE_AFTER)
    first, second = (cache.run(0, "double", work, (torch.full((3,), value),))[0] for value in (5.0, 6.0))
    assert first.tolist() == [10.0] * 3
    assert second.tolist() == [12.0] * 3


def test_a_new_state_drops_all_graphs(graphs: list[Any]) -> None:
    cache, work = GraphCache(4), Double()
    run(cache, work, 3, CAPTURE_AFTER)
    run(cache, work, 3, CAPTURE_AFTER - 1, state=1)
    assert len(cache) == 0
    run(cache, work, 3, 1, state=1)
    assert len(cache) == 1
    assert len(graphs) == 2


def test_a_full_cache_is_cleared_for_a_frequent_shape(graphs: list[Any]) -> None:
    cache, work = GraphCache(2), Double()
    for size in (1, 2, 3):
        run(cache, work, size, CAPTURE_AFTER)
    assert len(cache) == 2  # full: not the third
    run(cache, work, 3, EVICT_AFTER - CAPTURE_AFTER - 1)
    assert len(cache) == 2
    run(cache, work, 3, 1)  # clears the cache, then captures
    assert len(cache) == 1
    run(cache, work, 1, CAPTURE_AFTER - 1)
    assert len(cache) == 1
    run(cache, work, 1, 1)
    assert len(cache) == 2


def test_work_that_cannot_be_captured_runs_without_a_graph(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def fails(*given: object) -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(cuda_graph, "capture_graph", fails)
    cache, work = GraphCache(4), Double()
    with pytest.warns(UserWarning, match="could not capture a CUDA graph.*.operation not permitted"):
        run(cache, work, 3, CAPTURE_AFTER + 3)
    assert tries == 1
    assert len(cache) == 0


def test_a_failed_capture_gives_random_numbers_their_state_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Generator:
        state = "usual"

        def clone_state(self) -> str:
            return self.state

        def graphsafe_set_state(self, state: str) -> None:
            self.state = state

    mine = Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (None, mine))

    def capture() -> None:
        with cuda_graph._keep_generator(torch.device("cuda:1")):
            mine.state = "capturing"
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="operation not permitted"):
        capture()
    assert mine.state == "usual"
    with cuda_graph._keep_generator(torch.device("cuda:1")):
        mine.state = "drawn from"
    assert mine.state == "drawn from"


@pytest.mark.parametrize("begun", [True, False])
def test_a_failed_capture_leaves_no_pool_behind(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def end(*given: Any) -> None:
        if not begun:
            raise RuntimeError("not currently recording to mempool_id")
        done.append(("end", *given))

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *given: done.append(("release", *given)), raising=False)

    def capture(fails: bool) -> None:
        with cuda_graph._keep_allocator(torch.device("cuda:1"), (0, 7)):
            if fails:
                raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="operation not permitted"):
        capture(True)
    assert done == ([("end", 1, (0, 7)), ("release", 1, (0, 7))] if begun else [])
    done.clear()
    capture(False)
    assert not done


def test_after_a_failed_capture_the_next_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Any] = []

    def capture_graph(work: Callable[[], object], device: object, pool: object, stream: object) -> object:
        pools.append(pool)
        if len(pools) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        work()
        return SimpleNamespace(replay=work)

    monkeypatch.setattr(cuda_graph, "capture_graph", capture_graph)
    monkeypatch.setattr(cuda_graph, "_current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    cache, work = GraphCache(4), Double()
    run(cache, work, 1, CAPTURE_AFTER)
    with pytest.warns(UserWarning, match="could not capture"):
        run(cache, work, 2, CAPTURE_AFTER)
    for size in (3, 4):
        run(cache, work, size, CAPTURE_AFTER)
    assert pools[0] is pools[1] is not pools[2]
    assert pools[2] is pools[3]
    assert len(cache) == 3


@pytest.mark.parametrize("keep", [True, False])
def test_graphs_hold_their_work_or_are_freed_with_its_owner(keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture_graph(work: Callable[[], object], *given: object) -> object:
        work()
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr(cuda_graph, "capture_graph", capture_graph)
    monkeypatch.setattr(cuda_graph, "_current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    cache, work = GraphCache(4, keep_work=keep), Double()
    run_times = [cache.run(0, "double", work, (torch.zeros(3),)) for _ in range(CAPTURE_AFTER)]
    assert len(cache) == 1
    alive = weakref.ref(work)
    del work, run_times
    gc.collect()
    assert (alive() is not None) == keep


def test_runs_on_two_streams_wait_for_each_other_and_for_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches by stream: each run waits for the end of the last one, and a release for what ran since, before it ends."""
    log: list[tuple[str, str]] = []

    class Stream:
        def __init__(self, name: object = "side") -> None:
            self.name = str(name)

        def wait_event(self, event: object) -> None:
            log.append((self.name, "waits"))

    class Event:
        def record(self, stream: Stream) -> None:
            log.append((stream.name, "ends"))

    def capture_graph(work: Callable[[], object], device: object, pool: object, stream: object) -> object:
        work()
        return SimpleNamespace(replay=lambda: log.append((now.name, "runs")))

    now = Stream("a")
    for name, value in {"Stream": Stream, "Event": Event, "current_stream": lambda device: now}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(cuda_graph, "capture_graph", capture_graph)
    monkeypatch.setattr(cuda_graph, "can_capture", lambda *given: True)
    monkeypatch.setattr(RecordedWork, "_streams", {})
    made = RecordedWork(lambda one: (one + 1,), (torch.zeros(2),))
    assert log == [("a", "waits"), ("a", "ends")]  # the workspace is shared with what runs next
    log.clear()
    made.run()
    now = Stream("b")
    made.run()
    now = Stream("a")
    made.release()
    assert log == [(stream, what) for stream in "ab" for what in ("waits", "runs", "ends")] + [
        ("a", "waits"),
        ("a", "ends"),
    ]


class TestRecordedWork:
    """On a CPU the work runs on the buffers."""

    def test_inputs_fill_the_start_of_their_buffers(self) -> None:
        made = RecordedWork(lambda one, other: (one + other,), (torch.zeros(2, 3), torch.ones(2, 3)))
        made.load(torch.tensor([[5.0, 6.0]]), None)
        assert made.run()[0].tolist() == [[6, 7, 1], [1, 1, 1]]
        made.load(None, torch.full((2, 3), 2.0))
        assert made.run()[0].tolist() == [[7, 8, 2], [2, 2, 2]]
        assert not made.is_graph

    def test_what_one_mode_allocates_serves_all(self) -> None:
        kept: list[torch.Tensor] = []

        def work(given: torch.Tensor) -> tuple[torch.Tensor]:
            if not kept:
                kept.append(torch.zeros_like(given))
            return (kept[0].add_(given),)

        buffer = torch.ones(2)
        with torch.inference_mode():
            made = RecordedWork(work, (buffer,))
            made.run()
        made.load(torch.ones(2, requires_grad=True))
        (found,) = made.run()
        assert found.tolist() == [2, 2]
        assert not found.requires_grad


def test_nothing_is_captured_on_a_cpu() -> None:
    assert not can_capture(torch.zeros(3))


@gpu
@pytest.mark.parametrize("size", [(64, 96), (65, 97), (700, 901)])
def test_captured_text_is_the_same(size: tuple[int, int]) -> None:
    for number in range(CAPTURE_AFTER + 2):
        picture = (
            torch.rand(3, size[1], size[0], generator=torch.Generator().manual_seed(number)).cuda().transpose(1, 2)
        )
        with using("torch"):
            plain = stroke_text(picture)
        with torch.inference_mode(number % 2 == 0):
            assert torch.allclose(stroke_text(picture), plain, atol=1e-6)


@gpu
def test_a_failed_capture_restores_the_stream() -> None:
    cache, given = GraphCache(4), torch.ones(3, device="cuda")
    before = torch.cuda.current_stream()

    def wait() -> None:
        cache.run(0, "waits", lambda one: (one * one.sum().item(),), (given,))

    for _ in range(CAPTURE_AFTER - 1):
        wait()
    with pytest.warns(UserWarning, match="could not capture"):
        wait()
    assert torch.cuda.current_stream() == before
    assert float((given + 1).sum()) == 6
    assert torch.rand(3, device="cuda").shape == (3,)
    torch.cuda.empty_cache()  # no capture is under way any more
    for _ in range(CAPTURE_AFTER):
        (found,) = cache.run(0, "doubles", lambda one: (one * 2,), (given,))
    assert found.tolist() == [2, 2, 2]
    assert len(cache) == 1


@gpu
def test_dropping_one_cache_leaves_another_valid() -> None:
    """Matrix products use a workspace per stream: dropping one cache must not free that of another."""
    weights = torch.rand(256, 256, device="cuda")
    kept, dropped, given = GraphCache(4), GraphCache(4), torch.rand(64, 256, device="cuda")
    for cache in (kept, dropped):
        for _ in range(CAPTURE_AFTER):
            cache.run(0, "product", lambda one: (one @ weights,), (given,))
    dropped._clear(1)
    torch.cuda.empty_cache()
    filling = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(32)]
    (found,) = kept.run(0, "product", lambda one: (one @ weights,), (given,))
    assert torch.allclose(found, given @ weights, rtol=1e-3)
    assert len(filling) == 32


@gpu
def test_recorded_work_on_two_streams_and_after_others_are_dropped() -> None:
    weights, given = torch.rand(64, 64, device="cuda"), torch.rand(8, 64, device="cuda")
    made = RecordedWork(lambda one: (one @ weights,), (torch.zeros(8, 64, device="cuda"),))
    other = RecordedWork(lambda one: (one @ weights + 1,), (torch.zeros(8, 64, device="cuda"),))
    assert made.is_graph
    del other
    torch.cuda.empty_cache()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made.load(given)
            found = made.run()[0].clone()
        stream.synchronize()
        assert torch.allclose(found, given @ weights, rtol=1e-3)
