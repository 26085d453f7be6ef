"""The pipeline of transformers: the stock one's answers with all tokens, `ask`'s with some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import pipeline

import arr_coc
from arr_coc.engines.pipeline import ArrCocPipeline
from arr_coc.errors import ArrCocError
from arr_coc.vlm.model import VLM

pytestmark = pytest.mark.filterwarnings("default")  # of transformers
QUESTION = "What is the total amount?"


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return arr_coc.load("reader")


@pytest.fixture(scope="module")
def receipt() -> Image.Image:
    return arr_coc.pictures.receipt()


def chat(image: Any, question: str = QUESTION) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]


def test_with_all_tokens_it_is_the_stock_pipeline(vlm: VLM, receipt: Image.Image) -> None:
    options = {"max_new_tokens": 12, "return_full_text": False}
    stock = pipeline("image-text-to-text", model=vlm.model, processor=vlm.processor)
    own = ArrCocPipeline(vlm, budget="all", glance="all")
    expected = stock(text=chat(receipt), **options)
    found = own(text=chat(receipt), **options)
    assert found[0].pop("visual_tokens")["kept"] == 860
    assert found == expected
    ids, every = (
        pipe(text=chat(receipt), max_new_tokens=12, return_tensors=True)[0]["generated_token_ids"].tolist()
        for pipe in (own, stock)
    )
    assert every == [*ids, vlm.model.generation_config.eos_token_id]  # an answer's ids end before it


def test_with_a_budget_it_answers_as_ask(vlm: VLM, receipt: Image.Image, tmp_path: Path) -> None:
    receipt.save(tmp_path / "receipt.png")
    pipe = ArrCocPipeline(vlm, budget="12.5%", glance="50%")
    answer = vlm.ask(receipt, QUESTION, budget="12.5%", glance="50%", max_new_tokens=12)
    for image in (receipt, str(tmp_path / "receipt.png")):
        [found] = pipe(text=chat(image), max_new_tokens=12, return_full_text=False)
        assert found["generated_text"] == answer.text == "37.40"
        assert found["visual_tokens"] == answer.tokens
    [found] = pipe(text=chat(receipt), max_new_tokens=12, budget=50)
    assert found["visual_tokens"]["kept"] == 50
    assert found["generated_text"][-1]["role"] == "assistant"


def test_transformers_makes_it_by_name_of_the_class(vlm: VLM, receipt: Image.Image) -> None:
    pipe = pipeline(
        "image-text-to-text", model=vlm.model, processor=vlm.processor, pipeline_class=ArrCocPipeline,
        layer=vlm.layer, budget="25%", selector="uniform",
    )  # fmt: skip
    several = pipe(text=[chat(receipt), chat(receipt, "What is the date?")], max_new_tokens=12, return_full_text=False)
    assert [found["visual_tokens"]["kept"] for [found] in several] == [215, 215]


def test_a_prompt_without_an_image(vlm: VLM) -> None:
    pipe = ArrCocPipeline(vlm)
    [found] = pipe(text=[{"role": "user", "content": [{"type": "text", "text": "Hello?"}]}], max_new_tokens=4)
    assert found["visual_tokens"]["all"] == 0


def test_bad_input_is_one_sentence(vlm: VLM, receipt: Image.Image) -> None:
    with pytest.raises(ArrCocError, match="budget"):
        ArrCocPipeline(vlm, budget="lots")
    pipe = ArrCocPipeline(vlm)
    with pytest.raises(ArrCocError, match="glance"):
        pipe(text=chat(receipt), glance="150%")
    with pytest.raises(ArrCocError, match="selector"):
        pipe(text=chat(receipt), selector="nothing", max_new_tokens=2)
