"""Frames from files, cameras and arrays; notes and errors for bad sources."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import synthetic_clips
from arr_coc.errors import ImageError, VideoError
from arr_coc.frames.reader import Frame, Reader, sample_at

Write = Callable[..., Path]


def gradient(height: int = 48, width: int = 64) -> np.ndarray:
    """Dark at the left, light at the right, red at the top."""
    frame = np.zeros((height, width, 3), np.uint8)
    frame[..., 1] = np.linspace(20, 230, width).astype(np.uint8)
    frame[: height // 3, :, 0] = 200
    return frame


def moving(count: int = 12) -> list[np.ndarray]:
    return [np.roll(gradient(), 2 * number, axis=1) for number in range(count)]


def test_all_kinds_of_sources_give_the_same_frames() -> None:
    frames = moving(3)
    stacked = np.stack(frames)
    tensor = torch.from_numpy(stacked).permute(0, 3, 1, 2)
    for source in (frames, stacked, tensor, iter(frames), tensor.float() / 255):
        got = list(Reader(source, fps=10))
        assert [frame.number for frame in got] == [0, 1, 2]
        assert [frame.time for frame in got] == [0, 0.1, 0.2]
        assert all(np.array_equal(frame.pixels, was) for frame, was in zip(got, frames, strict=True))


def test_a_file_keeps_its_timestamps(write: Write) -> None:
    times = [0, 40, 200, 230, 1000]
    reader = Reader(write(moving(5), times=times))
    assert [round(1000 * frame.time) for frame in reader] == times
    assert reader.notes == []


def test_rotated_phone_videos_are_turned_upright(write: Write) -> None:
    flat = next(Reader(write([gradient()] * 2, "flat.mp4"))).pixels
    turned = next(Reader(write([gradient()] * 2, "turned.mp4", turned=90))).pixels
    assert turned.shape == (64, 48, 3)
    assert np.abs(turned.astype(int) - np.rot90(flat).astype(int)).mean() < 2


def test_ten_bits_and_odd_sizes_are_read(write: Write) -> None:
    deep = next(Reader(write([gradient()] * 2, "deep.mkv", codec="ffv1", pixels="yuv420p10le")))
    odd = next(Reader(write([gradient(47, 63)] * 2, "odd.mkv", codec="ffv1", pixels="yuv444p")))
    assert np.abs(deep.pixels.astype(int) - gradient().astype(int)).mean() < 12
    assert odd.pixels.shape == (47, 63, 3)


def test_a_truncated_file_gives_its_frames_and_a_note(write: Write, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noisy = [rng.integers(0, 256, (96, 128, 3), dtype=np.uint8) for _ in range(40)]
    data = write(noisy, options={"movflags": "faststart"}).read_bytes()
    short = tmp_path / "short.mp4"
    short.write_bytes(data[: len(data) // 2])
    reader = Reader(short)
    got = list(reader)
    assert 2 < len(got) < 40
    assert len(reader.notes) == 1
    assert "frame" in reader.notes[0]


def test_a_truncated_file_without_a_frame_count_is_noticed_by_its_duration(write: Write, tmp_path: Path) -> None:
    whole = write([frame[:120, :160] for frame in synthetic_clips.draw_clip("pan", 50).frames], "whole.mkv")
    reader = Reader(whole)
    assert len(list(reader)) == 50
    assert not reader.notes
    data = whole.read_bytes()
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(data[: len(data) * 6 // 10])
    reader = Reader(cut)
    assert 0 < len(list(reader)) < 50
    assert "it ends early: after" in reader.notes[0]


def test_a_late_first_frame_is_not_a_truncated_file(write: Write) -> None:
    times = [900, 940, 1190, 2090, 2100]
    reader = Reader(write(moving(5), "late.mkv", times=times))
    assert [round(1000 * frame.time) for frame in reader] == [time - 900 for time in times]
    assert reader.notes == []


def test_times_continue_across_two_joined_recordings(write: Write, tmp_path: Path) -> None:
    parts = [write(moving(4), "one.ts"), write([frame[:32, :48] for frame in moving(4)], "two.ts")]
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    got = list(Reader(joined))
    assert [frame.pixels.shape[:2] for frame in got] == [(48, 64)] * 4 + [(32, 48)] * 4
    assert [round(1000 * frame.time) for frame in got] == [40 * number for number in range(8)]


def test_reading_a_damaged_file_ends(write: Write, tmp_path: Path) -> None:
    """In a process of its own: a deadlock of the decoder's threads cannot be interrupted."""
    data = bytearray(
        write([frame[:120, :160] for frame in synthetic_clips.draw_clip("pan", 40).frames], "whole.mkv").read_bytes()
    )
    rng = np.random.default_rng(0)
    for place in rng.integers(len(data) // 3, len(data), 400):
        data[place] = rng.integers(256)
    damaged = tmp_path / "damaged.mkv"
    damaged.write_bytes(bytes(data))
    code = f"from arr_coc.frames.reader import Reader; print(len(list(Reader({str(damaged)!r}))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert 0 < int(done.stdout) < 45


def test_one_frame_is_a_clip(write: Write) -> None:
    assert len(list(Reader(write(moving(1))))) == 1
    assert len(list(Reader([gradient()]))) == 1


def test_frames_may_change_their_size() -> None:
    assert [f.pixels.shape for f in Reader([gradient(), gradient(30, 40)])] == [(48, 64, 3), (30, 40, 3)]


def test_a_nan_frame_is_named_after_all_frames_before_it() -> None:
    frames = torch.rand(3, 3, 16, 16)
    frames[2] = float("nan")
    reader = Reader(frames)
    assert [next(reader).number, next(reader).number] == [0, 1]
    with pytest.raises(ImageError, match="frame 3: the image holds NaN"):
        next(reader)


def test_bad_files_and_sources_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("no clip at all")
    for name, message in (
        ("nowhere.mp4", "there is no file"), ("empty.mp4", "is empty"), ("text.mp4", "cannot be opened as a clip"),
        ("", "is a folder"),
    ):  # fmt: skip
        with pytest.raises(VideoError, match=message):
            Reader(tmp_path / name)
    for source, message in ((3, "got int"), (np.zeros((4, 4, 3)), "the shape"), ([], "at least one frame")):
        with pytest.raises(VideoError, match=message):
            Reader(source)  # type: ignore[arg-type]


def test_a_file_without_video_is_rejected(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(VideoError, match="has no video in it"):
        Reader(path)


def test_a_missing_camera_is_rejected() -> None:
    pytest.importorskip("av")
    with pytest.raises(VideoError, match="cannot be opened as a camera"):
        Reader("camera:/dev/no-such-camera")


def test_sampling_goes_by_time_not_by_number() -> None:
    clock = [0.0, 0.1, 0.2, 0.9, 1.0, 1.05, 3.0, 3.1]
    frames = [Frame(number, time, gradient()) for number, time in enumerate(clock)]
    assert [frame.number for frame in sample_at(frames, 1.0)] == [0, 4, 6]
    with pytest.raises(VideoError, match="above 0"):
        next(sample_at(frames, 0))
