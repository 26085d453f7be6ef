"""The classifier against its published architecture, written out with batch normalisation and padding by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from arr_coc.embedding.labels import BATCH_NORM_EPS, CLASSES, HEAD, STAGES, STEM, fold_batch_norm, load_classifier
from arr_coc.errors import EncoderError

Weights = dict[str, torch.Tensor]


def drawn(seed: int = 0) -> Weights:
    """Random weights under the published names."""
    dice = torch.Generator().manual_seed(seed)
    out: Weights = {}

    def convolution(name: str, norm: str, outputs: int, inputs: int, kernel: int) -> None:
        out[f"{name}.weight"] = (
            torch.randn(outputs, inputs, kernel, kernel, generator=dice) / (inputs * kernel**2) ** 0.5
        )
        out[f"{norm}.weight"] = 1 + 0.2 * torch.randn(outputs, generator=dice)
        out[f"{norm}.bias"] = 0.3 * torch.randn(outputs, generator=dice)
        out[f"{norm}.running_mean"] = 0.2 * torch.randn(outputs, generator=dice)
        out[f"{norm}.running_var"] = 0.5 + torch.rand(outputs, generator=dice)
        out[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    convolution("_conv_stem", "_bn0", STEM, 3, 3)
    number, inputs = 0, STEM
    for count, kernel, _, expansion, outputs in STAGES:
        for _ in range(count):
            place, inner = f"_blocks.{number}.", inputs * expansion
            if expansion > 1:
                convolution(f"{place}_expand_conv", f"{place}_bn0", inner, inputs, 1)
            convolution(f"{place}_depthwise_conv", f"{place}_bn1", inner, 1, kernel)
            convolution(f"{place}_project_conv", f"{place}_bn2", outputs, inner, 1)
            number, inputs = number + 1, outputs
    convolution("_conv_head", "_bn1", HEAD, inputs, 1)
    out["_fc.weight"] = torch.randn(CLASSES, HEAD, generator=dice) / HEAD**0.5
    out["_fc.bias"] = torch.randn(CLASSES, generator=dice)
    return out


def reference(stored: Weights, x: torch.Tensor, even: bool = False) -> torch.Tensor:
    """`even`: padding alike on both sides, as it is not."""

    def convolution(x: torch.Tensor, name: str, norm: str, stride: int = 1, groups: int = 1) -> torch.Tensor:
        weight = stored[f"{name}.weight"]
        kernel = weight.shape[-1]
        pads = []
        for side in (x.shape[3], x.shape[2]):
            wanted = (side + stride - 1) // stride
            total = max((wanted - 1) * stride + kernel - side, 0)
            pads += [kernel // 2, kernel // 2] if even else [total // 2, total - total // 2]
        x = F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)
        parts = (stored[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *parts, eps=BATCH_NORM_EPS)

    x = F.relu6(convolution(x, "_conv_stem", "_bn0", 2))
    number = 0
    for count, _, stride, _, _ in STAGES:
        for nth in range(count):
            place, step, before = f"_blocks.{number}.", stride if nth == 0 else 1, x
            if f"{place}_expand_conv.weight" in stored:
                x = F.relu6(convolution(x, f"{place}_expand_conv", f"{place}_bn0"))
            x = F.relu6(convolution(x, f"{place}_depthwise_conv", f"{place}_bn1", step, x.shape[1]))
            x = convolution(x, f"{place}_project_conv", f"{place}_bn2")
            x = x + before if x.shape == before.shape and nth > 0 else x
            number += 1
    x = F.relu6(convolution(x, "_conv_head", "_bn1"))
    return torch.stack([F.linear(row.mT, stored["_fc.weight"], stored["_fc.bias"]).mT for row in x.flatten(2)])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "drawn.pth"
    torch.save(drawn(), path)
    return path


@pytest.mark.parametrize("size", [(64, 96), (33, 50), (32, 1)])
def test_it_computes_the_published_network(file: Path, size: tuple[int, int]) -> None:
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        found = load_classifier(file)(x).flatten(2)
        assert torch.allclose(found, reference(drawn(), x), atol=1e-4)


def test_padding_alike_on_both_sides_would_be_noticed(file: Path) -> None:
    x = torch.rand(1, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        assert not torch.allclose(load_classifier(file)(x).flatten(2), reference(drawn(), x, even=True), atol=1e-2)


def test_the_input_is_left_alone(file: Path) -> None:
    x = torch.rand(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    kept = x.clone()
    with torch.no_grad():
        load_classifier(file)(x)
    assert torch.equal(x, kept)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    stored = drawn()
    del stored["_blocks.3._project_conv.weight"]
    torch.save(stored, tmp_path / "less.pth")
    (tmp_path / "broken.pth").write_bytes(b"PK\x03\x04")
    for name in ("less.pth", "broken.pth"):
        with pytest.raises(EncoderError, match="expected the weights of EfficientNet-Lite0"):
            load_classifier(tmp_path / name)
    assert len(fold_batch_norm(drawn())) == 2 * (2 + sum(stage[0] for stage in STAGES) * 3 - 1 + 1)
