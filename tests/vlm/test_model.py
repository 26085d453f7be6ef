"""The wrapped model: answers equal to the stock and to the masked model, for every kind of input."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TextIteratorStreamer

import arr_coc
from tests.adapters import families, tiny_vlm
from tests.adapters.oracle import masked
from tests.adapters.tiny_vlm import GREEDY, answer_of, picture, stock_inputs, wrapped

CASES: dict[str, dict[str, Any]] = {
    "image": {"images": [picture()]},
    "two images": {"images": [picture(), picture(40, 64, 1)]},
    "video": {"videos": [[picture(48, 40, i) for i in range(5)]]},
    "mixed": {"images": [picture()], "videos": [[picture(48, 40, i) for i in range(4)]]},
    "text": {},
}


@pytest.mark.parametrize("case", list(CASES))
def test_an_answer_from_all_cells_is_the_stock_answer(vlm: Any, case: str) -> None:
    given = CASES[case]
    inputs = stock_inputs(vlm, "What is it?", given.get("images", []), given.get("videos", []))
    answer = vlm.generate(given.get("images"), "What is it?", videos=given.get("videos"), **GREEDY)[0]
    assert answer.ids.tolist() == answer_of(vlm.model, inputs)
    assert answer.prompt_tokens == inputs["input_ids"].shape[1]


@pytest.mark.parametrize("case", list(CASES)[:4])
def test_an_answer_from_some_cells_is_the_masked_answer(vlm: Any, case: str) -> None:
    given = CASES[case]
    inputs = stock_inputs(vlm, "What is it?", given.get("images", []), given.get("videos", []))
    answer = vlm.generate(
        given.get("images"), "What is it?", videos=given.get("videos"), budget="30%", selector="random", **GREEDY
    )[0]
    assert 0 < answer.tokens["kept"] < answer.tokens["all"] / 2
    dense = masked(vlm.adapter, inputs, [a.keep for a in answer.allocations])
    assert answer.ids.tolist() == answer_of(vlm.model, dense)


def test_prepared_inputs_are_plain_keywords(vlm: Any) -> None:
    prepared = vlm.prepare(images=[picture()], text="What?", budget=9)
    made = vlm.model.generate(**prepared, **GREEDY)
    assert made.shape[1] == prepared.length + 12
    assert set(prepared) == {"input_ids", "attention_mask", "position_ids", "mm_encoder_outputs"}
    assert torch.equal(made, vlm.model.generate(**prepared, **GREEDY))  # the same again
    assert vlm.generate(prepared, **GREEDY)[0].ids.tolist() == made[0, prepared.length :].tolist()


def test_processor_output_can_be_prepared_too(vlm: Any) -> None:
    inputs = stock_inputs(vlm, "What?", [picture()])
    from_inputs = vlm.prepare(inputs=inputs, budget=9, selector="uniform")
    from_picture = vlm.prepare([picture()], "What?", budget=9, selector="uniform")
    assert torch.equal(from_inputs["input_ids"], from_picture["input_ids"])
    assert torch.equal(from_inputs["position_ids"], from_picture["position_ids"])
    bare = arr_coc.wrap(vlm.model)
    assert torch.equal(bare.prepare(inputs=inputs, budget=9)["input_ids"], from_inputs["input_ids"])


def test_messages_are_the_same_as_pictures_and_text(vlm: Any) -> None:
    one, two = picture(), picture(40, 64, 1)
    content = [{"type": "image", "image": one}, {"type": "image", "image": two}, {"type": "text", "text": "Which?"}]
    by_messages = vlm.prepare(messages=[{"role": "user", "content": content}], budget="50%")
    by_text = vlm.prepare([one, two], "Which?", budget="50%")
    assert torch.equal(by_messages["input_ids"], by_text["input_ids"])
    assert [a.keep.tolist() for a in by_messages.allocations] == [a.keep.tolist() for a in by_text.allocations]


@pytest.mark.parametrize("image", ["path", "array", "tensor"])
def test_any_kind_of_image(vlm: Any, image: str, tmp_path: Any) -> None:
    pixels = np.asarray(picture())
    picture().save(tmp_path / "a.png")
    given = {"path": tmp_path / "a.png", "array": pixels, "tensor": torch.from_numpy(pixels.copy()).permute(2, 0, 1)}[
        image
    ]
    assert vlm.ask(given, "What?", **GREEDY).ids.tolist() == vlm.ask(picture(), "What?", **GREEDY).ids.tolist()


def test_several_images_each_with_its_own_budget(vlm: Any) -> None:
    images = [picture(), picture(40, 64, 1)]
    assert [a.k for a in vlm.prepare(images, "Which?", budget=[7, "50%"]).allocations] == [7, 20]
    assert [a.k for a in vlm.prepare(images, "Which?", budget=6).allocations] == [6, 6]


def test_several_images_share_one_budget(vlm: Any) -> None:
    images = [picture(), picture(40, 64, 1)]
    by_size = vlm.prepare(images, "Which?", budget=30, shared=True, selector="uniform")
    cells = [a.n for a in by_size.allocations]
    assert [a.k for a in by_size.allocations] == [round(30 * n / sum(cells)) for n in cells]

    class ByPicture(arr_coc.selectors.Selector):
        name = "by-picture"

        def relevance(self, selection: Any) -> torch.Tensor:
            return torch.full((len(selection.candidates),), float(selection.grid.h))  # the taller picture matters more

        def select(self, selection: Any) -> torch.Tensor:
            return selection.candidates[: selection.count]

    by_worth = vlm.prepare(images, "Which?", budget=30, shared=True, selector=ByPicture())
    tall = max(range(2), key=lambda i: by_worth.allocations[i].grid.h)
    assert by_worth.allocations[tall].k == min(30, cells[tall])
    assert sum(a.k for a in by_worth.allocations) == 30


def test_a_batch_gives_each_row_its_own_answer(vlm: Any) -> None:
    rows = [[picture()], [picture(40, 64, 1), picture(32, 32, 2)], []]
    texts = ["What?", "Which of the two?", "Hello there."]
    together = vlm.generate(rows, texts, budget="40%", **GREEDY)
    for number, (images, text) in enumerate(zip(rows, texts, strict=True)):
        alone = vlm.generate(images or None, text, budget="40%", **GREEDY)[0]
        assert together[number].ids.tolist() == alone.ids.tolist()
        assert [a.k for a in together[number].allocations] == [a.k for a in alone.allocations]


@pytest.mark.parametrize("budget", [0, "all", 10**6])
def test_nothing_and_everything(vlm: Any, budget: Any) -> None:
    answer = vlm.ask(picture(), "What?", budget=budget, **GREEDY)
    assert answer.tokens["kept"] == (0 if budget == 0 else 63)
    if budget == 10**6:
        assert "more than the 63 there are" in answer.allocation.notes[0]


def test_beams_sequences_and_caches_agree_with_masking(vlm: Any) -> None:
    inputs = stock_inputs(vlm, "What is it?", [picture()])
    for options in (
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2},
        {"cache_implementation": "static"},
        {"do_sample": True, "temperature": 0.7},
    ):
        torch.manual_seed(5)
        answers = vlm.generate([picture()], "What is it?", budget="30%", **GREEDY | options)
        dense = masked(vlm.adapter, inputs, [answers[0].allocation.keep])
        torch.manual_seed(5)
        made = vlm.model.generate(**dense, **GREEDY | options)[:, inputs["input_ids"].shape[1] :]
        assert [a.ids.tolist() for a in answers] == made.tolist(), options


def test_beams_over_a_ragged_batch(vlm: Any) -> None:
    rows = [[picture()], [picture(40, 64, 1), picture(32, 32, 2)]]
    texts = ["What?", "Which of the two?"]
    together = vlm.generate(rows, texts, budget=[5, 0, 3], num_beams=2, **GREEDY)
    for row, (images, text, budget) in enumerate(zip(rows, texts, ([5], [0, 3]), strict=True)):
        alone = vlm.generate(images, text, budget=budget, num_beams=2, **GREEDY)[0]
        assert together[row].ids.tolist() == alone.ids.tolist()


def test_streaming(vlm: Any) -> None:
    streamer = TextIteratorStreamer(vlm.processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(vlm.ask(picture(), "What?", budget=9, streamer=streamer, **GREEDY))
    )
    thread.start()
    heard = "".join(streamer)
    thread.join()
    assert heard.strip() == answers[0].text


def test_wrapping_does_not_modify_the_model() -> None:
    model = families.model("qwen3_vl")

    def state() -> Any:
        modules = [(name, type(m), sorted(m.__dict__), m.forward.__func__) for name, m in model.named_modules()]
        hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
        return modules, hooks, copy.deepcopy(model.config.to_dict()), model.model.rope_deltas

    before = state()
    vlm = arr_coc.wrap(model, tiny_vlm.processor("qwen3_vl"))
    vlm.ask(picture(), "What?", budget="30%", glance="50%", **GREEDY)
    other = arr_coc.wrap(model, vlm.processor)
    other.ask(picture(), "What?", budget=3, **GREEDY)
    assert state() == before
    ghost = weakref.ref(vlm)
    del vlm, other
    gc.collect()
    assert ghost() is None


def test_interleaved_calls_do_not_disturb_each_other(vlm: Any) -> None:
    one = vlm.prepare([picture()], "What?", budget=9)
    two = vlm.prepare([picture(40, 64, 1)], "Which?", budget=4)
    alone = [vlm.generate(one, **GREEDY)[0].ids.tolist(), vlm.generate(two, **GREEDY)[0].ids.tolist()]
    vlm.model.generate(**stock_inputs(vlm, "Something else?", [picture(64, 64, 3)]), **GREEDY)
    assert [vlm.generate(two, **GREEDY)[0].ids.tolist(), vlm.generate(one, **GREEDY)[0].ids.tolist()] == alone[::-1]
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda n=n, p=p: found.update({n: vlm.generate(p, **GREEDY)[0].ids.tolist()}))
        for n, p in enumerate((one, two))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == alone


def test_the_result_holds_cells_boxes_and_timings(vlm: Any) -> None:
    answer = vlm.ask(picture(144, 112), "What?", budget=5, glance="50%", **GREEDY)
    found = answer.allocation
    assert found.grid == arr_coc.Grid(1, 7, 9)  # shrunk by the processor to 64 cells at most
    assert (found.n, len(found.encoded), found.k) == (63, 32, 5)
    assert set(found.keep.tolist()) <= set(found.encoded.tolist())
    time, row, column = found.thw[0].tolist()
    assert found.keep[0] == row * 9 + column
    assert time == 0
    assert found.boxes[0].tolist() == pytest.approx([column * 16, row * 16, column * 16 + 16, row * 16 + 16])
    stages = [
        "views",
        "preprocess",
        "texture",
        "glance",
        "encode",
        "layer",
        "probe",
        "gaze",
        "assemble",
        "prefill",
        "decode",
        "judge",
    ]
    assert list(answer.timings) == stages
    assert answer.to_dict()["tokens"] == {"all": 63, "encoded": 32, "kept": 5}
    assert found.overlay(picture(144, 112)).size == (144, 112)


def test_gradients_flow_when_they_are_asked_for(vlm: Any) -> None:
    features = vlm.prepare([picture()], "What?", budget=9)["mm_encoder_outputs"]["image"].pooler_output[0]
    assert features.grad_fn is None
    features = vlm.prepare([picture()], "What?", budget=9, gradients=True)["mm_encoder_outputs"]["image"].pooler_output[
        0
    ]
    assert features.grad_fn is not None


def test_compiled_model_gives_the_same_logits() -> None:
    vlm = wrapped("qwen3_vl")
    prepared = vlm.prepare([picture()], "What?", budget=9)
    with torch.no_grad():
        plain = vlm.model(**prepared).logits
        fast = torch.compile(vlm.model, backend="aot_eager")(**prepared).logits
    assert (plain - fast).abs().max() < 1e-5
