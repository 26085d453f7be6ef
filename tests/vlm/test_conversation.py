"""Follow-ups look again: cells are added to the cache, exactly as the dense conversation would read them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import PromptError, SelectorError
from arr_coc.relevance.selector import ArrCoc
from arr_coc.vlm import conversation
from tests.adapters.families import QWEN
from tests.adapters.more_families import MORE as TINY
from tests.adapters.more_processors import WRAPPED
from tests.adapters.more_processors import wrapped as more_wrapped
from tests.adapters.oracle import converse, masked
from tests.adapters.tiny_vlm import FLAT, GREEDY, build, picture, wrapped

NEVER = 10**6
MEMORY = ("previous_relevance", "previous_saliency", "previous_attention", "current_attention", "fixation", "gaze")
MORE = [
    family for family in WRAPPED if family != "chameleon"
]  # its processor ends every prompt, so none can be continued
SHORT = GREEDY | {"max_new_tokens": 4, "output_scores": True, "return_dict_in_generate": True}
EXTENDED = [*QWEN, *FLAT, *(family for family in MORE if TINY[family].semantics == "masked")]
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def wrapped_family(family: str) -> Any:
    return more_wrapped(family) if family in WRAPPED else wrapped(family)


def ask(vlm: Any, question: str, after: Any = None, images: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"after": after} if after is not None else {"remember": True, "selector": "random"}
    visual = [vlm.adapter.token_id(kind) for kind in vlm.adapter.kinds]  # a random model would write them
    return vlm.ask(images, question, **given, **SHORT | {"suppress_tokens": visual} | options)


class Oracle:
    """The dense conversation: its tokens, and the turn from which each is read."""

    def __init__(self, vlm: Any) -> None:
        self.vlm = vlm
        self.since = torch.zeros(0, dtype=torch.long)

    def expect(self, answer: Any, turn: int, rebuilt: bool = False) -> tuple[list[int], torch.Tensor]:
        """What the dense model says where `answer` came. `rebuilt`: everything so far was read again in this turn."""
        shown, count = answer.turn.shown, len(answer.ids)
        dense = shown.ids[:, : shown.ids.shape[1] - count]
        inputs = {"input_ids": dense, "attention_mask": torch.ones_like(dense), **shown.look.vision.tensors}
        visuals = self.vlm.adapter.visuals(inputs, shown.look.sizes())
        since = torch.full((dense.shape[1],), turn)
        known = min(len(self.since), len(since))
        since[:known] = self.since[:known]
        for visual, allocation in zip(visuals, answer.allocations, strict=True):
            kept = torch.zeros(visual.n, dtype=torch.bool).index_fill_(0, allocation.keep, True)
            where = visual.cell_places
            fresh = kept & ((since[where] == NEVER) | (len(self.since) == 0))
            since[where[fresh]] = turn
            since[where[~kept]] = NEVER
        if rebuilt:
            since[since != NEVER] = turn
        said, chances = converse(self.vlm.adapter, inputs, since, count)
        self.since = torch.cat([since, torch.full((count - 1,), turn)])  # the last token is read in the next turn
        return said, chances


def check(answer: Any, expected: tuple[list[int], torch.Tensor]) -> None:
    """Same tokens, and probabilities within 1e-4."""
    assert answer.ids.tolist() == expected[0]
    assert torch.allclose(answer.token_probabilities, expected[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", EXTENDED)
def test_an_extended_cache_equals_the_dense_conversation_as_of_each_turn(family: str) -> None:
    vlm = wrapped_family(family)
    oracle = Oracle(vlm)
    first = ask(vlm, "What?", images=picture(), budget="30%")
    check(first, oracle.expect(first, 0))
    second = ask(vlm, "And why?", first, seed=1, cache="extend")
    assert second.tokens["added"] > 0
    check(second, oracle.expect(second, 1))
    third = ask(vlm, "Sure?", second, seed=2, cache="extend")
    check(third, oracle.expect(third, 2))
    assert set(first.allocation.keep.tolist()) < set(third.allocation.keep.tolist())


@pytest.mark.parametrize("family", [*QWEN, *FLAT])
def test_a_rebuilt_cache_equals_masking_all_other_cells(family: str) -> None:
    vlm = wrapped_family(family)
    oracle = Oracle(vlm)
    first = ask(vlm, "What?", images=picture(), budget="30%")
    oracle.expect(first, 0)
    second = ask(vlm, "And why?", first, seed=1, cache="rebuild")
    check(second, oracle.expect(second, 1, rebuilt=True))
    extended = ask(vlm, "Sure?", second, seed=2, cache="extend")
    check(extended, oracle.expect(extended, 2))
    rebuilt = ask(vlm, "Really?", extended, seed=3, cache="rebuild")
    check(rebuilt, oracle.expect(rebuilt, 3, rebuilt=True))


@pytest.mark.parametrize("family", MORE)
def test_every_family_reads_new_cells_as_if_from_the_start(family: str) -> None:
    """By default a short conversation is rebuilt: equal to asking the whole conversation with the same cells."""
    vlm = more_wrapped(family)
    tokenizer = vlm.processor.tokenizer
    options = SHORT | {"suppress_tokens": [i for i in range(128) if not tokenizer.decode([i]).isalpha()]}
    first = vlm.ask(picture(90, 40), "What?", budget=2, selector="random", remember=True, **options)
    second = vlm.ask(None, "And?", after=first, seed=5, budget=3, **options)
    assert second.tokens["kept"] > first.tokens["kept"]
    talk = [
        {"role": "user", "content": [{"type": "image", "image": picture(90, 40)}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": tokenizer.decode(first.ids)}]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    whole = vlm.prepare(messages=talk, allocation=second.allocation)
    assert second.ids.tolist() == vlm.generate(whole, **options)[0].ids.tolist()


def test_the_two_oracles_differ() -> None:
    """A control: extending and rebuilding are different computations, and the tests can tell them apart."""
    vlm = wrapped("qwen2_vl")
    first = ask(vlm, "What?", images=picture(), budget="30%")
    oracle = Oracle(vlm)
    oracle.expect(first, 0)
    rebuilt = ask(vlm, "And why?", first, seed=1, cache="rebuild")
    expected = oracle.expect(rebuilt, 1)
    assert not torch.allclose(rebuilt.token_probabilities, expected[1], atol=1e-4)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl", "llava_next", "idefics3"])
@pytest.mark.parametrize("cache", ["extend", "rebuild"])
def test_with_the_cells_alone_a_follow_up_equals_the_question_alone_about_all_cells(family: str, cache: str) -> None:
    vlm = wrapped(family)
    first = ask(vlm, "What?", images=picture(), budget="30%")
    second = ask(vlm, "And the cat?", first, seed=1, history="cells", cache=cache)
    third = ask(vlm, "And the dog?", second, seed=2, history="cells", cache=cache)
    if cache == "rebuild":
        alone = ask(vlm, "And the dog?", images=picture(), allocation=third.allocation)
        assert third.ids.tolist() == alone.ids.tolist()
        again = ask(
            vlm, "And the cat?", third, history="cells", budget=0
        )  # continued: the cells' keys are those of the third
        alone = ask(vlm, "And the cat?", images=picture(), allocation=third.allocation)
        assert torch.allclose(again.token_probabilities, alone.token_probabilities, atol=1e-4)
        return
    shown, count = third.turn.shown, len(third.ids)
    dense = shown.ids[:, :-count]
    inputs = {"input_ids": dense, "attention_mask": torch.ones_like(dense), **shown.look.vision.tensors}
    (visual,) = vlm.adapter.visuals(inputs, shown.look.sizes())
    since = torch.zeros(dense.shape[1], dtype=torch.long)
    since[visual.cell_places] = NEVER
    for turn, answer in reversed(list(enumerate((first, second, third)))):
        since[visual.cell_places[answer.allocation.keep]] = turn
    since[int(visual.cell_places[-1]) + 1 :] = 2  # the text after the picture
    check(third, converse(vlm.adapter, inputs, since, count))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_without_history_a_follow_up_is_the_question_asked_alone(family: str) -> None:
    vlm = wrapped(family)
    first = ask(vlm, "What?", images=picture(), budget="30%")
    second = ask(vlm, "And the cat?", first, seed=1, history="none")
    alone = ask(vlm, "And the cat?", images=picture(), budget="30%", seed=1)
    assert second.allocation.keep.tolist() == alone.allocation.keep.tolist()
    assert torch.equal(second.token_probabilities, alone.token_probabilities)
    new = set(alone.allocation.keep.tolist()) - set(first.allocation.keep.tolist())
    assert second.tokens["added"] == len(new)
    third = ask(vlm, "And the dog?", second, history="none", allocation=first.allocation.keep)
    assert third.allocation.keep.tolist() == first.allocation.keep.tolist()
    assert third.tokens["added"] == 0


def test_what_a_turn_adds_is_counted() -> None:
    vlm = wrapped("qwen2_vl")
    first = ask(vlm, "What?", images=picture(), budget=10)
    assert "added" not in first.tokens
    same = ask(vlm, "Which thing?", first)  # the same selector and seed: the same cells
    assert same.tokens == {**first.tokens, "added": 0}
    more = ask(vlm, "And?", first, budget=14, seed=3)
    new = set(more.allocation.keep.tolist()) - set(first.allocation.keep.tolist())
    assert more.tokens["added"] == len(new) > 0
    assert more.allocation.added.tolist() == sorted(new)
    assert more.to_dict()["tokens"]["added"] == len(new)
    nothing = ask(vlm, "And?", more, budget=0)
    assert nothing.tokens["added"] == 0
    assert nothing.allocation.keep.tolist() == more.allocation.keep.tolist()
    everything = ask(vlm, "And?", nothing, budget="all")
    assert everything.tokens["kept"] == everything.tokens["all"]
    assert ask(vlm, "And?", everything, budget=3).tokens["added"] == 0
    given = ask(vlm, "And?", first, allocation=[0, 1])
    assert {0, 1} <= set(given.allocation.keep.tolist())


def test_a_question_that_names_nothing_is_about_the_last_one_and_reads_further_cells() -> None:
    vlm = wrapped("qwen2_vl")
    first = vlm.ask(picture(), "Where is the dog?", budget=10, remember=True, **GREEDY)
    wider = vlm.ask(picture(), "Where is the dog?", budget=20, **GREEDY)
    seen: list[Any] = []

    class Noting(ArrCoc):
        def select(self, selection: Any) -> Any:
            seen.append((selection.question.text, [n for n in MEMORY if n not in selection.texture.absent]))
            return super().select(selection)

    second = vlm.ask(None, "Are you sure?", after=first, selector=Noting(), **GREEDY)
    assert seen == [("Where is the dog?", ["previous_relevance", "previous_attention", "fixation"])]
    assert second.tokens["added"] == 10
    assert second.turn.shown.request.budget == 10  # as before: the next turn adds as many again
    shared = set(second.allocation.keep.tolist()) & set(wider.allocation.keep.tolist())
    assert len(shared) > 12  # it is the choice for the same question, moved by the memory
    seen.clear()
    vlm.ask(None, "And the cat?", after=second, **GREEDY)
    assert seen == [("And the cat?", [])]
    mixed = ask(wrapped("internvl"), "And?", ask(wrapped("internvl"), "Where is a dog?", images=picture(), budget=9))
    assert mixed.tokens["added"] == 9  # tiles have no memory map, but the choice goes on


def test_the_picture_is_encoded_once_for_all_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = build("qwen2_vl")
    calls = []
    encode = vlm.adapter.encode
    monkeypatch.setattr(vlm.adapter, "encode", lambda *args: calls.append(1) or encode(*args))
    answer = ask(vlm, "What?", images=picture(), budget=6)
    for seed in range(1, 4):
        answer = ask(vlm, "And?", answer, seed=seed)
    assert len(calls) == 1
    glanced = ask(vlm, "And?", answer, seed=9, glance=20)
    assert len(calls) == 2
    assert glanced.tokens["encoded"] == glanced.tokens["all"]  # this turn's and the earlier ones together


@pytest.mark.parametrize("cache", ["extend", "rebuild"])
def test_several_pictures_beams_and_branches(cache: str) -> None:
    vlm = wrapped("qwen3_vl")
    first = ask(vlm, "What?", images=[picture(), picture(40, 64, 1)], budget="30%")
    twice = [ask(vlm, "And?", first, seed=4, cache=cache) for _ in range(2)]
    assert twice[0].ids.tolist() == twice[1].ids.tolist()
    assert [len(a.added) > 0 for a in twice[0].allocations] == [True, True]
    beams = vlm.ask(None, "And?", after=first, seed=4, cache=cache, num_beams=2, **GREEDY)
    dense = twice[0].turn.shown.ids[:, : -len(twice[0].ids)]
    if cache == "rebuild":
        inputs = {
            "input_ids": dense,
            "attention_mask": torch.ones_like(dense),
            **first.turn.shown.look.vision.tensors,
        }
        union = masked(vlm.adapter, inputs, [a.keep for a in twice[0].allocations])
        expected = vlm.model.generate(**union, num_beams=2, **GREEDY)[0, dense.shape[1] :]
        assert beams.ids.tolist() == expected.tolist()


def test_long_conversations_are_extended_and_short_ones_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    first = ask(vlm, "What?", images=picture(), budget="30%")
    found = {how: ask(vlm, "And?", first, seed=1, cache=how) for how in ("auto", "extend", "rebuild")}
    assert torch.equal(found["auto"].token_probabilities, found["rebuild"].token_probabilities)
    monkeypatch.setattr(conversation, "REBUILT", 0)
    again = ask(vlm, "And?", first, seed=1)
    assert torch.equal(again.token_probabilities, found["extend"].token_probabilities)


def test_a_conversation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    monkeypatch.setattr(conversation, "MAX_TURNS", 2)
    second = ask(vlm, "And?", ask(vlm, "What?", images=picture(), budget=6))
    with pytest.raises(PromptError, match=r"at most 2 turns, got one more: .*history='cells'"):
        ask(vlm, "And?", second)
    assert ask(vlm, "And?", second, history="cells").ids.numel()
    monkeypatch.setattr(vlm.adapter.config.get_text_config(), "max_position_embeddings", 60)
    with pytest.raises(PromptError, match=r"a conversation of at most 60 tokens, which this model reads, got \d+"):
        ask(vlm, "And what is that?" * 3, ask(vlm, "What?", images=picture(), budget=9))


def test_bad_follow_ups() -> None:
    vlm = wrapped("qwen2_vl")
    first = ask(vlm, "What?", images=picture(), budget=6)
    with pytest.raises(PromptError, match="about the same pictures: pass None as the image, or leave after out"):
        vlm.ask(picture(seed=5), "And?", after=first)
    with pytest.raises(PromptError, match="about the same pictures: fps, videos cannot change now"):
        vlm.ask(None, "And?", after=first, videos=[[picture()]], fps=1.0)
    with pytest.raises(PromptError, match="came from another model"):
        build("qwen2_vl").ask(None, "And?", after=first)
    with pytest.raises(SelectorError, match="'fastv' works inside the language model"):
        vlm.ask(None, "And?", after=first, selector="fastv")
    with pytest.raises(SelectorError, match="'resize' reads another, smaller picture"):
        vlm.ask(None, "And?", after=first, selector="resize")
    with pytest.raises(arr_coc.ArrCocError, match="expected budget as a count"):
        vlm.ask(None, "And?", after=first, budget="some")
    for name, value in (("history", "some"), ("cache", "none")):
        with pytest.raises(PromptError, match=f"expected {name} as one of .*, got '{value}'"):
            vlm.ask(None, "And?", after=first, **{name: value})
        with pytest.raises(PromptError, match=f"expected {name} only for a follow-up"):
            vlm.ask(picture(), "And?", **{name: value})
    windows = more_wrapped("gemma3")
    first = windows.ask(picture(), "What?", budget=1, selector="random", remember=True, **GREEDY)
    with pytest.raises(PromptError, match="a token's place in its cache counts"):
        windows.ask(None, "And?", cache="extend", budget=4, seed=3, after=first)


def test_a_model_that_was_moved_or_changed_cannot_continue() -> None:
    vlm = build("qwen2_vl")
    first = ask(vlm, "What?", images=picture(), budget=6)
    moved = copy.copy(first)
    object.__setattr__(moved, "turn", replace(first.turn, ids=first.turn.ids.to("meta")))
    with pytest.raises(
        PromptError, match="the model was moved from meta to cpu after it, and its cache was not: ask again"
    ):
        vlm.ask(None, "And?", after=moved)
    with torch.no_grad():
        vlm.model.lm_head.weight += 1
    with pytest.raises(PromptError, match="the model's weights changed after it"):
        vlm.ask(None, "And?", after=first)


def test_the_same_look_may_be_passed_and_an_answer_of_a_smaller_picture_continues() -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    first = vlm.ask(look, "What?", budget=6, remember=True, **GREEDY)
    assert vlm.ask(look, "And?", after=first, **GREEDY).tokens["kept"] >= 6
    small = vlm.ask(picture(), "What?", budget=9, selector="resize", remember=True, **GREEDY)
    assert vlm.ask(None, "And?", after=small, **GREEDY).tokens["added"] == 0


def test_the_reader_reads_each_question_of_a_conversation_by_itself() -> None:
    vlm = arr_coc.load("reader")
    assert vlm.history == "none"
    answer = vlm.ask(
        arr_coc.pictures.receipt(), "What is the total amount?", budget="12.5%", glance="all", remember=True
    )
    said = [answer.text]
    for question in ("What is the date?", "What is the name of the company?", "What is the total amount?"):
        answer = vlm.ask(None, question, after=answer)
        said.append(answer.text)
    assert said == ["37.40", "12/03/2026", "HARBOUR MILL BAKERY", "37.40"]
    assert answer.tokens["added"] == 0  # its cells were read for the first question
    assert answer.tokens["kept"] == 108
