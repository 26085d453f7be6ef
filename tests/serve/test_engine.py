"""The worker thread: batches, the bounded queue, cancellation, and stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image

from arr_coc.errors import PromptError
from arr_coc.serve.engine import BusyError, Engine, Sampling, StoppingError, Work
from arr_coc.serve.limits import EndpointLimits
from arr_coc.serve.rows import Event, Piece, Result
from arr_coc.serve.settings import Selection
from arr_coc.vlm.model import VLM
from tests.serve.conftest import QUESTION, ScriptedModel, receipt, wait_until


def work(text: str = "What?", *, image: Any = None, **changes: Any) -> Work:
    images = [] if image is None else [image]
    parts = [{"type": "image", "image": one} for one in images]
    content = [*parts, {"type": "text", "text": text}]
    pixels = sum(one.width * one.height / 1e6 for one in images)
    options: dict[str, Any] = {"selection": Selection(), "sampling": Sampling(), "max_tokens": 50} | changes
    return Work([{"role": "user", "content": content}], len(images), pixels, **options)


class Inbox(list[Event]):
    """Collects the events of one request."""

    @property
    def last(self) -> Event:
        wait_until(lambda: bool(self) and not isinstance(self[-1], Piece), 30)
        return self[-1]

    @property
    def result(self) -> Result:
        assert isinstance(self.last, Result), self.last
        return self.last


def submit(engine: Engine, *works: Work) -> list[Inbox]:
    boxes = [Inbox() for _ in works]
    for one, box in zip(works, boxes, strict=True):
        engine.submit(one, box.append)
    return boxes


def waiting_gate(opened: threading.Event, at: int = 0) -> Callable[[int], object]:
    return lambda step: step != at or opened.wait(20)


def test_concurrent_requests_get_their_own_answers_in_one_batch(reader: VLM) -> None:
    """The answers of a batch are those of `ask`: different images, questions, lengths and streams."""
    totals = ["18.20", "7.35", "96.04"]
    selection = Selection("50%", "75%")
    asked = [work(QUESTION, image=receipt(total), selection=selection) for total in totals]
    asked.append(work(QUESTION, image=receipt("55.10"), selection=selection, max_tokens=2))
    asked.append(work(QUESTION, image=receipt("42.42"), selection=selection, stream=True))
    engine = Engine(reader, EndpointLimits())
    boxes = submit(engine, *asked)  # before it starts: all wait at the same moment
    engine.start()
    results = [box.result for box in boxes]
    engine.close()
    assert [result.batch for result in results] == [5] * 5
    assert [result.text for result in results] == [*totals, "55", "42.42"]
    assert [result.finish for result in results] == ["stop", "stop", "stop", "length", "stop"]
    assert "".join(piece.text for piece in boxes[4] if isinstance(piece, Piece)) == "42.42"
    alone = reader.ask(receipt(totals[1]), QUESTION, budget="50%", glance="75%")
    assert (alone.text, alone.tokens, alone.prompt_tokens) == (totals[1], results[1].visual, results[1].prompt_tokens)
    assert len(alone.ids) == results[1].completion_tokens


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ({}, {}, True),
        ({"max_tokens": 3}, {"stream": True, "stop": ("x",)}, True),
        ({"selection": Selection("25%")}, {}, False),
        ({"sampling": Sampling(0.7)}, {}, False),
        ({"sampling": Sampling(0.7, seed=1)}, {"sampling": Sampling(0.7, seed=1)}, False),
        ({"sampling": Sampling(0.0, seed=1)}, {"sampling": Sampling(0.0, seed=1)}, True),
        ({"image": receipt()}, {}, False),
        ({"image": receipt()}, {"image": receipt().resize((400, 290))}, True),
        ({"image": receipt()}, {"image": receipt().resize((1200, 800))}, False),
    ],
)
def test_only_requests_of_one_shape_are_answered_together(
    first: dict[str, Any], second: dict[str, Any], together: bool
) -> None:
    model = ScriptedModel()
    engine = Engine(model, EndpointLimits())  # type: ignore[arg-type]
    boxes = submit(engine, work(**first), work(**second))
    engine.start()
    assert [bool(box.result) for box in boxes] == [True, True]
    assert len(model.batches) == (1 if together else 2)
    engine.close()


def test_a_seed_repeats_the_draws_and_leaves_the_generator_alone() -> None:
    def draws(seed: int | None) -> list[float]:
        drawn: list[float] = []
        engine = Engine(ScriptedModel(gate=lambda step: drawn.append(float(torch.rand(1)))), EndpointLimits())  # type: ignore[arg-type]
        submit(engine, work(sampling=Sampling(1.0, seed=seed)))
        engine.start()
        engine.close()
        return drawn

    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert draws(1) == draws(1) != draws(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert draws(None) != draws(None)


def test_one_bad_request_does_not_spoil_its_batch() -> None:
    model = ScriptedModel()
    engine = Engine(model, EndpointLimits())  # type: ignore[arg-type]
    good, bad, broken, other = submit(engine, work(), work("bad"), work("broken"), work("Why?"))
    engine.start()
    assert (good.result.text, other.result.text) == ("hello", "hello")
    assert isinstance(bad.last, PromptError)
    assert isinstance(broken.last, RuntimeError)
    engine.close()


def test_the_thread_goes_on_after_an_answer_that_cannot_be_decoded() -> None:
    model = ScriptedModel()
    engine = Engine(model, EndpointLimits())  # type: ignore[arg-type]
    decode = model.prompter.decode
    model.prompter.decode = lambda ids: {}["missing"]
    engine.start()
    (box,) = submit(engine, work())
    assert isinstance(box.last, KeyError)
    model.prompter.decode = decode
    (box,) = submit(engine, work())
    assert box.result.text == "hello"
    engine.close()


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    opened = threading.Event()
    engine = Engine(ScriptedModel(gate=waiting_gate(opened)), EndpointLimits(queue=2, batch=1))  # type: ignore[arg-type]
    engine.start()
    boxes = submit(engine, work())
    wait_until(lambda: engine.metrics.registry.get_sample_value("arr_coc_running") == 1)
    boxes += submit(engine, work(), work())
    with pytest.raises(BusyError, match="2 requests wait already") as refused:
        engine.check_room()
    assert refused.value.seconds >= 1
    with pytest.raises(BusyError):
        submit(engine, work())
    opened.set()
    assert [box.result.text for box in boxes] == ["hello"] * 3
    engine.check_room()
    engine.close()


def test_images_in_memory_are_bounded() -> None:
    engine = Engine(ScriptedModel(), EndpointLimits(kept_megapixels=10))  # type: ignore[arg-type]
    with engine.hold(8):
        with pytest.raises(BusyError, match="8 of 10 megapixels"), engine.hold(3):
            pass
        with engine.hold(2):
            pass
    with engine.hold(11):  # one request alone is always let in: its own limits apply
        pass


@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_request_costs_nothing_more(running: bool) -> None:
    opened = threading.Event()
    model = ScriptedModel("x" * 40, waiting_gate(opened, at=3))
    engine = Engine(model, EndpointLimits(batch=1))  # type: ignore[arg-type]
    engine.start()
    jobs = [engine.submit(work(), Inbox().append)]
    wait_until(lambda: model.steps == 3)
    jobs.append(engine.submit(work("waiting"), Inbox().append))
    engine.cancel(jobs[0 if running else 1])
    opened.set()
    engine.close()
    assert model.steps == (4 + 41 if running else 41)
    assert model.batches == [["What?"], ["waiting"]] if running else [["What?"]]
    assert engine.metrics.registry.get_sample_value("arr_coc_cancelled_total") == 1


def test_a_drained_engine_answers_what_it_accepted() -> None:
    opened = threading.Event()
    engine = Engine(ScriptedModel(gate=waiting_gate(opened)), EndpointLimits(batch=1))  # type: ignore[arg-type]
    engine.start()
    boxes = submit(engine, work(), work())
    engine.drain()
    with pytest.raises(StoppingError):
        submit(engine, work())
    assert not engine.healthy
    opened.set()
    assert [box.result.text for box in boxes] == ["hello", "hello"]
    engine.close()


def test_an_aborted_engine_says_so_to_every_request() -> None:
    opened = threading.Event()
    model = ScriptedModel("x" * 40, waiting_gate(opened, at=3))
    engine = Engine(model, EndpointLimits(batch=1))  # type: ignore[arg-type]
    engine.start()
    boxes = submit(engine, work(), work())
    wait_until(lambda: model.steps == 3)
    engine.abort()
    opened.set()
    assert all(isinstance(box.last, StoppingError) for box in boxes)
    assert model.steps == 4
    engine.close()


def test_a_blank_page_is_refused_and_a_stop_string_is_judged_again(reader: VLM) -> None:
    blank = Image.new("RGB", (300, 300), "white")
    kinds = (Selection("25%"), Selection("25%", refuse="off"))
    engine = Engine(reader, EndpointLimits())
    boxes = submit(
        engine, *(work(QUESTION, image=blank, selection=one, stop=stop) for one in kinds for stop in ((), (".",)))
    )
    engine.start()
    refused, cut, raw, _ = (box.result for box in boxes)
    engine.close()
    assert (refused.text, cut.text) == ("not in the picture", "not in the picture")
    assert "nothing to read" in refused.refused
    assert refused.raw_text == raw.text == raw.raw_text
    assert cut.raw_text == raw.text.split(".")[0]
    assert raw.refused == ""
    assert all(0 <= one.confidence <= 1 for one in (refused, cut, raw))


def test_answers_carry_their_confidence_and_an_unsure_one_is_read_again(reader: VLM) -> None:
    """A stop string ends a row early; its padding in the batch must not count."""
    plain, stopped = (work(QUESTION, image=receipt(), selection=Selection("25%"), stop=stop) for stop in ((), (".",)))
    unsure = work(QUESTION, image=receipt("7.35"), selection=Selection("6%", selector="uniform", sure=1.0))
    engine = Engine(reader, EndpointLimits())
    boxes = submit(engine, plain, stopped, unsure)
    engine.start()
    first, cut, again = (box.result for box in boxes)
    engine.close()
    alone = reader.ask(receipt(), QUESTION, budget="25%")
    assert first.confidence == pytest.approx(alone.confidence, abs=0.01)
    assert first.confidence_source == alone.confidence_source
    assert cut.text == "18"
    assert cut.confidence is not None
    assert cut.confidence > 0.5 * (first.confidence or 1)
    assert first.tried == ()
    assert len(again.tried) > 1
    kept = [one["kept"] for one in again.tried]
    assert kept == sorted(kept)
    best = max(again.tried, key=lambda one: one["confidence"])
    assert (again.text, again.confidence) == (best["answer"], best["confidence"])
