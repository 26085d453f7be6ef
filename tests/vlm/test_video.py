"""Clips into models: `video=` is `videos=` of its frames, and what is dropped is masked, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arr_coc
import synthetic_clips
from arr_coc.errors import PromptError, VideoError
from tests.adapters.families import QWEN
from tests.adapters.oracle import masked
from tests.adapters.tiny_vlm import GREEDY, answer_of, stock_inputs, wrapped


@pytest.fixture(scope="module", params=QWEN)
def vlm(request: Any) -> Any:
    return wrapped(request.param)


def film(count: int = 4) -> list[np.ndarray]:
    """A page that moves, small."""
    return [frame[::6, ::8] for frame in synthetic_clips.pan(count, step=24).frames]


def test_some_cells_of_a_moving_clip_are_the_others_masked(vlm: Any) -> None:
    frames = film()
    answer = vlm.ask(None, "What?", video=frames, fps=25, budget="30%", **GREEDY)
    doubled = [frame for frame in frames for _ in range(2)]
    inputs = stock_inputs(vlm, "What?", [], [doubled], fps=50.0)
    assert answer.allocation.grid.t == 4
    assert 0 < answer.tokens["kept"] < answer.tokens["all"] / 2
    dense = masked(vlm.adapter, inputs, [answer.allocation.keep])
    assert answer.ids.tolist() == answer_of(vlm.model, dense)


def test_all_cells_are_the_stock_answer_and_still_frames_share_their_patches(vlm: Any) -> None:
    frames = [synthetic_clips.static(4, noise=0.0).frames[0][::6, ::8]] * 4
    answer = vlm.ask(None, "What?", video=frames, fps=25, budget="all", **GREEDY)
    assert answer.allocation.grid.t == 2
    assert answer.ids.tolist() == answer_of(vlm.model, stock_inputs(vlm, "What?", [], [frames], fps=25.0))


def test_a_clip_is_looked_at_once_for_several_questions(vlm: Any) -> None:
    look = vlm.look(video=film(), fps=25)
    one, two = vlm.ask(look, ["What?", "Who?"], budget=10, **GREEDY)
    assert one.ids.tolist() == vlm.ask(None, "What?", video=film(), fps=25, budget=10, **GREEDY).ids.tolist()
    assert [one.tokens["kept"], two.tokens["kept"]] == [10, 10]
    again = vlm.ask(None, ["What?", "Who?"], video=film(), fps=25, budget=10, **GREEDY)
    assert [each.ids.tolist() for each in again] == [one.ids.tolist(), two.ids.tolist()]


def test_evs_is_the_peer(vlm: Any) -> None:
    answer = vlm.ask(None, "What?", video=film(), fps=25, budget="30%", selector="evs", **GREEDY)
    assert answer.allocation.selector == "evs"


def test_what_does_not_belong_together_is_told(vlm: Any) -> None:
    for given, said in (
        ({"video": film(), "videos": [film()]}, "got both"), ({"frames": 3, "videos": [film()]}, "together with video="),
        ({"video": film(), "frames": 0}, "at least 1 frame"), ({"videos": "clip.mp4"}, "pass it as video="),
    ):  # fmt: skip
        with pytest.raises((PromptError, VideoError), match=said):
            vlm.ask(None, "What?", **given, **GREEDY)
    with pytest.raises(PromptError, match="one question with video="):
        vlm.prepare(text=["What?", "Who?"], video=film())


def test_the_reader_reads_a_receipt_that_the_camera_pans_over() -> None:
    still = synthetic_clips.page()
    views = [synthetic_clips.Camera(279.5, 240 + 120 * number) for number in range(7)]
    frames = synthetic_clips.film_still("", still, views, (480, 560)).frames
    vlm = arr_coc.load("reader")
    look = vlm.look(video=frames, fps=25)
    answers = vlm.ask(look, ["What is the total amount?", "What is the date?"], budget="12.5%")
    assert [answer.text for answer in answers] == ["37.40", "12/03/2026"]
    assert answers[0].allocation.k == 298
