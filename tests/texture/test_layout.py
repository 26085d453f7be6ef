"""Channels by name, layouts, and a user's own channel."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import arr_coc
from arr_coc import FULL40, MVP13, ChannelError, TextureArray
from arr_coc.texture import layout


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Channels registered in a test are removed after it."""
    before = dict(layout.CHANNELS)
    yield
    layout.CHANNELS.clear()
    layout.CHANNELS.update(before)


def test_full40_has_the_forty_channels_in_their_order() -> None:
    assert len(FULL40) == len(set(FULL40)) == 40
    assert FULL40[:4] == ("red", "green", "blue", "edges")
    assert FULL40[4:9] == ("edges_inverted", "highpass", "lowpass", "motion", "saliency")
    assert FULL40[12] == "cluster_id"
    assert FULL40[18] == "embedding_00"
    assert FULL40[33:36] == ("embedding_15", "distance", "previous_attention")
    assert FULL40[36:] == ("current_attention", "gaze", "boundaries", "text")


def test_mvp13_has_no_copied_channel() -> None:
    assert len(MVP13) == len(set(MVP13)) == 13
    planes = TextureArray.from_image(arr_coc.pictures.scene().resize((90, 60)), layout="mvp13").tensor()
    for i in range(13):
        for j in range(i):
            assert not torch.equal(planes[i], planes[j]), (MVP13[i], MVP13[j])


def test_every_channel_is_described() -> None:
    for channel in arr_coc.all_channels():
        assert channel.meaning
        assert "\n" not in channel.meaning
        assert channel.pool in ("mean", "max", "nearest")
        assert channel.cost in ("free", "cheap", "moderate", "costly")
        assert channel.range[0] < channel.range[1]
        json.dumps(channel.describe(), allow_nan=False)
    assert {c.name for c in arr_coc.all_channels() if c.pool == "nearest"} == {"cluster_id"}
    assert {c.name for c in arr_coc.all_channels() if c.pool == "max"} == {
        "edges", "edges_inverted", "edge_magnitude", "boundaries", "text",
    }  # fmt: skip


def test_a_users_own_channel_is_one_decorated_function() -> None:
    @arr_coc.channel("warmth", meaning="how red against blue", range=(0, 1), pool="mean", cost="cheap")
    def warmth(texture: TextureArray) -> torch.Tensor:
        return (texture["red"] - texture["blue"]).clamp(0, 1)

    image = torch.rand(3, 12, 14)
    texture = TextureArray.from_image(image, layout=[*FULL40, "warmth"])
    assert torch.equal(texture["warmth"], (image[0] - image[2]).clamp(0, 1))
    assert texture.grid(3, 2).shape == (41, 3, 2)
    assert texture.sample(torch.rand(5, 2), 1.0).shape == (5, 41)
    assert TextureArray.from_image(image)["warmth"].shape == (12, 14)  # also outside the layout


def test_a_users_channel_can_take_a_map_of_its_own() -> None:
    @arr_coc.channel("depth", meaning="metres", range=(0, 100), supplied_by=("depth",))
    def depth(texture: TextureArray) -> torch.Tensor:
        given = texture.supplied("depth")
        return texture.constant(0.0) if given is None else given

    texture = TextureArray.from_image(torch.rand(3, 12, 14), layout=["red", "depth"])
    assert texture.absent == ("depth",)
    assert texture.supply(depth=torch.full((2, 2), 40.0))["depth"].unique().tolist() == [40.0]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("edge", "edges"), ("salience", "saliency"), ("cluster", "cluster_id"), ("embedding_3", "embedding_")],
)
def test_the_error_for_an_unknown_channel_suggests_the_nearest_name(name: str, suggestion: str) -> None:
    texture = TextureArray.from_image(torch.rand(3, 5, 5))
    with pytest.raises(ChannelError, match=f"did you mean '{suggestion}"):
        texture[name]


def test_unknown_layouts_and_bad_lists() -> None:
    image = torch.rand(3, 5, 5)
    with pytest.raises(ChannelError, match="did you mean 'full40'"):
        TextureArray.from_image(image, layout="full-40")
    with pytest.raises(ChannelError, match="twice there: red"):
        TextureArray.from_image(image, layout=["red", "blue", "red"])
    with pytest.raises(ChannelError, match="at least one"):
        TextureArray.from_image(image, layout=[])


def test_a_name_is_registered_once_unless_replaced() -> None:
    def same(texture: TextureArray) -> torch.Tensor:
        return texture.constant(0.5)

    with pytest.raises(ChannelError, match="replace=True"):
        arr_coc.channel("red", meaning="again")(same)
    arr_coc.channel("red", meaning="again", replace=True)(same)
    assert TextureArray.from_image(torch.rand(3, 5, 5))["red"].unique().tolist() == [0.5]
    with pytest.raises(ChannelError, match="pool must be one of"):
        arr_coc.channel("new", meaning="?", pool="median")  # type: ignore[arg-type]
    with pytest.raises(ChannelError, match="cost must be one of"):
        arr_coc.channel("new", meaning="?", cost="dear")  # type: ignore[arg-type]


def test_a_channel_with_a_bad_result_is_refused() -> None:
    arr_coc.channel("small", meaning="wrong shape")(lambda texture: torch.zeros(2, 2))
    arr_coc.channel("number", meaning="no tensor")(lambda texture: 3.0)  # type: ignore[arg-type,return-value]
    texture = TextureArray.from_image(torch.rand(3, 5, 6))
    with pytest.raises(ChannelError, match=r"must return a tensor \[5, 6\], got \[2, 2\]"):
        texture["small"]
    with pytest.raises(ChannelError, match="got float"):
        texture["number"]


def test_a_channel_that_needs_itself_is_caught() -> None:
    arr_coc.channel("hen", meaning="from the egg")(lambda texture: texture["egg"])
    arr_coc.channel("egg", meaning="from the hen")(lambda texture: texture["hen"])
    with pytest.raises(ChannelError, match="hen -> egg -> hen"):
        TextureArray.from_image(torch.rand(3, 5, 6))["hen"]


def test_ranges_are_open_only_for_ids_and_embeddings() -> None:
    assert {c.family for c in arr_coc.all_channels() if math.inf in c.range} == {"clusters", "embedding"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"range": (1, 0)}, "lowest, highest"),
        ({"range": (1,)}, "lowest, highest"),
        ({"supplied_by": "depth"}, r"\('depth',\)"),
    ],
)
def test_a_bad_registration_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ChannelError, match=words):
        arr_coc.channel("new", meaning="?", **options)  # type: ignore[arg-type]
    with pytest.raises(ChannelError, match="is a word"):
        arr_coc.channel(5, meaning="?")  # type: ignore[arg-type]


def test_a_channel_may_return_an_array_and_may_be_called_like_a_shared_value() -> None:
    arr_coc.channel("clusters", meaning="an odd name")(lambda texture: np.ones(texture.size))  # type: ignore[arg-type,return-value]
    texture = TextureArray.from_image(torch.rand(3, 5, 6))
    assert texture["clusters"].min() == 1
    assert texture["cluster_id"].shape == (5, 6)
