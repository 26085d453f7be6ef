"""Video processors that need Pillow and torch alone: those of transformers need torchvision.

The caller chooses the frames; none are dropped here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.errors import PromptError

MAX_ASPECT_RATIO = 200


@dataclass(kw_only=True)
class _VideoProcessor:
    size: Mapping[str, int]
    image_mean: Sequence[float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: Sequence[float] = (0.26862954, 0.26130258, 0.27577711)
    rescale_factor: float = 1 / 255
    resample: int = Image.Resampling.BICUBIC

    @classmethod
    def _known(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a model folder's video settings that this class has."""
        names = {field.name for field in fields(cls)}
        return {name: value for name, value in stored.items() if name in names and value is not None}

    def _normalise(self, frames: Sequence[Image.Image], height: int, width: int) -> torch.Tensor:
        """Frames to `[T, 3, H, W]`."""
        pixels = np.stack([np.asarray(f.convert("RGB").resize((width, height), self.resample)) for f in frames])
        film = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() * self.rescale_factor
        mean, std = (torch.tensor(list(values)).view(1, 3, 1, 1) for values in (self.image_mean, self.image_std))
        return (film - mean) / std


@dataclass(kw_only=True)
class QwenVideoProcessor(_VideoProcessor):
    """Frames to patches. `size`: min and max pixels of a frame, or of the whole clip with `whole_clip`."""

    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    whole_clip: bool = False

    @classmethod
    def from_settings(cls, model_type: str, images: Any, stored: Mapping[str, Any]) -> QwenVideoProcessor:
        """From a model folder's video settings; what they leave out comes from the image processor and the family."""
        cell = images.patch_size * images.merge_size
        settings: dict[str, Any] = {
            "size": {"shortest_edge": 128 * cell**2, "longest_edge": 768 * cell**2},
            "patch_size": images.patch_size,
            "temporal_patch_size": images.temporal_patch_size,
            "merge_size": images.merge_size,
            "image_mean": images.image_mean,
            "image_std": images.image_std,
        }
        return cls(**settings | cls._known(stored) | {"whole_clip": model_type.startswith("qwen3")})

    def __call__(self, videos: Any, video_metadata: Sequence[Any] | None = None, **_: Any) -> Any:
        """Videos (each frames `[T, H, W, 3]` or a list of pictures) to patches, grids and metadata."""
        from transformers import BatchFeature
        from transformers.video_utils import VideoMetadata

        patches, grids, metadata = [], [], []
        for number, video in enumerate(videos):
            frames = _pictures(video)
            made, grid = self.patchify(frames)
            patches.append(made)
            grids.append(grid)
            given = dict(video_metadata[number]) if video_metadata else {}
            metadata.append(
                VideoMetadata(
                    total_num_frames=len(frames),
                    fps=given.get("fps"),
                    frames_indices=list(range(len(frames))),
                    width=frames[0].width,
                    height=frames[0].height,
                )
            )
        return BatchFeature(
            {
                "pixel_values_videos": torch.cat(patches),
                "video_grid_thw": torch.tensor(grids),
                "video_metadata": metadata,
            }
        )

    def patchify(self, frames: Sequence[Image.Image]) -> tuple[torch.Tensor, list[int]]:
        """Patches `[P, C * t * p * p]`, cell by cell, and the grid (frames / t, rows, columns) in patches."""
        height, width = self.target_size(len(frames), frames[0].height, frames[0].width)
        film = self._normalise(frames, height, width)
        missing = -len(film) % self.temporal_patch_size
        film = torch.cat([film, film[-1:].expand(missing, -1, -1, -1)])  # the last frame fills its group
        side, merge = self.patch_size, self.merge_size
        t, h, w = len(film) // self.temporal_patch_size, height // side, width // side
        film = film.view(t, self.temporal_patch_size, 3, h // merge, merge, side, w // merge, merge, side)
        groups = film.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)  # t, cell row, cell column, patch row, column, C, frame, y, x
        return groups.reshape(t * h * w, -1), [t, h, w]

    def target_size(self, count: int, height: int, width: int) -> tuple[int, int]:
        """The frame size (height, width) nearest to the original that fits the limits and whole cells."""
        cell = self.patch_size * self.merge_size
        least, most = self.size["shortest_edge"], self.size["longest_edge"]
        if self.whole_clip and min(height, width) < cell:
            scale = cell / min(height, width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
            raise PromptError(
                f"expected a picture at most {MAX_ASPECT_RATIO} times as long as wide, got {width}x{height}"
            )
        rows, columns = round(height / cell) * cell, round(width / cell) * cell
        rounded = round(count / self.temporal_patch_size) * self.temporal_patch_size if self.whole_clip else 1
        clip = count if self.whole_clip else 1
        if rounded * rows * columns > most:
            shrink = math.sqrt(clip * height * width / most)
            rows = max(cell, math.floor(height / shrink / cell) * cell)
            columns = max(cell, math.floor(width / shrink / cell) * cell)
        elif rounded * rows * columns < least:
            grow = math.sqrt(least / (clip * height * width))
            rows, columns = math.ceil(height * grow / cell) * cell, math.ceil(width * grow / cell) * cell
        return rows, columns


@dataclass(kw_only=True)
class SquareVideoProcessor(_VideoProcessor):
    """Frames to pixels of one `size` (height and width), for LLaVA-OneVision."""

    @classmethod
    def from_settings(cls, images: Any, stored: Mapping[str, Any]) -> SquareVideoProcessor:
        """From a model folder's video settings; what they leave out comes from the image processor."""
        settings = {"size": dict(images.size), "image_mean": images.image_mean, "image_std": images.image_std}
        return cls(**settings | cls._known(stored))

    def __call__(self, videos: Any, **_: Any) -> Any:
        """Videos (each frames `[T, H, W, 3]` or a list of pictures) to `pixel_values_videos` `[V, T, 3, H, W]`."""
        from transformers import BatchFeature

        lengths = [len(video) for video in videos]
        if len(set(lengths)) > 1:
            raise PromptError(
                f"expected videos with equally many frames in one batch, got {', '.join(map(str, lengths))}: "
                "ask about them one by one"
            )
        pixels = [self._normalise(_pictures(video), self.size["height"], self.size["width"]) for video in videos]
        return BatchFeature({"pixel_values_videos": torch.stack(pixels)})


def _pictures(video: Any) -> list[Image.Image]:
    return [frame if isinstance(frame, Image.Image) else Image.fromarray(np.asarray(frame)) for frame in video]
