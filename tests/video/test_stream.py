"""One allocation for each frame of a clip or camera."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arr_coc
import synthetic_clips
from arr_coc import Embeddings
from arr_coc.errors import ArrCocError, ImageError, VideoError
from arr_coc.frames.reader import Frame
from arr_coc.video.memory import MemorySettings
from arr_coc.video.stream import LatestFrames, WatchStream

Write = Callable[..., Path]


def test_every_frame_has_an_allocation_and_says_what_was_reused(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("object", 8)
    seen = list(arr_coc.watch(clip.frames, clip.question, using=yellows, budget=20, fps=10))
    assert [one.number for one in seen] == list(range(8))
    assert [round(one.time, 3) for one in seen] == [round(number / 10, 3) for number in range(8)]
    assert all(one.allocation.k == 20 for one in seen)
    assert seen[0].reuse.texture == 0
    assert min(one.reuse.texture for one in seen[1:]) > 0.5
    assert json.loads(json.dumps(seen[3].to_dict()))["reused"]["texture"] > 0.5


def test_the_ball_is_among_the_kept_cells_on_every_frame(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("object", 8)
    found = []
    for seen, box in zip(
        WatchStream(clip.frames, clip.question, using=yellows, budget="10%"), clip.evidence, strict=True
    ):
        assert box is not None
        found.append(covered(seen.allocation, box))
    assert min(found) > 0.2
    assert np.mean(found) > 0.7


def covered(allocation: arr_coc.Allocation, box: synthetic_clips.Box) -> float:
    """The share of a box that lies in kept cells."""
    cells = allocation.boxes
    wide = torch.minimum(cells[:, 2], torch.tensor(box[2])) - torch.maximum(cells[:, 0], torch.tensor(box[0]))
    high = torch.minimum(cells[:, 3], torch.tensor(box[3])) - torch.maximum(cells[:, 1], torch.tensor(box[1]))
    return float((wide.clamp(min=0) * high.clamp(min=0)).sum()) / ((box[2] - box[0]) * (box[3] - box[1]))


def test_reused_and_recomputed_frames_keep_nearly_the_same_cells(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("zoom", 8)
    both = [
        WatchStream(clip.frames, "Where is the ball?", using=yellows, budget="25%", memory=memory)
        for memory in (MemorySettings(), MemorySettings(keyframe=1))
    ]
    shared = []
    for one, other in zip(*both, strict=True):
        a, b = (set(each.allocation.keep.tolist()) for each in (one, other))
        shared.append(len(a & b) / len(a | b))
    assert np.mean(shared) > 0.85


def test_without_reuse_a_frame_is_like_a_still_picture(yellows: Embeddings) -> None:
    frames = synthetic_clips.draw_clip("zoom", 4).frames
    stream = WatchStream(frames, "Where is the ball?", using=yellows, budget="25%", memory=MemorySettings(reuse=False))
    for seen, frame in zip(stream, frames, strict=True):
        alone = arr_coc.realize(frame, "Where is the ball?", (13, 23), "25%", yellows.with_empty_cache())
        assert torch.equal(seen.allocation.keep, alone.keep)
        assert seen.allocation.relevance is not None
        assert alone.relevance is not None
        assert torch.equal(seen.allocation.relevance, alone.relevance)


def test_on_a_static_scene_the_kept_cells_are_stable(yellows: Embeddings) -> None:
    clip = synthetic_clips.static(10, noise=25.0)

    def jitter(keeps: Iterator[torch.Tensor]) -> float:
        found = [set(keep.tolist()) for keep in keeps]
        return float(np.mean([len(a ^ b) for a, b in pairwise(found)]))

    stream = WatchStream(clip.frames, "Where is the ball?", using=yellows, budget="25%")
    alone = (arr_coc.realize(frame, "Where is the ball?", (13, 23), "25%", yellows) for frame in clip.frames)
    assert jitter(one.allocation.keep for one in stream) <= jitter(one.keep for one in alone) / 3


def test_cuts_are_marked_and_start_from_nothing(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("cut", 8)
    seen = list(WatchStream(clip.frames, clip.question, using=yellows))
    assert tuple(one.number for one in seen if one.scene == "cut") == clip.cuts
    assert all(one.reuse.why == "cut" for one in seen if one.scene)


def test_a_white_flash_is_passed_over(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("static", 6)
    clip.frames[3][:] = 255
    seen = list(WatchStream(clip.frames, clip.question, using=yellows))
    assert [one.scene for one in seen] == [""] * 6
    assert seen[3].reuse.why == "passing"
    assert seen[4].reuse.texture > 0.9


def test_another_question_keeps_the_features(yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("static", 6)
    stream = WatchStream(clip.frames, "Where is the ball?", using=yellows)
    list(islice(stream, 3))
    looked = yellows.encoder.calls  # type: ignore[attr-defined]
    stream.ask("What is there?")
    list(stream)
    assert yellows.encoder.calls == looked  # type: ignore[attr-defined]
    with pytest.raises(ArrCocError, match="question as text"):
        stream.ask(3)  # type: ignore[arg-type]


def test_spend_new_keeps_only_new_content() -> None:
    static = [
        one.allocation.k
        for one in WatchStream(synthetic_clips.draw_clip("static", 6).frames, "?", spend="new", budget=40)
    ]
    pan = [one.allocation.k for one in WatchStream(synthetic_clips.pan(6, step=24).frames, "?", spend="new", budget=40)]
    assert static[0] == pan[0] == 40
    assert np.mean(static[1:]) < 4
    assert np.mean(pan[1:]) > 2 * np.mean(static[1:])


def test_a_truncated_file_is_watched_with_a_note(write: Write, tmp_path: Path) -> None:
    data = write(synthetic_clips.draw_clip("shake", 20).frames, options={"movflags": "faststart"}).read_bytes()
    short = tmp_path / "short.mp4"
    short.write_bytes(data[: len(data) * 3 // 4])
    with arr_coc.watch(short, "Where is the van?") as stream:
        seen = list(stream)
    assert 1 < len(seen) < 20
    assert stream.notes


def test_a_change_of_size_starts_from_nothing() -> None:
    frames = synthetic_clips.draw_clip("static", 4).frames
    seen = list(WatchStream([frames[0], frames[1], frames[2][:200], frames[3][:200]], "?"))
    assert seen[2].scene == "cut"
    assert seen[2].allocation.n < seen[1].allocation.n
    assert seen[3].reuse.texture > 0.9


def test_a_nan_frame_raises_after_the_good_frames() -> None:
    frames = torch.rand(3, 3, 32, 32)
    frames[2, 0, 0, 0] = float("nan")
    stream = WatchStream(frames, "?")
    assert [next(stream).number, next(stream).number] == [0, 1]
    with pytest.raises(ImageError, match="frame 3"):
        next(stream)


def test_one_frame_and_tiny_frames_are_watched(yellows: Embeddings) -> None:
    assert len(list(WatchStream([np.zeros((1, 1, 3), np.uint8)], "?", using=yellows))) == 1
    rng = np.random.default_rng(0)
    tiny = [rng.integers(0, 256, (7, 5, 3), dtype=np.uint8) for _ in range(4)]
    assert [one.allocation.n for one in WatchStream(tiny, "?", using=yellows)] == [1] * 4


def test_a_slow_consumer_gets_the_latest_frames_and_the_number_dropped() -> None:
    frames = (Frame(number, number / 10, np.zeros((4, 4, 3), np.uint8)) for number in range(30))
    latest = LatestFrames(frames, size=2)
    time.sleep(0.1)  # all frames have arrived by now
    got = list(latest)
    assert [frame.number for frame in got] == [28, 29]
    assert [frame.dropped for frame in got] == [28, 0]
    assert [frame.time for frame in got] == [2.8, 2.9]


def test_an_error_of_the_source_is_raised_after_the_frames_before_it() -> None:
    def broken() -> Iterator[Frame]:
        yield Frame(0, 0.0, np.zeros((4, 4, 3), np.uint8))
        raise VideoError("the camera was unplugged")

    latest = LatestFrames(broken())
    assert next(latest).number == 0
    with pytest.raises(VideoError, match="unplugged"):
        next(latest)


def test_dropping_keeps_numbers_and_times() -> None:
    clip = synthetic_clips.draw_clip("static", 20)
    seen = list(WatchStream(clip.frames, "?", drop="oldest", fps=20))
    assert seen[-1].number == 19
    assert sum(one.dropped for one in seen) + len(seen) == 20
    assert all(one.time == one.number / 20 for one in seen)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"drop": "newest"}, "drop as one of"), ({"spend": "all"}, "spend as one of"), ({"budget": "many"}, "budget")],
)
def test_wrong_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(ArrCocError, match=message):
        WatchStream([np.zeros((8, 8, 3), np.uint8)], "?", **options)  # type: ignore[arg-type]


def test_closing_ends_the_reading_thread() -> None:
    def endless() -> Iterator[np.ndarray]:
        while True:
            yield np.zeros((16, 16, 3), np.uint8)

    with WatchStream(endless(), "?", drop="oldest") as stream:
        next(stream)
        assert stream._latest is not None
    assert not stream._latest._thread.is_alive()


def test_nothing_is_new_after_a_flash() -> None:
    clip = synthetic_clips.draw_clip("static", 7)
    frames = [np.array(frame) for frame in clip.frames]
    frames[3] = np.full_like(frames[3], 255)
    kept = [seen.allocation.k for seen in WatchStream(frames, clip.question, budget="12.5%", spend="new")]
    assert max(kept[4:]) <= 3 < kept[0]


@pytest.mark.parametrize("options", [{"fps": 0}, {"fps": float("nan")}, {"every": float("inf")}, {"every": "2"}])
def test_an_invalid_rate_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(VideoError, match="expected a number of frames a second above 0"):
        next(WatchStream([np.zeros((9, 9, 3), np.uint8)], "Where?", **options))


def test_empty_frames_and_no_frames_are_rejected() -> None:
    with pytest.raises(ImageError, match="frame 1: expected a picture with pixels"):
        next(WatchStream([np.zeros((0, 9, 3), np.uint8)], "Where?"))
    with pytest.raises(VideoError, match="at least one frame"):
        next(WatchStream(iter([]), "Where?"))


def test_a_gaze_needs_no_question_and_can_move() -> None:
    clip = synthetic_clips.draw_clip("object", 4)
    height, width = clip.frames[0].shape[:2]
    with arr_coc.watch(clip.frames, gaze=(1, 1), budget=20) as stream:
        assert 0 in next(stream).allocation.keep.tolist()
        stream.gaze = ((width - 1, height - 1),)
        later = next(stream).allocation
        assert later.n - 1 in later.keep.tolist()
        assert 0 not in later.keep.tolist()
    with pytest.raises(ArrCocError, match="expected a question, got an empty one"):
        arr_coc.watch(clip.frames)
    with pytest.raises(ArrCocError, match="inside the picture of"):
        next(arr_coc.watch(clip.frames, gaze=(width + 5, 1)))


@pytest.mark.parametrize("name", ["previous_relevance", "fixation"])
def test_the_memory_moves_the_choice(name: str, yellows: Embeddings) -> None:
    clip = synthetic_clips.draw_clip("pan", 6)
    kept = []
    for maps in (("previous_relevance", "fixation"), tuple({"previous_relevance", "fixation"} - {name})):
        memory = MemorySettings(maps=maps)
        kept.append(
            [
                s.allocation.keep.tolist()
                for s in arr_coc.watch(clip.frames, clip.question, using=yellows, memory=memory)
            ]
        )
    assert kept[0] != kept[1]
    with pytest.raises(
        ArrCocError, match="expected maps among previous_relevance, fixation, previous_saliency, got 'gaze'"
    ):
        MemorySettings(maps=("gaze",))


def test_frames_of_one_size_are_prepared_like_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the channels of a frame are one graph, and all that a decision reads comes in one transfer."""
    from arr_coc.relevance import selector, together

    frames = [np.roll(np.array(arr_coc.pictures.receipt().resize((120, 160))), 3 * shift, 0) for shift in range(3)]
    plain = [seen.allocation.keep.tolist() for seen in arr_coc.watch(frames, "What is the total?", fps=2)]
    calls: list[int] = []
    prepare = together.prepare

    def counted(given: Any) -> Any:
        calls.append(len(given))
        return prepare(given)

    monkeypatch.setattr(selector, "pays_together", lambda device: True)
    monkeypatch.setattr(together, "prepare", counted)
    assert [seen.allocation.keep.tolist() for seen in arr_coc.watch(frames, "What is the total?", fps=2)] == plain
    assert calls == [1, 1, 1]
