"""Video frames to patches: the image processor's arithmetic, over time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from arr_coc.adapters.video_processor import QwenVideoProcessor
from arr_coc.errors import PromptError
from tests.adapters.tiny_vlm import picture

SIZE = {"shortest_edge": 4 * 28**2, "longest_edge": 64 * 28**2}


def test_a_still_video_is_the_picture_in_every_frame() -> None:
    images = Qwen2VLImageProcessorPil(size=SIZE)
    frames = QwenVideoProcessor.from_settings("qwen2_vl", images, {"size": SIZE})
    still = images(picture(300, 200), return_tensors="pt")
    patches, grid = frames.patchify([picture(300, 200)] * 4)
    assert grid == [2, *still["image_grid_thw"][0, 1:].tolist()]
    for half in patches.chunk(2):
        assert (half - still["pixel_values"]).abs().max() < 1e-5


def test_frames_are_paired_in_time_and_the_last_one_fills_its_pair() -> None:
    frames = QwenVideoProcessor(size=SIZE, image_mean=(0, 0, 0), image_std=(1, 1, 1))
    shades = [np.full((56, 56, 3), value, np.uint8) for value in (0, 50, 100)]
    made = frames([shades])
    patches = made["pixel_values_videos"].view(2, 16, 3, 2, 14, 14)  # pair, patch, colour, frame
    levels = patches.mean((1, 2, 4, 5)) * 255
    assert torch.allclose(levels, torch.tensor([[0.0, 50.0], [100.0, 100.0]]), atol=1e-3)
    assert made["video_grid_thw"].tolist() == [[2, 4, 4]]


@pytest.mark.parametrize(("height", "width"), [(200, 300), (56, 56), (1000, 37), (3000, 2000), (29, 400)])
def test_frames_are_sized_as_pictures_are(height: int, width: int) -> None:
    frames = QwenVideoProcessor(size=SIZE)
    assert frames.target_size(4, height, width) == smart_resize(
        height, width, 28, SIZE["shortest_edge"], SIZE["longest_edge"]
    )


def test_qwen3_shares_the_pixels_among_the_frames() -> None:
    frames = QwenVideoProcessor(
        size={"shortest_edge": 1024, "longest_edge": 32 * 32 * 100}, patch_size=16, whole_clip=True
    )
    rows, columns = frames.target_size(8, 480, 640)
    assert 8 * rows * columns <= 32 * 32 * 100
    assert rows % 32 == columns % 32 == 0
    assert frames.target_size(8, 10, 20)[0] >= 32


def test_a_very_long_strip_is_refused() -> None:
    with pytest.raises(PromptError, match="200 times"):
        QwenVideoProcessor(size=SIZE).target_size(1, 1, 1000)


def test_a_folder_s_own_settings_win() -> None:
    images = Qwen2VLImageProcessorPil(size=SIZE)
    made = QwenVideoProcessor.from_settings(
        "qwen3_vl", images, {"size": {"shortest_edge": 1, "longest_edge": 9}, "fps": 2, "merge_size": None}
    )
    assert (made.size["longest_edge"], made.merge_size, made.whole_clip) == (9, 2, True)
