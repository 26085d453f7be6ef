"""A cheap encoder that scores colours, and a writer of clip files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from arr_coc import Embeddings
from arr_coc.embedding.projection import Projection
from arr_coc.embedding.windows import WindowedEncoder


class Yellows(WindowedEncoder):
    """An encoder that scores yellow in each cell, and counts its calls and windows."""

    name, width, cell, side, overlap = "yellows", 3, 8, 128, 0.25

    def __init__(self) -> None:
        self.device, self.dtype, self.calls, self.windows = torch.device("cpu"), torch.float32, 0, 0

    @property
    def identity(self) -> str:
        return "yellows"

    def encode_batch(self, pictures: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.windows += len(pictures)
        return F.avg_pool2d(pictures, self.cell) - 0.5

    def embed(self, questions: list[str]) -> torch.Tensor:
        return torch.tensor([[0.6, 0.6, -1.0]]).expand(len(questions), -1)


def projection() -> Projection:
    same, zero = torch.eye(3), torch.zeros(3)
    return Projection("yellows", same, same, zero, zero, torch.full((3,), 1 / 3))


@pytest.fixture
def yellows() -> Embeddings:
    return Embeddings(Yellows(), projection())


@pytest.fixture
def native_yellows() -> Embeddings:
    return Embeddings(Yellows(), projection(), mode="native")


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write frames uint8 `[H, W, 3]` into a file."""
    av = pytest.importorskip("av")

    def made(
        frames: Sequence[np.ndarray], name: str = "clip.mp4", *, codec: str = "libx264", pixels: str = "yuv420p",
        times: Sequence[int] | None = None, turned: int = 0, **options: Any,
    ) -> Path:  # fmt: skip
        path = tmp_path / name
        with av.open(str(path), "w", **options) as container:
            stream = container.add_stream(codec, rate=25)
            stream.height, stream.width = frames[0].shape[:2]
            stream.pix_fmt = pixels
            stream.time_base = Fraction(1, 1000)
            stream.codec_context.time_base = Fraction(1, 1000)
            stream.codec_context.gop_size = 4
            if turned:
                stream.set_display_rotation(turned)
            for number, frame in enumerate(frames):
                picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
                picture.pts = times[number] if times is not None else 40 * number
                picture.time_base = Fraction(1, 1000)
                for packet in stream.encode(picture):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)
        return path

    return made
