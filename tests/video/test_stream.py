"""A clip and a question to allocations, one after another."""

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
from arr_coc import Embeddings
from arr_coc.errors import ArrCocError, ImageError, VideoError
from arr_coc.frames.reader import Frame
from arr_coc.video import synthetic as rendering
from arr_coc.video.latest_frames import Hurry
from arr_coc.video.memory import Settings
from arr_coc.video.stream import Stream

Write = Callable[..., Path]


def test_every_frame_gets_its_allocation_and_says_what_was_reused(yellows: Embeddings) -> None:
    clip = rendering.rendered("object", 8)
    seen = list(arr_coc.watch(clip.frames, clip.question, using=yellows, budget=20, fps=10))
    assert [one.number for one in seen] == list(range(8))
    assert [round(one.time, 3) for one in seen] == [round(number / 10, 3) for number in range(8)]
    assert all(one.allocation.k == 20 for one in seen)
    assert seen[0].reuse.texture == 0
    assert min(one.reuse.texture for one in seen[1:]) > 0.5
    assert json.loads(json.dumps(seen[3].to_dict()))["reused"]["texture"] > 0.5


def test_the_ball_is_among_the_kept_cells_on_every_frame(yellows: Embeddings) -> None:
    clip = rendering.rendered("object", 8)
    found = []
    for seen, box in zip(Stream(clip.frames, clip.question, using=yellows, budget="10%"), clip.evidence, strict=True):
        assert box is not None
        found.append(covered(seen.allocation, box))
    assert min(found) > 0.2
    assert np.mean(found) > 0.7


def covered(allocation: arr_coc.Allocation, box: rendering.Box) -> float:
    """The share of a box that lies in kept cells."""
    cells = allocation.boxes
    wide = torch.minimum(cells[:, 2], torch.tensor(box[2])) - torch.maximum(cells[:, 0], torch.tensor(box[0]))
    high = torch.minimum(cells[:, 3], torch.tensor(box[3])) - torch.maximum(cells[:, 1], torch.tensor(box[1]))
    return float((wide.clamp(min=0) * high.clamp(min=0)).sum()) / ((box[2] - box[0]) * (box[3] - box[1]))


def test_carried_and_recomputed_keep_nearly_the_same(yellows: Embeddings) -> None:
    clip = rendering.rendered("zoom", 12)
    both = [
        Stream(clip.frames, "Where is the ball?", using=yellows, budget="25%", memory=memory)
        for memory in (Settings(), Settings(keyframe=1))
    ]
    shared = []
    for one, other in zip(*both, strict=True):
        a, b = (set(each.allocation.keep.tolist()) for each in (one, other))
        shared.append(len(a & b) / len(a | b))
    assert np.mean(shared) > 0.85


def test_frame_by_frame_is_what_each_frame_is_alone(yellows: Embeddings) -> None:
    frames = rendering.rendered("zoom", 4).frames
    stream = Stream(frames, "Where is the ball?", using=yellows, budget="25%", memory=Settings(reuse=False))
    for seen, frame in zip(stream, frames, strict=True):
        alone = arr_coc.realize(frame, "Where is the ball?", (13, 23), "25%", yellows.anew())
        assert torch.equal(seen.allocation.keep, alone.keep)
        assert seen.allocation.relevance is not None
        assert alone.relevance is not None
        assert torch.equal(seen.allocation.relevance, alone.relevance)


def test_on_a_static_scene_cells_stay_where_they_are(yellows: Embeddings) -> None:
    clip = rendering.static(10, noise=25.0)

    def jitter(keeps: Iterator[torch.Tensor]) -> float:
        found = [set(keep.tolist()) for keep in keeps]
        return float(np.mean([len(a ^ b) for a, b in pairwise(found)]))

    stream = Stream(clip.frames, "Where is the ball?", using=yellows, budget="25%")
    alone = (arr_coc.realize(frame, "Where is the ball?", (13, 23), "25%", yellows) for frame in clip.frames)
    assert jitter(one.allocation.keep for one in stream) <= jitter(one.keep for one in alone) / 3


def test_cuts_are_marked_and_start_afresh(yellows: Embeddings) -> None:
    clip = rendering.rendered("cut", 16)
    seen = list(Stream(clip.frames, clip.question, using=yellows))
    assert tuple(one.number for one in seen if one.scene == "cut") == clip.cuts
    assert all(one.reuse.why == "cut" for one in seen if one.scene)


def test_a_white_flash_is_passed_over(yellows: Embeddings) -> None:
    clip = rendering.rendered("static", 6)
    clip.frames[3][:] = 255
    seen = list(Stream(clip.frames, clip.question, using=yellows))
    assert [one.scene for one in seen] == [""] * 6
    assert seen[3].reuse.why == "passing"
    assert seen[4].reuse.texture > 0.9


def test_another_question_keeps_what_was_encoded(yellows: Embeddings) -> None:
    clip = rendering.rendered("static", 6)
    stream = Stream(clip.frames, "Where is the ball?", using=yellows)
    list(islice(stream, 3))
    looked = yellows.encoder.looks  # type: ignore[attr-defined]
    stream.ask("What is there?")
    list(stream)
    assert yellows.encoder.looks == looked  # type: ignore[attr-defined]
    with pytest.raises(ArrCocError, match="question as text"):
        stream.ask(3)  # type: ignore[arg-type]


def test_only_what_is_new_is_spent_on() -> None:
    static = [one.allocation.k for one in Stream(rendering.rendered("static", 6).frames, "", spend="new", budget=40)]
    pan = [one.allocation.k for one in Stream(rendering.pan(6, step=24).frames, "", spend="new", budget=40)]
    assert static[0] == pan[0] == 40
    assert np.mean(static[1:]) < 4
    assert np.mean(pan[1:]) > 2 * np.mean(static[1:])


def test_a_file_is_watched_and_what_is_wrong_with_it_is_noted(write: Write, tmp_path: Path) -> None:
    data = write(rendering.rendered("shake", 20).frames, options={"movflags": "faststart"}).read_bytes()
    short = tmp_path / "short.mp4"
    short.write_bytes(data[: len(data) * 3 // 4])
    with arr_coc.watch(short, "Where is the van?") as stream:
        seen = list(stream)
    assert 1 < len(seen) < 20
    assert stream.notes


def test_a_change_of_size_in_the_middle_starts_afresh() -> None:
    frames = rendering.rendered("static", 4).frames
    seen = list(Stream([frames[0], frames[1], frames[2][:200], frames[3][:200]], ""))
    assert seen[2].scene == "cut"
    assert seen[2].allocation.n < seen[1].allocation.n
    assert seen[3].reuse.texture > 0.9


def test_a_frame_of_nan_ends_it_with_a_sentence_after_what_was_good() -> None:
    frames = torch.rand(3, 3, 32, 32)
    frames[2, 0, 0, 0] = float("nan")
    stream = Stream(frames, "")
    assert [next(stream).number, next(stream).number] == [0, 1]
    with pytest.raises(ImageError, match="frame 3"):
        next(stream)


def test_one_frame_and_tiny_frames_are_watched(yellows: Embeddings) -> None:
    assert len(list(Stream([np.zeros((1, 1, 3), np.uint8)], "", using=yellows))) == 1
    rng = np.random.default_rng(0)
    tiny = [rng.integers(0, 256, (7, 5, 3), dtype=np.uint8) for _ in range(4)]
    assert [one.allocation.n for one in Stream(tiny, "", using=yellows)] == [1] * 4


def test_a_slow_consumer_gets_the_newest_and_is_told_what_was_dropped() -> None:
    frames = (Frame(number, number / 10, np.zeros((4, 4, 3), np.uint8)) for number in range(30))
    hurry = Hurry(frames, waiting=2)
    time.sleep(0.1)  # all have come by now
    got = list(hurry)
    assert [frame.number for frame in got] == [28, 29]
    assert [frame.dropped for frame in got] == [28, 0]
    assert [frame.time for frame in got] == [2.8, 2.9]


def test_what_goes_wrong_while_hurrying_is_told_after_the_frames_before_it() -> None:
    def broken() -> Iterator[Frame]:
        yield Frame(0, 0.0, np.zeros((4, 4, 3), np.uint8))
        raise VideoError("the camera was unplugged")

    hurry = Hurry(broken())
    assert next(hurry).number == 0
    with pytest.raises(VideoError, match="unplugged"):
        next(hurry)


def test_dropping_in_a_stream_keeps_numbers_and_times() -> None:
    clip = rendering.rendered("static", 20)
    seen = list(Stream(clip.frames, "", drop="oldest", fps=20))
    assert seen[-1].number == 19
    assert sum(one.dropped for one in seen) + len(seen) == 20
    assert all(one.time == one.number / 20 for one in seen)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"drop": "newest"}, "drop as one of"), ({"spend": "all"}, "spend as one of"), ({"budget": "many"}, "budget")],
)
def test_wrong_options_are_told(options: dict[str, str], said: str) -> None:
    with pytest.raises(ArrCocError, match=said):
        Stream([np.zeros((8, 8, 3), np.uint8)], "", **options)  # type: ignore[arg-type]


def test_closing_ends_the_thread_before_the_source_is_let_go() -> None:
    def endless() -> Iterator[np.ndarray]:
        while True:
            yield np.zeros((16, 16, 3), np.uint8)

    with Stream(endless(), "", drop="oldest") as stream:
        next(stream)
        assert stream._hurry is not None
    assert not stream._hurry._thread.is_alive()


def test_after_a_flash_nothing_is_new_again() -> None:
    clip = rendering.rendered("static", 7)
    frames = [np.array(frame) for frame in clip.frames]
    frames[3] = np.full_like(frames[3], 255)
    kept = [seen.allocation.k for seen in Stream(frames, clip.question, budget="12.5%", spend="new")]
    assert max(kept[4:]) <= 3 < kept[0]


@pytest.mark.parametrize("options", [{"fps": 0}, {"fps": float("nan")}, {"every": float("inf")}, {"every": "2"}])
def test_a_rate_that_is_none_is_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(VideoError, match="expected a number of frames a second above 0"):
        next(Stream([np.zeros((9, 9, 3), np.uint8)], "Where?", **options))


def test_frames_without_pixels_and_no_frames_at_all() -> None:
    with pytest.raises(ImageError, match="frame 1: expected a picture with pixels"):
        next(Stream([np.zeros((0, 9, 3), np.uint8)], "Where?"))
    with pytest.raises(VideoError, match="at least one frame"):
        next(Stream(iter([]), "Where?"))
