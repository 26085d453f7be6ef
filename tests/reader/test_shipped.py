"""The reader that ships: it reads the bundled receipt, and answers any picture and question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

import arr_coc
from arr_coc import reader
from arr_coc.draw.textures import draw_texture

QUESTIONS = {
    "What is the total amount?": "37.40",
    "What is the date?": "12/03/2026",
    "What is the name of the company?": "HARBOUR MILL BAKERY",
    "How much is the Oat croissant?": "3.45",
    "What is the invoice number?": "not in the picture",
    "Is there a cat?": "not in the picture",
}


@pytest.fixture(scope="module")
def vlm() -> Any:
    return arr_coc.load("reader")


def test_it_reads_the_bundled_receipt_and_encodes_it_once(vlm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    encode = vlm.adapter.encode
    monkeypatch.setattr(vlm.adapter, "encode", lambda *args: calls.append(1) or encode(*args))
    answers = vlm.ask(vlm.look(arr_coc.pictures.receipt()), list(QUESTIONS), budget="all")
    assert [answer.text for answer in answers] == list(QUESTIONS.values())
    assert [bool(answer.refused) for answer in answers] == [text == "not in the picture" for text in QUESTIONS.values()]
    assert all(0 <= answer.confidence <= 1 and answer.confidence_source == "calibrated" for answer in answers)
    assert len(calls) == 1


def test_it_points_at_what_it_read(vlm: Any) -> None:
    prepared = vlm.prepare(arr_coc.pictures.receipt(), "What is the date?")
    where = vlm.point(prepared, vlm.generate(prepared)[0])[0]
    grid = prepared.allocations[0].grid
    left, top, right, bottom = grid.boxes(where.argmax()[None], (473, 1024))[0].tolist()
    assert 230 < top < bottom < 320  # the date's line
    assert 30 < left < right < 200


def test_it_answers_from_half_of_the_tokens(vlm: Any) -> None:
    answer = vlm.ask(arr_coc.pictures.receipt(), "What is the total amount?", budget="50%")
    assert answer.text == "37.40"
    assert answer.tokens["kept"] * 2 == answer.tokens["all"]


def test_transformers_loads_it_alone_in_half_precision() -> None:
    model = AutoModelForImageTextToText.from_pretrained(reader.WEIGHTS)
    assert type(model).__name__ == "Qwen2VLForConditionalGeneration"
    assert model.dtype == torch.float16
    assert (reader.WEIGHTS / "model.safetensors").stat().st_size < 40e6
    assert [file.name for file in reader.WEIGHTS.glob("*.safetensors")] == ["model.safetensors"]  # engines load all


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGB", (400, 300)),
        Image.new("RGB", (400, 300), "white"),
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)),
        arr_coc.pictures.scene(),
        Image.new("L", (10000, 2000), 255),
        Image.new("RGBA", (3, 3)),
        Image.new("RGB", (1, 1), "gray"),
        draw_texture("grass", 3, (360, 360)),
    ],
    ids=["black", "white", "noise", "scene", "10000 px", "3 x 3", "1 x 1", "grass"],
)
def test_a_picture_without_a_document_is_refused_with_a_reason(vlm: Any, image: Image.Image) -> None:
    answer = vlm.ask(image, "What is the total amount?")
    assert len(answer.ids) <= 160
    assert 64 <= answer.tokens["all"] <= 900
    assert (answer.text, bool(answer.refused), bool(answer.raw_text)) == ("not in the picture", True, True)
    assert not vlm.ask(image, "What is the total amount?", refuse="off").refused


@pytest.mark.parametrize("question", ["?" * 2000, "合計はいくらですか", "Wie hoch ist die Summe? Grüße, Æneas"])
def test_any_question_gets_an_answer_that_ends(vlm: Any, question: str) -> None:
    assert len(vlm.ask(arr_coc.pictures.receipt().resize((200, 400)), question).ids) <= 160
