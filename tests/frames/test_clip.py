"""Frames of a film, put together for a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from arr_coc.errors import VideoError
from arr_coc.frames.clip import clip, moves, thinned
from arr_coc.frames.reader import Frame
from arr_coc.video import synthetic as rendering


def test_frames_are_taken_by_the_clock() -> None:
    film = rendering.static(50).frames
    made = clip(film, 5, given=25)
    assert len(made.frames) == 10
    assert made.fps == pytest.approx(5)
    assert np.allclose(np.diff(made.times), 0.2)


def test_no_more_than_asked_for_and_evenly() -> None:
    frames = (Frame(number, number / 10, np.zeros((2, 2, 3), np.uint8)) for number in range(1000))
    taken = [frame.number for frame in thinned(frames, 10)]
    assert taken[0] == 0
    assert taken[-1] > 900
    assert len(taken) == 10
    assert max(np.diff(taken)) <= 2 * min(np.diff(taken))


def test_frames_that_move_are_shown_twice_and_time_runs_on() -> None:
    made = clip(rendering.pan(6).frames, 25, group=2)
    assert len(made.frames) == 12
    assert all(np.array_equal(made.frames[i], made.frames[i + 1]) for i in range(0, 12, 2))
    assert made.fps == pytest.approx(50)


def test_frames_that_stand_still_share_a_patch() -> None:
    assert len(clip(rendering.static(6).frames, 25, group=2).frames) == 6
    assert len(clip(rendering.static(6).frames, 25, group=2, pairs="moving").frames) == 12
    assert len(clip(rendering.pan(6).frames, 25, group=2, pairs="still").frames) == 6
    assert not moves(rendering.noise(4).frames[:2], 2)


def test_a_change_of_size_is_mended_and_said() -> None:
    film = rendering.static(4).frames
    made = clip([film[0], film[1], film[2][:200, :300], film[3]], 25)
    assert {frame.shape for frame in made.frames} == {(360, 640, 3)}
    assert "size changes" in made.notes[0]


def test_what_is_wrong_with_a_file_goes_along(write: Callable[..., Path], tmp_path: Path) -> None:
    data = write(rendering.rendered("shake", 20).frames, options={"movflags": "faststart"}).read_bytes()
    (tmp_path / "short.mp4").write_bytes(data[: len(data) * 3 // 4])
    assert (
        "ends early" in clip(tmp_path / "short.mp4", 25).notes[0]
        or "damaged" in clip(tmp_path / "short.mp4", 25).notes[0]
    )


@pytest.mark.parametrize(
    ("options", "said"), [({"pairs": "odd"}, "pairs as one of"), ({"most": 0}, "at least 1 frame")]
)
def test_wrong_options_are_told(options: dict[str, object], said: str) -> None:
    with pytest.raises(VideoError, match=said):
        clip(rendering.static(2).frames, 25, **options)  # type: ignore[arg-type]
