"""Video frames to patches for the Qwen models, with Pillow and torch alone (their own video processors need torchvision)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.errors import PromptError

MOST_STRETCHED = 200  # width to height, or the other way round


@dataclass
class FrameProcessor:
    """The settings of a Qwen video processor, and its work. Frames come chosen: none are left out here."""

    size: Mapping[str, int]  # pixels of a frame (of a whole clip where `whole_clip`), at least and at most
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    image_mean: Sequence[float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: Sequence[float] = (0.26862954, 0.26130258, 0.27577711)
    rescale_factor: float = 1 / 255
    resample: int = Image.Resampling.BICUBIC
    whole_clip: bool = False

    @classmethod
    def of(cls, model_type: str, images: Any, stored: Mapping[str, Any]) -> FrameProcessor:
        """As a model folder's video settings say, else as its image settings and the family's defaults do."""
        cell = images.patch_size * images.merge_size
        settings: dict[str, Any] = {
            "size": {"shortest_edge": 128 * cell**2, "longest_edge": 768 * cell**2},
            "patch_size": images.patch_size,
            "temporal_patch_size": images.temporal_patch_size,
            "merge_size": images.merge_size,
            "image_mean": images.image_mean,
            "image_std": images.image_std,
        }
        known = {field.name for field in fields(cls)} - {"whole_clip"}
        settings |= {name: value for name, value in stored.items() if name in known and value is not None}
        return cls(**settings, whole_clip=model_type.startswith("qwen3"))

    def __call__(self, videos: Any, video_metadata: Sequence[Any] | None = None, **_: Any) -> Any:
        """Videos (each frames `[T, H, W, 3]` or a list of pictures) to patches, grids and metadata."""
        from transformers import BatchFeature
        from transformers.video_utils import VideoMetadata

        patches, grids, metadata = [], [], []
        for number, video in enumerate(videos):
            frames = [f if isinstance(f, Image.Image) else Image.fromarray(np.asarray(f)) for f in video]
            made, grid = self.patchify(frames)
            patches.append(made)
            grids.append(grid)
            given = dict(video_metadata[number]) if video_metadata else {}
            count = len(frames)
            metadata.append(
                VideoMetadata(
                    total_num_frames=count,
                    fps=given.get("fps"),
                    frames_indices=list(range(count)),
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
        height, width = self.target(len(frames), frames[0].height, frames[0].width)
        pixels = np.stack([np.asarray(f.convert("RGB").resize((width, height), self.resample)) for f in frames])
        film = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() * self.rescale_factor  # [T, 3, H, W]
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (self.image_mean, self.image_std))
        film = (film - mean) / std
        missing = -len(film) % self.temporal_patch_size
        film = torch.cat([film, film[-1:].expand(missing, -1, -1, -1)])  # the last frame fills its group
        side, merge = self.patch_size, self.merge_size
        t, h, w = len(film) // self.temporal_patch_size, height // side, width // side
        film = film.view(t, self.temporal_patch_size, 3, h // merge, merge, side, w // merge, merge, side)
        groups = film.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)  # t, cell row, cell column, patch row, column, C, frame, y, x
        return groups.reshape(t * h * w, -1), [t, h, w]

    def target(self, count: int, height: int, width: int) -> tuple[int, int]:
        """The frame size (height, width) nearest to the original that the limits and whole cells allow."""
        cell = self.patch_size * self.merge_size
        least, most = self.size["shortest_edge"], self.size["longest_edge"]
        if self.whole_clip and min(height, width) < cell:
            scale = cell / min(height, width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) > MOST_STRETCHED * min(height, width):
            raise PromptError(
                f"expected a picture at most {MOST_STRETCHED} times as long as wide, got {width}x{height}"
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
