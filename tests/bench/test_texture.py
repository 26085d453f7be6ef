"""The texture bench covers all computed channels, and its baseline computes the same ones."""

from __future__ import annotations

import numpy as np

from arr_coc import FULL40, TextureArray, pictures
from arr_coc.bench import skimage_baseline
from arr_coc.bench.texture import families


def test_the_families_cover_all_channels_that_the_texture_computes() -> None:
    absent = TextureArray.from_image(pictures.scene().resize((30, 20))).absent
    assert {name for names in families().values() for name in names} == set(FULL40) - set(absent)


def test_the_baseline_computes_the_same_channels() -> None:
    image = pictures.scene().resize((240, 160))
    texture = TextureArray.from_image(image)
    for family, names in families().items():
        if family != "text":
            planes = skimage_baseline.FAMILIES[family](image)
            assert len(planes) == len(names)
            assert all(np.shape(plane) == texture.size for plane in planes)
    for family in ("colour", "edges", "distance", "position"):
        for name, plane in zip(families()[family], skimage_baseline.FAMILIES[family](image), strict=True):
            close = np.abs(plane - texture[name].numpy()) < 1e-4
            assert close.mean() > 0.999, name  # a pixel with exactly its surroundings' luma may have either polarity
    assert len(skimage_baseline.all_families(image)) == sum(len(names) for names in families().values()) - 1
    saliency = np.corrcoef(skimage_baseline.saliency(image)[0].ravel(), texture["saliency"].numpy().ravel())[0, 1]
    assert saliency > 0.8
