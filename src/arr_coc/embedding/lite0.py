"""EfficientNet-Lite0, an ImageNet classifier for small devices, run on every place of a picture instead of its mean.

The architecture as published (Tan and Le, "EfficientNet", 2019, in its Lite form: no squeeze-and-excitation, ReLU6 in place
of swish): a stem, seven stages of inverted bottlenecks, a head of 1,280 channels, one linear classifier.

Notable:
- a linear classifier after a mean is the mean of the classifier at every place, so scores `[1000, h, w]` cost nothing more;
- batch normalisation is a scale and a shift by now, and is folded into the convolution before it;
- padding is as where the weights were trained: an even side gets the odd pixel of padding at its end;
- channels last in memory and 1x1 convolutions as matrix products, because torch's own choices are slow on one CPU core.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from arr_coc.embedding.encoder import fingerprint
from arr_coc.errors import EncoderError, first_line

STEM, HEAD, CLASSES = 32, 1280, 1000
STRIDE = 32
EPSILON = 1e-3  # of the batch normalisation
# blocks, kernel, stride, expansion, channels
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip


class Around(nn.Conv2d):
    """A convolution that turns `n` pixels into `ceil(n / stride)`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, drop = zip(*(self._before(n, axis) for axis, n in enumerate(x.shape[2:])), strict=True)
        out = F.conv2d(x, self.weight, self.bias, self.stride, before, 1, self.groups)
        return out[:, :, drop[0] :, drop[1] :]

    def _before(self, n: int, axis: int) -> tuple[int, int]:
        """Padding before and after alike, and how many of the first results are then too many."""
        kernel, stride = int(self.kernel_size[axis]), int(self.stride[axis])
        missing = max(0, (-(-n // stride) - 1) * stride + kernel - n)
        # One pixel more is missing after than before: a whole stride more on both sides, and the first result is left out.
        return (missing // 2, 0) if missing % 2 == 0 else (missing // 2 + stride, 1)


class Across(nn.Linear):
    """A 1x1 convolution."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Bottleneck(nn.Module):
    """Widen, look around within each channel, narrow; the input is added where the shape allows."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = Across(inputs, inner) if expansion != 1 else None
        self.around = Around(inner, inner, kernel, stride, groups=inner)
        self.project = Across(inner, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = x if self.expand is None else self.expand(x).clamp_(0, 6)
        out: torch.Tensor = self.project(self.around(inner).clamp_(0, 6))
        return out.add_(x) if self.residual else out


class Lite0(nn.Module):
    """Pictures `[B, 3, H, W]`, pixels in [-1, 1], to class scores `[B, 1000, h, w]`; for inference only."""

    stored: str = ""  # the fingerprint of the weights as they came

    def __init__(self) -> None:
        super().__init__()
        self.stem = Around(3, STEM, 3, 2)
        blocks, inputs = [], STEM
        for count, kernel, stride, expansion, outputs in STAGES:
            for step in [stride] + [1] * (count - 1):
                blocks.append(Bottleneck(inputs, outputs, kernel, step, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = Across(inputs, HEAD)
        self.classifier = Across(HEAD, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.contiguous(memory_format=torch.channels_last)).clamp_(0, 6)
        return self.classifier(self.head(self.blocks(x)).clamp_(0, 6))


def load_lite0(path: Path) -> Lite0:
    """The network with the weights of a `.pth` file; only tensors are read from it, no code is run."""
    network = Lite0()
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(folded(stored))
        network.stored = fingerprint(stored)
    except Exception as error:  # torch reports broken files in many ways
        raise EncoderError(
            f"expected the weights of EfficientNet-Lite0 in {str(path)!r}: {first_line(error)}"
        ) from error
    return network.eval()


def folded(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights as they are published, each convolution beside its batch normalisation, as this network has them."""
    out = {}
    convolutions = {"_conv_stem": ("stem", "_bn0"), "_conv_head": ("head", "_bn1")}
    for number in range(sum(stage[0] for stage in STAGES)):
        place = f"_blocks.{number}."
        for name, ours, norm in (
            ("_expand_conv", "expand", "_bn0"), ("_depthwise_conv", "around", "_bn1"), ("_project_conv", "project", "_bn2"),
        ):  # fmt: skip
            if f"{place}{name}.weight" in stored:
                convolutions[place + name] = (f"blocks.{number}.{ours}", place + norm)
    for name, (ours, norm) in convolutions.items():
        weight = stored[f"{name}.weight"]
        scale = stored[f"{norm}.weight"] / (stored[f"{norm}.running_var"] + EPSILON).sqrt()
        weight = weight * scale[:, None, None, None]
        out[f"{ours}.weight"] = weight if weight.shape[-1] > 1 else weight[:, :, 0, 0]
        out[f"{ours}.bias"] = stored[f"{norm}.bias"] - stored[f"{norm}.running_mean"] * scale
    return out | {"classifier.weight": stored["_fc.weight"], "classifier.bias": stored["_fc.bias"]}
