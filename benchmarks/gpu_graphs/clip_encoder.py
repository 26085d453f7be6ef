"""An encoder of the shape of CLIP-B/32 with random weights: the time does not depend on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from arr_coc.embedding.encoder import l2_normalize

CELLS = 7  # 224 px in patches of 32
CROPS = 273  # crops of the baseline, one per position


class ClipEncoder:
    """Pictures `[B, 3, H, W]` to compressed features `[B, 16, 7, 7]`, each of length 1."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> None:
        import transformers

        torch.manual_seed(0)
        with torch.device(device):
            self.model: Any = transformers.CLIPVisionModel(transformers.CLIPVisionConfig()).eval()
            self.model.to(dtype=dtype)
            self.compress = torch.randn(16, self.model.config.hidden_size, dtype=dtype)
        self.dtype = dtype

    @torch.no_grad()
    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        small = F.interpolate(pixels, (224, 224), mode="bilinear", antialias=True, align_corners=False)
        hidden = self.model(pixel_values=((small - 0.45) / 0.27).to(self.dtype)).last_hidden_state[:, 1:]
        found = (hidden @ self.compress.T).transpose(1, 2).unflatten(2, (CELLS, CELLS)).float()
        return l2_normalize(found, dim=1)

    @torch.no_grad()
    def crops(self, crops: torch.Tensor) -> torch.Tensor:
        """The baseline: crops `[273, 3, 224, 224]` through the encoder, in one batch."""
        return self.model(pixel_values=crops).pooler_output
