"""Frames of a video, sampled and grouped for a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import synthetic_clips
from arr_coc.errors import VideoError
from arr_coc.frames.clip import has_motion, sample_clip, thin
from arr_coc.frames.reader import Frame


def test_frames_are_sampled_by_time() -> None:
    clip = sample_clip(np.zeros((50, 8, 8, 3), np.uint8), 5, source_fps=25)
    assert len(clip.frames) == 10
    assert clip.fps == pytest.approx(5)
    assert np.allclose(np.diff(clip.times), 0.2)


def test_at_most_so_many_frames_evenly_spaced() -> None:
    frames = (Frame(number, number / 10, np.zeros((2, 2, 3), np.uint8)) for number in range(1000))
    taken = [frame.number for frame in thin(frames, 10)]
    assert taken[0] == 0
    assert taken[-1] > 900
    assert len(taken) == 10
    assert max(np.diff(taken)) <= 2 * min(np.diff(taken))


def test_moving_frames_are_repeated_and_time_runs_on() -> None:
    clip = sample_clip(synthetic_clips.pan(6).frames, 25, group=2)
    assert len(clip.frames) == 12
    assert all(np.array_equal(clip.frames[i], clip.frames[i + 1]) for i in range(0, 12, 2))
    assert clip.fps == pytest.approx(50)


def test_still_frames_share_a_patch() -> None:
    static, pan = synthetic_clips.static(6).frames, synthetic_clips.pan(6).frames
    assert len(sample_clip(static, 25, group=2).frames) == 6
    assert len(sample_clip(static, 25, group=2, pairs="moving").frames) == 12
    assert len(sample_clip(pan, 25, group=2, pairs="still").frames) == 6
    assert not has_motion(synthetic_clips.noise(4).frames[:2], 2)


def test_frames_of_another_size_are_resized_with_a_note() -> None:
    frames = synthetic_clips.static(4).frames
    clip = sample_clip([frames[0], frames[1], frames[2][:200, :300], frames[3]], 25)
    assert {frame.shape for frame in clip.frames} == {(360, 640, 3)}
    assert "size changes" in clip.notes[0]


def test_notes_of_a_truncated_file_are_kept(write: Callable[..., Path], tmp_path: Path) -> None:
    frames = [frame[:96, :160] for frame in synthetic_clips.draw_clip("shake", 20).frames]
    data = write(frames, options={"movflags": "faststart"}).read_bytes()
    (tmp_path / "short.mp4").write_bytes(data[: len(data) * 3 // 4])
    note = sample_clip(tmp_path / "short.mp4", 25).notes[0]
    assert "ends early" in note or "damaged" in note


@pytest.mark.parametrize(
    ("options", "message"), [({"pairs": "odd"}, "pairs as one of"), ({"max_frames": 0}, "at least 1 frame")]
)
def test_wrong_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(VideoError, match=message):
        sample_clip(np.zeros((2, 8, 8, 3), np.uint8), 25, **options)  # type: ignore[arg-type]
