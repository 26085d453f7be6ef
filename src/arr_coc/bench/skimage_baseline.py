"""The baseline of `arr-coc bench texture`: the same channels from scikit-image and scipy at full size.

It has no `text` channel, because neither library has a counterpart.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from arr_coc.errors import ArrCocError

try:
    from scipy import ndimage
    from skimage import color, filters, segmentation, transform
except ImportError as error:
    raise ArrCocError(
        f"the comparison needs scikit-image and scipy ({error.name} is missing): pip install scikit-image"
    ) from None


def colour(image: Image.Image) -> list[np.ndarray]:
    return list(np.moveaxis(np.asarray(image).astype(np.float32) / 255, -1, 0))


def luma_and_magnitude(image: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    luma = np.asarray(image).astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32) / 255
    return luma, filters.sobel(luma) * np.float32(2**0.5)  # scikit-image divides by the root of 2


def edges_of(luma: np.ndarray, magnitude: np.ndarray) -> list[np.ndarray]:
    darker = luma < filters.gaussian(luma, 2)
    detail = np.abs(filters.laplace(luma)) / 4
    return [magnitude * darker, magnitude * ~darker, detail, filters.gaussian(luma, 4)]


def distance_of(magnitude: np.ndarray) -> list[np.ndarray]:
    half_diagonal = np.hypot(*magnitude.shape) / 2
    return [np.minimum(ndimage.distance_transform_edt(magnitude <= 0.1) / half_diagonal, 1)]


def edges(image: Image.Image) -> list[np.ndarray]:
    return edges_of(*luma_and_magnitude(image))


def distance(image: Image.Image) -> list[np.ndarray]:
    return distance_of(luma_and_magnitude(image)[1])


def saliency(image: Image.Image) -> list[np.ndarray]:
    lab = color.rgb2lab(np.asarray(image)).astype(np.float32)
    levels = list(transform.pyramid_gaussian(lab, max_layer=8, channel_axis=-1))
    shape = levels[2].shape[:2]
    total = np.zeros(shape, np.float32)
    for centre in (2, 3, 4):
        for surround in (centre + 3, centre + 4):
            if surround < len(levels):
                coarse = transform.resize(levels[surround], levels[centre].shape)
                total += transform.resize(np.abs(levels[centre] - coarse).sum(-1), shape)
    full = transform.resize(total, lab.shape[:2])
    return [(full - full.min()) / max(1e-6, float(full.max() - full.min()))]


def position(image: Image.Image) -> list[np.ndarray]:
    width, height = image.size
    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    away = np.hypot((x - 0.5) * width, (y - 0.5) * height)
    return [x.astype(np.float32), y.astype(np.float32), (away / away.max()).astype(np.float32)]


def clusters(image: Image.Image) -> list[np.ndarray]:
    ids = segmentation.slic(np.asarray(image), n_segments=50, start_label=0)
    count = ids.max() + 1
    size = np.bincount(ids.ravel(), minlength=count)
    y, x = np.indices(ids.shape)
    centre_y = np.bincount(ids.ravel(), y.ravel(), count) / size
    centre_x = np.bincount(ids.ravel(), x.ravel(), count) / size
    away = np.hypot(y - centre_y[ids], x - centre_x[ids])
    radius = ndimage.maximum(away, ids, np.arange(count))
    return [ids, away / np.maximum(radius, 1e-6)[ids], (size / ids.size)[ids], segmentation.find_boundaries(ids)]


FAMILIES = {
    "colour": colour,
    "edges": edges,
    "saliency": saliency,
    "position": position,
    "clusters": clusters,
    "distance": distance,
}


def all_families(image: Image.Image) -> list[np.ndarray]:
    """All channels, with luma and the gradient computed once."""
    luma, magnitude = luma_and_magnitude(image)
    others = [plane for name in ("colour", "saliency", "position", "clusters") for plane in FAMILIES[name](image)]
    return [*others, *edges_of(luma, magnitude), *distance_of(magnitude)]
