"""Augmentation: pixels and points are warped alike, and colours stay."""

import random

import numpy as np
import torch

from recipes.reader.augment import augment, random_warp, warp_images, warp_points


def test_coloured_pictures_keep_their_colours():
    torch.manual_seed(0)
    images = torch.full((64, 3, 28, 28), 250, dtype=torch.uint8)
    images[:, 1:] = 20  # red
    shown = augment(images, torch.eye(2, 3).expand(64, -1, -1)).mean((2, 3))
    assert (shown[:, 0] > shown[:, 1:].amax(1) + 0.2).all()


def test_pixels_and_points_are_warped_alike():
    warp = random_warp(random.Random(1), 200, 100)
    image = torch.zeros(1, 1, 100, 200)
    image[0, 0, 30:33, 150:153] = 1
    shown = warp_images(image, torch.from_numpy(warp)[None])[0, 0]
    row, column = divmod(int(shown.argmax()), 200)
    x, y = warp_points(warp, np.array([[151.5, 31.5]]))[0]
    assert abs(column + 0.5 - x) < 1.5
    assert abs(row + 0.5 - y) < 1.5


def test_a_picture_without_colour_in_a_coloured_batch_is_treated_as_gray() -> None:
    """Only gray pictures get strong tints and are inverted: a red text must stay red."""
    images = torch.full((400, 3, 28, 28), 250, dtype=torch.uint8)
    images[200:, 1:] = 20
    torch.manual_seed(0)
    shown = augment(images, torch.eye(2, 3).expand(400, -1, -1)).mean((2, 3))
    gray, red = shown[:200], shown[200:]
    assert (gray.mean(1) < 0.3).any()  # some are negatives
    assert (red[:, 0] > red[:, 1:].amax(1)).all()
