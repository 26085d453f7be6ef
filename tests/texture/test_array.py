"""TextureArray and TextureBatch: lazy, exact, one image at a time."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc import ArrCocError, ChannelError, ImageError, TextureArray
from arr_coc.texture import layout

from ..conftest import noise, structured


def spy_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every channel that is computed."""
    computed: list[str] = []
    for name, channel in list(layout.CHANNELS.items()):

        def spy(texture: TextureArray, channel: layout.Channel = channel) -> torch.Tensor:
            computed.append(channel.name)
            return channel.compute(texture)

        fields = {**channel.__dict__, "compute": spy}
        monkeypatch.setitem(layout.CHANNELS, name, layout.Channel(**fields))
    return computed


def test_a_channel_is_computed_on_first_use_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = spy_on(monkeypatch)
    monkeypatch.setattr("arr_coc.texture.channels.clusters.SEGMENTERS", {})  # clusters must not be computed here
    texture = TextureArray.from_image(noise(20, 30))
    assert computed == []
    texture["edges"], texture["edges"], texture.level("edges", 2), texture.sample(torch.rand(4, 2), 1.5, ["edges"])
    texture.grid(3, 3, ["edges"])
    assert computed == ["edges"]


def test_shapes_names_and_device() -> None:
    texture = TextureArray.from_image(noise(20, 30))
    assert texture.shape == (40, 20, 30)
    assert texture.names == arr_coc.FULL40
    assert texture.tensor().shape == (40, 20, 30)
    assert texture.tensor(2).shape == (40, 5, 7)
    assert texture[["edges", "text"]].shape == (2, 20, 30)
    assert texture.device.type == "cpu"
    assert repr(texture) == "TextureArray(40 channels, 20x30, float32, cpu)"
    for i, name in enumerate(texture.names):
        assert torch.equal(texture.tensor()[i], texture[name])


def test_a_batch_of_two_equals_two_single_runs() -> None:
    images = [noise(40, 60), structured(64, 33)]
    batch = TextureArray.from_image(images)
    assert len(batch) == 2
    for texture, image in zip(batch, images, strict=True):
        assert torch.equal(texture.tensor(), TextureArray.from_image(image).tensor())
    assert batch.grid(5, 4).shape == (2, 40, 5, 4)
    assert batch.sample(torch.rand(7, 2)).shape == (2, 7, 40)
    assert len(batch[:1]) == 1
    stacked = TextureArray.from_image(torch.stack([images[0], images[0].flip(0)]))
    assert torch.equal(stacked[0].tensor(), batch[0].tensor())
    in_numpy = TextureArray.from_image(torch.stack([images[0]] * 2).permute(0, 2, 3, 1).numpy())
    assert torch.equal(in_numpy[1].tensor(), batch[0].tensor())


def test_a_bad_image_and_an_empty_batch_are_refused() -> None:
    with pytest.raises(ImageError, match="NaN"):
        TextureArray.from_image([noise(5, 5), torch.full((3, 5, 5), float("nan"))])
    with pytest.raises(ImageError, match="empty batch"):
        TextureArray.from_image([])
    with pytest.raises(ChannelError, match=r"batch\[i\].supply"):
        TextureArray.from_image([noise(5, 5)], supplied={"gaze": torch.zeros(5, 5)})


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
def test_half_precision_is_storage_only(dtype: torch.dtype, tolerance: float) -> None:
    image = arr_coc.pictures.scene().resize((240, 160))
    full, half = TextureArray.from_image(image), TextureArray.from_image(image, dtype=dtype)
    assert half.tensor().dtype == half.grid(4, 4).dtype == half.sample(torch.rand(3, 2), 1.5).dtype == dtype
    for name in full.names:
        # Everything is computed in float32 and rounded once, so each value is the nearest one there is.
        assert torch.equal(half[name], full[name].to(dtype)), name
    # Cells whose grid does not divide, and levels between levels, add roundings of their own.
    ids = full.names.index("cluster_id")
    assert torch.equal(half.grid(7, 9)[ids], full.grid(7, 9)[ids].to(dtype))
    assert (half.grid(7, 9).float() - full.grid(7, 9)).abs().max() < tolerance


@pytest.mark.parametrize("device", ["quantum", "cuda:97", 3.5])
def test_an_unknown_device_is_refused(device: object) -> None:
    with pytest.raises(ArrCocError, match="there is no device") as caught:
        TextureArray.from_image(noise(5, 5), device=device)  # type: ignore[call-overload]
    assert "\n" not in str(caught.value)


def test_float64_is_refused() -> None:
    with pytest.raises(ChannelError, match=r"got torch\.float64"):
        TextureArray.from_image(noise(5, 5), dtype=torch.float64)


@pytest.mark.parametrize(
    ("size", "scaled"), [((3000, 2000), (1024, 683)), ((1, 5000), (1, 1024)), ((1024, 3), (1024, 3))]
)
def test_cells_and_boxes_map_back_to_original_pixels(size: tuple[int, int], scaled: tuple[int, int]) -> None:
    texture = TextureArray.from_image(np.zeros((*size, 3), np.uint8))
    assert (texture.size, texture.original_size) == (scaled, size)
    boxes = texture.boxes(7, 3)
    assert boxes[0, :2].tolist() == [0, 0]
    assert boxes[-1, 2:].tolist() == [size[1], size[0]]
    corner = torch.tensor([[scaled[1], scaled[0]]], dtype=torch.float64)
    assert texture.to_original(corner).tolist() == [[size[1], size[0]]]
    some = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert torch.allclose(texture.from_original(texture.to_original(some)), some.double(), atol=1e-12)


def test_max_side_scales_down_and_never_up() -> None:
    assert TextureArray.from_image(noise(40, 80), max_side=20).size == (10, 20)
    assert TextureArray.from_image(noise(40, 80), max_side=None).size == (40, 80)
    assert TextureArray.from_image(noise(40, 80), max_side=5000).size == (40, 80)


def test_supply_shares_what_does_not_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texture = TextureArray.from_image(noise(20, 30))
    texture.tensor()
    computed = spy_on(monkeypatch)
    supplied = texture.supply(gaze=torch.ones(2, 2), previous_relevance=torch.full((4, 4), 0.5))
    supplied.tensor()
    # `fixation` reads the previous relevance too.
    assert sorted(computed) == ["fixation", "gaze", "previous_relevance"]
    assert supplied["edges"].data_ptr() == texture["edges"].data_ptr()
    assert texture["gaze"].max() == 0
    assert "gaze" not in supplied.absent
    assert "gaze" in texture.absent
    assert supplied.supply(gaze=None)["gaze"].max() == 0


def test_cells_are_pooled_once_and_follow_the_supplied_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    texture = TextureArray.from_image(structured(40, 30))
    names = ("edges", "gaze", "edges")
    assert torch.equal(texture.cells(4, 3, names), texture.grid(4, 3, ["edges", "gaze"])[[0, 1, 0]])
    pooled: list[str] = []
    stock = TextureArray._pooled
    monkeypatch.setattr(
        TextureArray, "_pooled", lambda self, some, size: pooled.extend(c.name for c in some) or stock(self, some, size)
    )
    texture.cells(4, 3, names)
    one, other = (texture.supply(gaze=torch.full((4, 3), value)) for value in (1.0, 0.25))
    assert one.cells(4, 3, names)[1].mean() == pytest.approx(1.0)
    assert other.cells(4, 3, names)[1].mean() == pytest.approx(0.25)
    assert pooled == ["gaze", "gaze"]  # edges are shared, the map is not


def test_supplied_at_once_equals_supplied_later() -> None:
    image, gaze = noise(20, 30), torch.rand(5, 5)
    at_once = TextureArray.from_image(image, supplied={"gaze": gaze})
    assert torch.equal(at_once["gaze"], TextureArray.from_image(image).supply(gaze=gaze)["gaze"])


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        ({"gase": torch.zeros(2, 2)}, "did you mean 'gaze'"),
        ({"edges": torch.zeros(2, 2)}, "no channel takes a map called 'edges'"),
        ({"gaze": torch.zeros(2)}, r"\[h, w\], got \[2\]"),
        ({"gaze": [["a", "b"]]}, "got list"),
        ({"gaze": torch.full((2, 2), 7.0)}, "divide by its maximum"),
        ({"gaze": torch.full((2, 2), float("nan"))}, "NaN"),
        ({"embeddings": torch.zeros(8, 2, 2)}, r"\[16, h, w\], got \[8, 2, 2\]"),
        ({"embeddings": "clip"}, "got str"),
        ({"previous_frame": torch.zeros(3, 9, 9)}, "30x20 pixels, got 9x9"),
    ],
)
def test_maps_that_do_not_fit_are_refused(maps: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(ArrCocError, match=words):
        TextureArray.from_image(noise(20, 30)).supply(**maps)


def test_none_is_no_map_and_a_wrong_name_is_refused_also_with_none() -> None:
    texture = TextureArray.from_image(noise(8, 8), supplied={"gaze": None})
    assert "gaze" in texture.absent
    with pytest.raises(ChannelError, match="did you mean 'gaze'"):
        texture.supply(gaez=None)


def test_maps_and_points_in_any_container() -> None:
    texture = TextureArray.from_image(noise(8, 8))
    array = np.random.default_rng(0).random((4, 4))
    expected = texture.supply(gaze=torch.from_numpy(array))["gaze"]
    for same in (array[::-1][::-1], array.astype(">f8"), array.tolist(), array.astype(np.longdouble)):
        assert torch.equal(texture.supply(gaze=same)["gaze"], expected)
    read_only = array.copy()
    read_only.flags.writeable = False
    assert torch.equal(texture.supply(gaze=read_only)["gaze"], expected)
    in_lists = texture.sample([[0.5, 0.5]], 1)
    assert torch.allclose(in_lists, texture.sample(torch.tensor([[0.5, 0.5]]), torch.tensor(1)), atol=1e-6)
    assert texture.to_original([1, 2, 3, 4]).tolist() == [1, 2, 3, 4]


def test_the_callers_tensors_are_copied() -> None:
    features = torch.rand(16, 8, 8)
    before = features.clone()
    texture = TextureArray.from_image(noise(8, 8), supplied={"embeddings": features})
    texture["embedding_00"].zero_()
    assert torch.equal(features, before)
    features.zero_()
    assert texture["embedding_01"].abs().max() > 0


def test_a_supplied_map_replaces_a_ready_plane() -> None:
    texture = TextureArray.from_planes({"gaze": torch.zeros(4, 4)})
    assert texture.supply(gaze=torch.ones(4, 4))["gaze"].min() == 1


def test_an_image_with_a_gradient_is_read_without_it() -> None:
    image = noise(20, 30).requires_grad_()
    texture = TextureArray.from_image(image)
    assert not texture.tensor().requires_grad
    assert torch.equal(texture.tensor(), TextureArray.from_image(image.detach()).tensor())
    TextureArray.from_planes({"edges": torch.rand(9, 9, requires_grad=True)}).sheet()


def test_many_threads_may_read_one_texture() -> None:
    def read(threads: int) -> list[torch.Tensor]:
        # The number of torch threads is a setting of the calling thread, and the last bit of a sum depends on it.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(TextureArray.from_image(noise(60, 80)).__getitem__, names))

    names, before = arr_coc.FULL40 * 2, torch.get_num_threads()
    try:
        for _ in range(3):
            given = zip(names, read(4), read(1), strict=True)
            assert {name: float((one - two).abs().max()) for name, one, two in given if not torch.equal(one, two)} == {}
    finally:
        torch.set_num_threads(before)


def test_copies_and_pickles() -> None:
    texture = TextureArray.from_image(noise(20, 30))
    texture["edges"]
    for twin in (copy.deepcopy(texture), pickle.loads(pickle.dumps(texture))):
        assert torch.equal(twin["edges"], texture["edges"])
        assert torch.equal(twin["distance"], texture["distance"])


def test_names_can_be_listed_and_looked_up() -> None:
    texture = TextureArray.from_image(noise(8, 8), layout="mvp13")
    assert list(texture) == list(arr_coc.MVP13)
    assert "text" in texture
    assert "gaze" not in texture
    for wrong in (0, None):
        with pytest.raises(ChannelError, match="expected a channel's name"):
            texture[wrong]  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float16"}, r"torch\.float16 or torch\.bfloat16, got 'float16'"),
        ({"layout": None}, "expected a layout's name"),
        ({"layout": "edges"}, r"pass \['edges'\]"),
        ({"layout": "edgs"}, "did you mean 'edges'"),
        ({"segmenter": "slik"}, "did you mean 'slic'"),
        ({"segmenter": 5}, "expected a segmenter"),
        ({"text": None}, "expected a text detector"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, object], words: str) -> None:
    with pytest.raises(ChannelError, match=words):
        TextureArray.from_image(noise(8, 8), **options)  # type: ignore[call-overload]


def test_errors_of_batches() -> None:
    batch = TextureArray.from_image([noise(8, 8)] * 2)
    with pytest.raises(ChannelError, match=r"batch\[0\]\['edges'\]"):
        batch["edges"]  # type: ignore[call-overload]
    with pytest.raises(ArrCocError, match="at least one texture"):
        batch[2:]
    with pytest.raises(ImageError, match="image 2 of 3"):
        TextureArray.from_image([noise(8, 8), torch.zeros(3, 0, 4), noise(8, 8)])


def test_from_planes_needs_planes_of_one_kind() -> None:
    with pytest.raises(ChannelError, match="of one size"):
        TextureArray.from_planes({"red": torch.zeros(3, 4), "blue": torch.zeros(4, 3)})
    with pytest.raises(ChannelError, match="of one dtype"):
        TextureArray.from_planes({"red": torch.zeros(3, 4), "blue": torch.zeros(3, 4).half()})
    with pytest.raises(ChannelError, match="at least one"):
        TextureArray.from_planes({})
    texture = TextureArray.from_planes({"red": torch.zeros(3, 4)})
    assert texture.absent == ()
    with pytest.raises(ChannelError, match="no image to compute"):
        texture["edges"]


@pytest.mark.parametrize("grid", [(0, 4), (4, -1), (2.0, 2), (True, 2)])
def test_grids_have_whole_cells(grid: tuple[int, int]) -> None:
    texture = TextureArray.from_image(noise(8, 8))
    with pytest.raises(ArrCocError, match="at least 1x1"):
        texture.grid(*grid)
    with pytest.raises(ArrCocError, match="at least 1x1"):
        texture.boxes(*grid)


def test_numpys_whole_numbers_are_whole_numbers() -> None:
    texture = TextureArray.from_image(noise(8, 8), max_side=np.int64(8))
    assert texture.grid(np.int32(2), np.int64(3)).shape == (40, 2, 3)
    assert texture.level("red", np.int64(1)).shape == (4, 4)


def test_a_grid_finer_than_the_image() -> None:
    texture = TextureArray.from_image(noise(4, 6))
    fine = texture.grid(8, 12)
    assert torch.allclose(fine[0], texture["red"].repeat_interleave(2, 0).repeat_interleave(2, 1))


def test_notes_reach_the_texture() -> None:
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 128))
    assert TextureArray.from_image(image).notes == ("transparency blended with white",)


def test_the_callers_numpy_image_is_not_changed() -> None:
    image = np.random.default_rng(0).random((16, 16, 3)).astype(np.float32)
    before = image.copy()
    TextureArray.from_image(image).tensor()
    assert np.array_equal(image, before)


def test_a_grid_too_large_for_memory_is_one_sentence() -> None:
    with pytest.raises(ArrCocError, match=r"at most 16,777,216 cells, got 100000 x 100000"):
        TextureArray.from_image(arr_coc.pictures.scene().resize((32, 32))).grid(100_000, 100_000)
