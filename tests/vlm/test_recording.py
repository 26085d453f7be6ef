"""`vlm.record`: answers from recorded shapes are those of an ordinary call, and what does not fit is answered as before."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.adapters.static import EncoderShape, PromptShape
from arr_coc.errors import ModelError, PromptError
from arr_coc.vlm import recording
from arr_coc.vlm.recording import shapes_for
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import build, picture
from tests.precision import full_precision

ASK: dict[str, Any] = {
    "budget": 8,
    "glance": 16,
    "selector": "random",
    "do_sample": False,
    "eos_token_id": None,
    "detail": "off",
}
QUESTION = "Total?"
SIZES = ((72, 56), (56, 64), (64, 64))


def make(family: str = "qwen2_vl", **changes: Any) -> Any:
    vlm = build(family)
    vlm.record(**{"budget": 8, "glance": 16, "texts": (24, 48), "new_tokens": 12} | changes)
    return vlm


def ask(vlm: Any, question: str = QUESTION, **changes: Any) -> Any:
    return vlm.ask(picture(*SIZES[0]), question, **{**ASK, "max_new_tokens": 8, **changes})


def plainly(vlm: Any, *given: Any, **changes: Any) -> Any:
    """The same without recordings."""
    before, vlm.recordings = vlm.recordings, None
    try:
        return ask(vlm, *given, **changes)
    finally:
        vlm.recordings = before


def uses(vlm: Any) -> int:
    return int(vlm.recordings.used.total())


def check(vlm: Any, used: int, **changes: Any) -> None:
    """The recorded answer is the plain one, and so many shapes were used for it."""
    before = uses(vlm)
    expected, found = plainly(vlm, **changes), ask(vlm, **changes)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.text == expected.text
    assert found.allocation.keep.tolist() == expected.allocation.keep.tolist()
    assert uses(vlm) - before == used


@pytest.mark.parametrize("family", families.QWEN)
def test_recorded_answers_are_the_same(family: str) -> None:
    vlm = make(family)
    cost = vlm.record(budget=8, glance=16, texts=(24, 48), new_tokens=12)
    assert {type(shape) for shape in cost.shapes} == {EncoderShape, PromptShape}
    assert cost.graphs == 0  # the model is on the CPU
    assert cost.seconds > 0
    for number, size in enumerate(SIZES):  # pictures of every size have one shape
        for question in (QUESTION, "What is the total amount of it all?"):
            given = picture(*size, seed=number), question
            found = vlm.ask(*given, **ASK, max_new_tokens=12)
            kept, vlm.recordings = vlm.recordings, None
            expected = vlm.ask(*given, **ASK, max_new_tokens=12)
            vlm.recordings = kept
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.confidence == pytest.approx(expected.confidence, abs=1e-4)
    assert vlm.recordings.used.total() == 2 * 2 * len(SIZES)  # an encoder and a prompt for each
    assert not vlm.recordings.skipped
    assert {"prefill", "decode", "encode"} <= found.timings.keys()


def test_a_batch_whose_rows_end_at_different_steps() -> None:
    vlm = make(batches=(3,))
    pictures, questions = [picture(*size) for size in SIZES], ["a", "What is it?", "bc"]
    plain = vlm.generate(pictures, questions, **{**ASK, "max_new_tokens": 12})
    ends = sorted({int(one.ids[place]) for one, place in zip(plain, (2, 5, 9), strict=True)})
    options = {**ASK, "max_new_tokens": 12, "eos_token_id": ends}
    before = uses(vlm)
    found = vlm.generate(pictures, questions, **options)
    assert uses(vlm) - before == 2
    vlm.recordings = None
    expected = vlm.generate(pictures, questions, **options)
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in expected]
    assert [one.end_probability for one in found] == pytest.approx([one.end_probability for one in expected], abs=1e-4)
    assert len({len(one.ids) for one in found}) > 1


def test_shares_are_padded() -> None:
    vlm = make(budget="20%", glance="50%", sizes=((72, 64),))
    check(vlm, 2, budget="20%", glance="50%")
    assert not any(shape.exact for shape in vlm.recordings.shapes if isinstance(shape, EncoderShape))


def test_options_of_decoding() -> None:
    vlm = make()
    check(vlm, 2, repetition_penalty=1.7)
    check(vlm, 2, do_sample=True, top_k=1, temperature=0.01)
    for changes, why in (
        ({"num_beams": 2}, "the option num_beams"),
        ({"max_new_tokens": 17}, "no prompt is recorded"),
        ({"min_new_tokens": 3}, "the option min_new_tokens"),
        ({"question": "x" * 90}, "no prompt is recorded"),
    ):
        check(vlm, 1, **changes)  # the encoder alone
        assert why in list(vlm.recordings.skipped)[-1]
    check(vlm, 1, glance="all", budget=8)
    check(vlm, 0, budget="all", glance="all")
    torch.manual_seed(0)
    ask(vlm, do_sample=True, top_k=5)
    assert vlm.recordings.skipped["sampling"] == 1
    answer = ask(vlm, remember=True)
    assert vlm.ask(None, "And?", after=answer, max_new_tokens=4).text is not None


def test_the_model_s_own_options_count() -> None:
    vlm = make()
    vlm.model.generation_config.no_repeat_ngram_size = 2
    check(vlm, 1)
    assert vlm.recordings.skipped["the model's generation option no_repeat_ngram_size"] == 1
    vlm.model.generation_config.no_repeat_ngram_size = None
    vlm.model.generation_config.repetition_penalty = 1.3
    check(vlm, 2)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_in_any_autograd_mode(mode: Any) -> None:
    vlm = build("qwen2_vl")
    with mode():
        vlm.record(budget=8, glance=16, texts=(24,), new_tokens=12)
        check(vlm, 2)
    check(vlm, 2)
    prepared = vlm.prepare(picture(*SIZES[0]), QUESTION, budget=8, glance=16, selector="random", gradients=True)
    assert prepared.make()["mm_encoder_outputs"]["image"].pooler_output[0].requires_grad


def test_new_weights_at_their_places_are_read() -> None:
    vlm = make()
    first = ask(vlm)
    with torch.no_grad():
        for weights in vlm.model.parameters():
            weights.mul_(-0.7)
    entries = list(vlm.recordings._entries.values())
    check(vlm, 2)
    assert ask(vlm).ids.tolist() != first.ids.tolist()
    assert list(vlm.recordings._entries.values()) == entries  # nothing was recorded again


def test_weights_elsewhere_are_recorded_again() -> None:
    vlm = make()
    first, entries = ask(vlm), dict(vlm.recordings._entries)
    other = families.model("qwen2_vl", seed=3)
    vlm.model.load_state_dict(other.state_dict(), assign=True)
    check(vlm, 2)
    assert ask(vlm).ids.tolist() != first.ids.tolist()
    used = [shape for shape in vlm.recordings.used if vlm.recordings._entries[shape] is not entries[shape]]
    assert len(used) == 2
    vlm.model.to(torch.float64)
    check(vlm, 2)


def test_a_switched_adapter_is_recorded_again() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(5)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "qkv"], init_lora_weights=False)
    tuned = peft.get_peft_model(families.model("qwen2_vl"), config, adapter_name="first")
    tuned.add_adapter("second", config)
    vlm = arr_coc.wrap(tuned.eval(), tiny_vlm.processor("qwen2_vl"))
    vlm.record(budget=8, glance=16, texts=(24,), new_tokens=12)
    said = []
    for name in ("first", "second", "first"):
        tuned.set_adapter(name)
        check(vlm, 2)
        said.append(ask(vlm).ids.tolist())
    assert said[0] == said[2] != said[1]
    with tuned.disable_adapter():
        check(vlm, 2)
    tuned.merge_adapter()
    check(vlm, 2)


def test_hooks_training_and_autocast_run_as_before() -> None:
    vlm = make()
    seen: list[int] = []
    handle = vlm.adapter.text_model.layers[0].register_forward_hook(lambda *given: seen.append(1))
    check(vlm, 0)
    assert seen
    handle.remove()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(vlm, 0)
    check(vlm, 2)


def test_the_shape_unused_for_longest_goes_first() -> None:
    vlm = make(most=3)
    check(vlm, 2)  # the encoder and the short prompt
    vlm.record(budget=8, glance=16, texts=(96,), new_tokens=12, most=3)
    lengths = sorted(shape.length for shape in vlm.recordings.shapes if isinstance(shape, PromptShape))
    assert len(lengths) == 2
    assert lengths[-1] == 104
    with pytest.raises(PromptError, match="expected at most 3 shapes, got 5"):
        vlm.record(budget=8, glance=16, texts=(8, 16, 24, 32), most=3)


def test_another_thread_runs_as_before() -> None:
    vlm = make()
    expected = plainly(vlm).ids.tolist()
    for entry in vlm.recordings._entries.values():
        entry.lock.acquire()  # as if another thread were decoding
    assert ask(vlm).ids.tolist() == expected
    assert vlm.recordings.skipped["another thread uses the recording"] == 2
    for entry in vlm.recordings._entries.values():
        entry.lock.release()
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(ask(vlm).ids.tolist())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory for so many recordings; then it is full."""
    room = [0]

    class Limited(recording.RecordedWork):
        def __init__(self, *given: Any) -> None:
            if room[0] <= 0:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            room[0] -= 1
            super().__init__(*given)

    monkeypatch.setattr(recording, "RecordedWork", Limited)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: room.append(room.pop() + 3 * (len(freed) > 0)))
    freed: list[int] = []
    room_of = recording.Recordings._make

    def make_and_free(self: Any, *given: Any) -> Any:
        made = room_of(self, *given)
        freed.append(1)
        return made

    monkeypatch.setattr(recording.Recordings, "_make", make_and_free)
    return room


def test_out_of_memory_the_answer_still_comes(full: list[int]) -> None:
    vlm = build("qwen2_vl")
    with pytest.warns(UserWarning, match=r"could not record .*CUDA out of memory"):
        cost = vlm.record(budget=8, glance=16, texts=(24,), new_tokens=12)
    assert cost.graphs == 0
    assert len(vlm.recordings) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(vlm, 0)  # and it is not tried again for each answer
    assert vlm.recordings.skipped["the shape cannot be recorded now"] == 2
    full[0] = 9
    vlm.record(budget=8, glance=16, texts=(24,), new_tokens=12)
    check(vlm, 2)


def test_out_of_memory_the_others_make_room(full: list[int]) -> None:
    full[0] = 3  # one encoder and one prompt fit; dropping them frees as much again
    vlm = build("qwen2_vl")
    vlm.record(budget=8, glance=16, texts=(24,), new_tokens=12)
    assert len(vlm.recordings) == 2
    vlm.record(budget=8, texts=(96,), new_tokens=12)
    made = [shape for shape, entry in vlm.recordings._entries.items() if entry is not None]
    assert [shape.length for shape in made if isinstance(shape, PromptShape)] == [104]
    assert len(made) == 1
    full[0] = 9
    check(vlm, 2)  # the others are recorded again when they are needed


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be recorded: recording is for Qwen2-VL"):
        build("internvl").record(budget=8)
    vlm = build("qwen2_vl")
    with pytest.raises(PromptError, match="expected budget as a count or a share, whose shapes are known, got 'auto'"):
        vlm.record(budget="auto")
    with pytest.raises(PromptError, match="expected texts as whole numbers of at least 1"):
        vlm.record(budget=8, texts=(0,))
    assert vlm.recordings is None or not vlm.recordings.shapes


def test_the_shapes_of_a_budget() -> None:
    found = shapes_for([1369, 400], 128, "25%", (64,), (1, 8), 16)
    assert EncoderShape(1, 352, False) in found  # 343 cells, rounded up
    assert PromptShape(8, 128, 192, 16) in found
    assert PromptShape(1, 112, 176, 16) in found  # of 400 cells, 100 are encoded
    counts = shapes_for([1369, 400], 128, 256, (64,), (1,), 16)
    assert counts == [EncoderShape(1, 256, True), PromptShape(1, 128, 192, 16)]
    assert shapes_for([100], "all", "all", (60,), (1,), 16) == [PromptShape(1, 100, 160, 16)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", families.QWEN)
def test_graphs_on_a_gpu_give_the_same_answers(family: str) -> None:
    vlm = build(family)
    vlm.model.cuda()
    with full_precision():  # recorded with the kernels that it is compared with
        cost = vlm.record(budget=8, glance=16, texts=(24, 48), batches=(1, 2), new_tokens=12)
        assert cost.graphs == len(cost.shapes)
        assert cost.nbytes > 0
        for number, size in enumerate(SIZES):
            given = picture(*size, seed=number), "What is the total amount?"
            found, vlm_recordings = vlm.ask(*given, **ASK, max_new_tokens=12), vlm.recordings
            vlm.recordings = None
            assert found.ids.tolist() == vlm.ask(*given, **ASK, max_new_tokens=12).ids.tolist()
            vlm.recordings = vlm_recordings
        several = [picture(*size) for size in SIZES[:2]], ["a", "What is it?"]
        plain = vlm.generate(*several, **{**ASK, "max_new_tokens": 12})
        ends = sorted({int(one.ids[place]) for one, place in zip(plain, (2, 6), strict=True)})
        options = {**ASK, "max_new_tokens": 12, "eos_token_id": ends}  # rows end at different steps, before the last
        found_all = vlm.generate(*several, **options)
        vlm_recordings, vlm.recordings = vlm.recordings, None
        assert [one.ids.tolist() for one in found_all] == [
            one.ids.tolist() for one in vlm.generate(*several, **options)
        ]
        vlm.recordings = vlm_recordings
    assert uses(vlm) == 2 * len(SIZES) + 4
    vlm.model.cpu()
    check(vlm, 2)
