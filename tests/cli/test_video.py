"""`arr-coc video`, as typed."""

from __future__ import annotations

import json
import resource
import signal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import synthetic_clips
from arr_coc.cli import main
from arr_coc.frames.reader import Reader
from arr_coc.video.film import CODECS

av = pytest.importorskip("av")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short clip with a cut, 159 x 91 pixels."""
    path = tmp_path_factory.mktemp("clips") / "clip.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 159, 91, "yuv444p"
        for number, frame in enumerate(synthetic_clips.draw_clip("cut", 12).frames):
            small = np.ascontiguousarray(frame[::4, ::4][:91, :159])
            small = np.pad(small, ((0, 91 - small.shape[0]), (0, 159 - small.shape[1]), (0, 0)), mode="edge")
            picture = av.VideoFrame.from_ndarray(small, format="rgb24")
            picture.pts, picture.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def test_the_output_has_the_same_times(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.mp4"
    assert main(["video", str(clip), "Where is the van?", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("12 frames, 3 cuts; ")
    assert str(out) in said
    made = list(Reader(out))
    assert [round(frame.time, 2) for frame in made] == [round(number / 10, 2) for number in range(12)]
    assert made[0].pixels.shape[1] == 480
    assert made[0].pixels.std() > 20


@pytest.mark.parametrize("ending", CODECS)
def test_a_film_that_cannot_be_finished_leaves_the_old_file(
    ending: str, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"out{ending}"
    words = ["video", str(clip), "Where?", "-o", str(out), "--frames", "3"]
    assert main(words) == 0
    before = out.read_bytes()
    assert len(list(Reader(out))) == 3
    real = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, real[1]))  # as a disk that is full
        code = main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, real)
        signal.signal(signal.SIGXFSZ, previous)
    assert code == 2
    assert f"cannot write '{out}' (" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_json_has_one_line_for_each_frame(clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["video", str(clip), "Where?", "--json", "--budget", "4", "--frames", "5", "--spend", "new"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["frame"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[3]["scene"] == "cut"
    assert lines[0]["tokens"]["kept"] == 4
    assert {"time", "reused", "keep", "grid", "ms", "dropped"} <= set(lines[0])


def test_fps_samples_the_clip(clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["video", str(clip), "Where?", "--fps", "5"]) == 0
    assert capsys.readouterr().out.startswith("6 frames")


def test_a_truncated_clip_is_watched_to_its_end(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = clip.read_bytes()
    short = tmp_path / "short.mkv"
    short.write_bytes(data[: len(data) * 2 // 3])
    assert main(["video", str(short), "Where?", "-o", str(tmp_path / "out.mp4")]) == 0
    frames = int(capsys.readouterr().out.split(" ")[0])
    assert 1 < frames < 12
    assert len(list(Reader(tmp_path / "out.mp4"))) == frames


def test_a_note_about_a_truncated_file_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = tmp_path / "whole.mp4", tmp_path / "part.mp4"
    with av.open(str(whole), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        for frame in synthetic_clips.draw_clip("shake", 12).frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:96, :160]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    data = whole.read_bytes()
    part.write_bytes(data[: len(data) * 2 // 3])
    assert main(["video", str(part), "Where?", "--json"]) == 0
    captured = capsys.readouterr()
    assert 0 < len(captured.out.splitlines()) < 12
    assert "arr-coc: the clip: " in captured.err
