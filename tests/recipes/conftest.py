"""Fonts, a small reader and pictures for the recipes' tests."""

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.adapters.loading import load_processor
from recipes.reader import folder
from recipes.reader.model import TINY, build
from tests.training.conftest import _one_thread, fonts

__all__ = ["_one_thread", "fonts"]


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """A small random reader and the processor of its folder."""
    torch.manual_seed(0)
    model = build(TINY).eval()
    for parameter in model.parameters():  # fresh weights are so small that wrong positions would go unnoticed
        if parameter.ndim > 1:
            parameter.data.mul_(6)
    path = folder.write(model, tmp_path_factory.mktemp("reader"), dtype=torch.float32)
    return model, load_processor(path)


@pytest.fixture(scope="session")
def picture():
    """Makes pictures of noise."""

    def make(width: int, height: int) -> Image.Image:
        return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8))

    return make


@pytest.fixture(scope="session")
def chat():
    """Puts a question about a picture in the shipped chat format."""

    def ask(processor, image: Image.Image, question: str):
        messages = [
            {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}
        ]
        return processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )

    return ask
