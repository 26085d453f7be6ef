"""Video frames to squares of pixels for LLaVA-OneVision, with Pillow and torch alone (its own video processor needs torchvision)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.errors import PromptError


@dataclass
class SquareFrames:
    """The settings of such a video processor, and its work. Frames come chosen: none are left out here."""

    size: Mapping[str, int]  # height and width
    image_mean: Sequence[float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: Sequence[float] = (0.26862954, 0.26130258, 0.27577711)
    rescale_factor: float = 1 / 255
    resample: int = Image.Resampling.BICUBIC

    @classmethod
    def of(cls, images: Any, stored: Mapping[str, Any]) -> SquareFrames:
        """As a model folder's video settings say, else as its image settings do."""
        settings = {"size": dict(images.size), "image_mean": images.image_mean, "image_std": images.image_std}
        known = {field.name for field in fields(cls)}
        return cls(**settings | {name: value for name, value in stored.items() if name in known and value is not None})

    def __call__(self, videos: Any, **_: Any) -> Any:
        """Videos (each frames `[T, H, W, 3]` or a list of pictures) to `pixel_values_videos` `[V, T, 3, H, W]`."""
        from transformers import BatchFeature

        lengths = [len(video) for video in videos]
        if len(set(lengths)) > 1:
            raise PromptError(
                f"expected videos with equally many frames in one batch, got {', '.join(map(str, lengths))}: "
                "ask about them one by one"
            )
        return BatchFeature({"pixel_values_videos": torch.stack([self._pixels(video) for video in videos])})

    def _pixels(self, video: Any) -> torch.Tensor:
        """One video's frames as `[T, 3, H, W]`."""
        frames = [frame if isinstance(frame, Image.Image) else Image.fromarray(np.asarray(frame)) for frame in video]
        wanted = (self.size["width"], self.size["height"])
        pixels = np.stack([np.asarray(frame.convert("RGB").resize(wanted, self.resample)) for frame in frames])
        film = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() * self.rescale_factor
        mean, std = (torch.tensor(list(values)).view(1, 3, 1, 1) for values in (self.image_mean, self.image_std))
        return (film - mean) / std
