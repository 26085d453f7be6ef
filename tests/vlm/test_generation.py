"""Streaming: the pieces of an answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import BudgetError, PromptError
from arr_coc.types.answer import Answer
from arr_coc.vlm.generation import AnswerStream
from tests.adapters.tiny_vlm import GREEDY, picture


def test_the_pieces_are_the_answer(vlm: Any) -> None:
    asked = vlm.ask(picture(), "What is it?", budget="40%", selector="uniform", **GREEDY)
    stream = vlm.stream(picture(), "What is it?", budget="40%", selector="uniform", **GREEDY)
    assert "".join(stream) == asked.text
    assert stream.answer.text == asked.text
    assert stream.answer.ids.tolist() == asked.ids.tolist()
    assert stream.answer.allocation.keep.tolist() == asked.allocation.keep.tolist()
    assert list(stream) == []


@pytest.mark.parametrize("selector", ["arr-coc", "fastv"])
def test_the_reader_streams_its_answer(selector: str) -> None:
    reader, receipt = arr_coc.load("reader"), arr_coc.pictures.receipt()
    question = "What is the name of the company?"
    pieces = list(reader.stream(receipt, question, budget="50%", selector=selector))
    assert "".join(pieces) == reader.ask(receipt, question, budget="50%", selector=selector).text
    assert len(pieces) > 5


def test_closing_the_stream_stops_the_model(vlm: Any) -> None:
    asked: list[int] = []

    def count(ids: Any, scores: Any, **_: Any) -> torch.Tensor:
        asked.append(1)
        return torch.zeros(len(ids), dtype=torch.bool)

    with vlm.stream(picture(), "What?", max_new_tokens=500, min_new_tokens=500, stopping_criteria=[count]):
        pass
    assert len(asked) < 400
    with pytest.raises(PromptError, match="still being generated"):
        _ = vlm.stream(picture(), "What?", **GREEDY).answer


def test_errors_are_raised_to_the_reader_of_the_stream(vlm: Any) -> None:
    with pytest.raises(BudgetError):
        list(vlm.stream(picture(), "What?", budget="some"))
    with pytest.raises(PromptError, match="one question"):
        vlm.stream(picture(), ["What?", "Who?"])
    with pytest.raises(PromptError, match="num_beams=1"):
        vlm.stream(picture(), "What?", num_beams=2)


def test_a_character_of_several_tokens_is_emitted_whole() -> None:
    done = threading.Event()

    def run(streamer: Any, stop: Any) -> Answer:
        streamer.put(torch.tensor([[9, 9, 9]]))  # the prompt
        for byte in "aé".encode():
            streamer.put(torch.tensor([byte]))
        streamer.end()
        done.set()
        return Answer("aé!", (), {}, torch.tensor([1]))

    pieces = list(AnswerStream(run, lambda ids: bytes(ids.tolist()).decode(errors="replace")))
    assert done.is_set()
    assert pieces == ["a", "é", "!"]


def test_token_probabilities_are_those_of_the_model(vlm: Any) -> None:
    settings = {"budget": "40%", "selector": "uniform"}
    answers = vlm.ask(picture(), ["What is it?", "Who?"], **settings, **GREEDY)
    for question, answer in zip(("What is it?", "Who?"), answers, strict=True):
        prepared = vlm.prepare(picture(), question, **settings)
        options = {"output_scores": True, "return_dict_in_generate": True}
        result = vlm.model.generate(**prepared, **GREEDY, **options)
        scores = vlm.model.compute_transition_scores(result.sequences, result.scores, normalize_logits=True)
        found = answer.token_probabilities
        assert found.shape == answer.ids.shape
        torch.testing.assert_close(found, scores[0, : len(found)].exp(), rtol=1e-4, atol=1e-6)
    beams = vlm.ask(picture(), "Who?", **settings, **GREEDY, num_beams=2)
    assert (beams.token_probabilities, beams.confidence, beams.confidence_source) == (None, None, "")
