"""The texture array: one image as a stack of named channels, computed on first use and cached.

- reading `edges` computes no clusters;
- channels are single planes and are stacked on demand: a channel without a supplied map then costs no memory;
- the cache knows which supplied maps a channel depends on, so that `supply` recomputes only what the new maps change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

import numpy as np
import torch
from PIL import Image

from arr_coc.devices import tensors
from arr_coc.errors import ArrCocError, ChannelError, whole_number
from arr_coc.texture import filters, sampler
from arr_coc.texture.channels.clusters import SEGMENTERS, Segmenter
from arr_coc.texture.channels.inputs import SuppliedMap, read_supplied
from arr_coc.texture.channels.text import TEXT_DETECTORS, TextDetector
from arr_coc.texture.filters import Pyramid, level_sizes
from arr_coc.texture.kernels import dispatch as kernels
from arr_coc.texture.layout import CHANNELS, Channel, find_channel, nearest_name, resolve_layout, select_channels
from arr_coc.types.grid import check_grid
from arr_coc.types.image import ImageLike, Numbers, Picture, as_tensor, is_batch, read_batch, read_picture

T = TypeVar("T")
Key = tuple[str, str]  # kind of value, name
ImageFunction: TypeAlias = Callable[[torch.Tensor], torch.Tensor]  # a segmenter or a text detector


class ChannelCache:
    """Computed values by key, each with the supplied maps it depends on.

    Every map that a value reads while it is computed is recorded, so that a new map invalidates exactly the values that
    depend on it. A channel that needs itself raises an error. One thread computes at a time; the others wait.
    """

    def __init__(self) -> None:
        self._values: dict[Key, Any] = {}
        self._needs: dict[Key, frozenset[str]] = {}
        # Values being computed, innermost last, each with the maps it has read so far.
        self._stack: list[tuple[Key, set[str]]] = []
        self._lock = threading.RLock()

    def once(self, key: Key, make: Callable[[], T]) -> T:
        """The value under `key`, computed on first use."""
        with self._lock:
            if key not in self._values:
                pending = [key for key, _ in self._stack]
                if key in pending:
                    chain = " -> ".join(name for _, name in [*pending, key])
                    raise ChannelError(f"channel {key[1]!r} needs itself: {chain}")
                self._stack.append((key, set()))
                try:
                    self._values[key] = make()
                    self._needs[key] = frozenset(self._stack[-1][1])
                finally:
                    self._stack.pop()
            if self._stack:
                self._stack[-1][1].update(self._needs[key])
            value: T = self._values[key]
            return value

    def has(self, key: Key) -> bool:
        """Whether there is a value under `key`."""
        return key in self._values

    @property
    def nbytes(self) -> int:
        """Bytes of all cached tensors, each counted once."""
        with self._lock:
            held = [one.levels if isinstance(one, Pyramid) else one for one in self._values.values()]
        return sum({one.data_ptr(): one.nbytes for one in tensors(held)}.values())

    def add_dependency(self, maps: Iterable[str]) -> None:
        """Record that the value being computed, if any, depends on these maps."""
        if self._stack:
            self._stack[-1][1].update(maps)

    def without(self, maps: Iterable[str]) -> ChannelCache:
        """A copy with only the values that do not depend on any of `maps`."""
        changed = set(maps)
        kept = ChannelCache()
        with self._lock:
            for key, needs in self._needs.items():
                if not needs & changed:
                    kept._values[key], kept._needs[key] = self._values[key], needs
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """A lock cannot be pickled or copied; the copy gets its own."""
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


class TextureOptions(TypedDict, total=False):
    """The keywords of `TextureArray.from_image`, which explains them."""

    layout: str | Iterable[str]
    device: torch.device | str | None
    dtype: torch.dtype
    max_side: int | None
    supplied: Mapping[str, SuppliedMap] | None
    embeddings: SuppliedMap
    segmenter: str | Segmenter
    text: str | TextDetector


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class TextureArray:
    """One image as named channels `[C, H, W]`, with a mip pyramid.

    >>> import arr_coc
    >>> texture = arr_coc.TextureArray.from_image(arr_coc.pictures.receipt())
    >>> texture.shape
    (40, 1024, 473)
    >>> texture["edges"].shape, texture.grid(44, 20).shape
    (torch.Size([1024, 473]), torch.Size([40, 44, 20]))
    """

    def __init__(
        self,
        picture: Picture,
        names: tuple[str, ...],
        dtype: torch.dtype = torch.float32,
        supplied: Mapping[str, SuppliedMap] | None = None,
        segmenter: str | Segmenter = "slic",
        text: str | TextDetector = "strokes",
    ) -> None:
        if dtype not in DTYPES:
            raise ChannelError(f"expected dtype torch.float32, torch.float16 or torch.bfloat16, got {dtype!r}")
        self.picture = picture
        self.names = names
        self.dtype = dtype
        self.segmenter = _check_function("segmenter", segmenter, SEGMENTERS)
        self.text = _check_function("text detector", text, TEXT_DETECTORS)
        self.size = picture.size  # (height, width) in texture pixels
        self.device = picture.pixels.device
        self.level_sizes = level_sizes(self.size)  # of the pyramid, down to 1x1
        self.levels = len(self.level_sizes)
        given = read_supplied(supplied, picture) if supplied else {}
        self._supplied = {name: value for name, value in given.items() if value is not None}
        self._cache = ChannelCache()
        self._ready: dict[str, Callable[[], torch.Tensor]] = {}  # planes given by `keep` instead of computed

    @overload
    @classmethod
    def from_image(cls, image: ImageLike, **options: Unpack[TextureOptions]) -> TextureArray: ...
    @overload
    @classmethod
    def from_image(cls, image: list[Any] | tuple[Any, ...], **options: Unpack[TextureOptions]) -> TextureBatch: ...
    @classmethod
    def from_image(
        cls,
        image: ImageLike | list[Any] | tuple[Any, ...],
        *,
        layout: str | Iterable[str] = "full40",
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        max_side: int | None = 1024,
        supplied: Mapping[str, SuppliedMap] | None = None,
        embeddings: SuppliedMap = None,
        segmenter: str | Segmenter = "slic",
        text: str | TextDetector = "strokes",
    ) -> TextureArray | TextureBatch:
        """The texture of an image, or a `TextureBatch` for a list of images (or a 4-d array or tensor).

        image: a path, a PIL image, numpy `[H, W]` or `[H, W, 1|3|4]`, or torch `[H, W]` or `[1|3|4, H, W]`.
        layout: "full40", "mvp13", or a list of channel names.
        max_side: the longer side is scaled down to this; None keeps every pixel. Boxes stay in original pixels.
        supplied: maps that only the caller has, by name: see `supply`.
        embeddings: `arr_coc.Embeddings`, or any function from `[3, H, W]` to `[16, h, w]`; it runs on first use.
        segmenter: "slic", or a function that returns segment ids `[H, W]` for an image `[3, H, W]`.
        text: "strokes" (fast), "rapidocr" (extra `ocr`), or a function from `[3, H, W]` to a likelihood `[H, W]`.
        """
        names = resolve_layout(layout)
        if is_batch(image):
            if supplied or not (embeddings is None or callable(embeddings)):
                raise ChannelError("maps are supplied per image: build the batch first, then call batch[i].supply(...)")
            pictures = read_batch(image, max_side=max_side, device=device)  # type: ignore[arg-type]
            shared = {"embeddings": embeddings}
            return TextureBatch([cls(one, names, dtype, shared, segmenter, text) for one in pictures])
        picture = read_picture(image, max_side=max_side, device=device)  # type: ignore[arg-type]
        given = dict(supplied or {}) if embeddings is None else {**(supplied or {}), "embeddings": embeddings}
        return cls(picture, names, dtype, given, segmenter, text)

    @classmethod
    def from_planes(cls, planes: Mapping[str, torch.Tensor]) -> TextureArray:
        """A texture of ready planes `[H, W]`, by channel name; gradients flow back into them from `sample` and `grid`."""
        names = resolve_layout(planes)
        planes = {name: as_tensor(plane, f"plane {name!r}") for name, plane in planes.items()}
        shapes = {tuple(plane.shape) for plane in planes.values()}
        first = next(iter(planes.values()))
        if len(shapes) != 1 or first.ndim != 2 or 0 in first.shape:
            raise ChannelError(
                f"expected planes [H, W] of one size, got {', '.join(str(list(s)) for s in sorted(shapes))}"
            )
        if len({(p.dtype, p.device) for p in planes.values()}) != 1:
            raise ChannelError("expected planes of one dtype on one device")
        height, width = first.shape
        nothing = Picture(torch.empty(0, height, width, device=first.device), (int(height), int(width)))
        texture = cls(nothing, names, first.dtype)
        for name, plane in planes.items():
            texture.keep(name, plane)
        return texture

    @property
    def nbytes(self) -> int:
        """Bytes in use: the pixels and everything computed so far."""
        return int(self.pixels.nbytes) + self._cache.nbytes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return (len(self.names), *self.size)

    @property
    def original_size(self) -> tuple[int, int]:
        """(height, width) of the original image, EXIF orientation applied."""
        return self.picture.original_size

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the image when it was read, e.g. transparency blended with white."""
        return self.picture.notes

    @property
    def channels(self) -> list[Channel]:
        """The layout's channels, with meaning, range, pooling rule and cost."""
        return [CHANNELS[name] for name in self.names]

    @cached_property
    def absent(self) -> tuple[str, ...]:
        """The layout's channels whose map the caller has not supplied: they are zero."""
        if len(self.picture.pixels) == 0:
            return ()
        return tuple(c.name for c in self.channels if c.supplied_by and self._supplied.keys().isdisjoint(c.supplied_by))

    def __repr__(self) -> str:
        channels, height, width = self.shape
        return f"TextureArray({channels} channels, {height}x{width}, {str(self.dtype).removeprefix('torch.')}, {self.device})"

    @overload
    def __getitem__(self, name: str) -> torch.Tensor: ...
    @overload
    def __getitem__(self, name: Sequence[str]) -> torch.Tensor: ...
    def __getitem__(self, name: str | Sequence[str]) -> torch.Tensor:
        """A channel `[H, W]` by name, or several as `[K, H, W]`; any registered channel, also outside the layout.

        A single plane is the texture's own memory: clone it before changing it.
        """
        return self._plane(name) if isinstance(name, str) else self.level(name, 0)

    def __contains__(self, name: object) -> bool:
        """Whether the layout has a channel of this name."""
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        """The layout's names."""
        return iter(self.names)

    def level(self, name: str | Sequence[str], level: int) -> torch.Tensor:
        """A channel (or several) on a pyramid level: `[H_l, W_l]` or `[K, H_l, W_l]`."""
        number = whole_number(level, least=0)
        if number is None or number >= self.levels:
            raise ArrCocError(
                f"expected a level from 0 to {self.levels - 1} for {self.size[1]}x{self.size[0]} pixels, got {level!r}"
            )
        if isinstance(name, str):
            return self._level(name, number)
        if not isinstance(name, Iterable):
            raise ChannelError(f"expected a channel's name or a list of names, got {name!r}")
        return torch.stack([self._level(one, number) for one in resolve_layout(name)])

    def tensor(self, level: int = 0) -> torch.Tensor:
        """All channels of the layout in one tensor `[C, H_l, W_l]`: a copy in one block of memory."""
        return self.level(self.names, level)

    def grid(self, height: int, width: int, names: Iterable[str] | None = None) -> torch.Tensor:
        """Every channel on a grid of equal cells, each by its own rule: `[C, height, width]`.

        The mean is the exact area average of the cell, whether or not the sizes divide.
        """
        size = check_grid(height, width)
        return self._pooled(self.channels if names is None else select_channels(names), size)

    def cells(self, height: int, width: int, names: Sequence[str]) -> torch.Tensor:
        """`grid`, for scores and layers, which read the same channels of the same cells: on a CPU each is pooled once.

        On a GPU one kernel pools all of them again, in less time than several launches would take.
        """
        if self.device.type != "cpu":
            return self._pooled([CHANNELS[name] for name in names], (height, width))
        kind = f"cells {height} {width}"
        missing = [CHANNELS[name] for name in dict.fromkeys(names) if not self._cache.has((kind, name))]
        pooled = self._pooled(missing, (height, width)) if missing else ()
        fresh = {channel.name: cells for channel, cells in zip(missing, pooled, strict=True)}

        def make(name: str) -> torch.Tensor:
            self._plane(name)  # the cells depend on the supplied maps that the channel depends on
            return fresh[name]

        return torch.stack([self._cache.once((kind, name), partial(make, name)) for name in names])

    def _pooled(self, channels: Sequence[Channel], size: tuple[int, int]) -> torch.Tensor:
        planes = [self._plane(channel.name) for channel in channels]
        rules = [channel.pool for channel in channels]
        pooled = kernels.pool_planes(planes, size, rules)
        return torch.stack(filters.pool_each(planes, size, rules)) if pooled is None else pooled

    def boxes(self, height: int, width: int) -> torch.Tensor:
        """The grid's cells as (x0, y0, x1, y1) in original pixels: float64 `[height * width, 4]`, row by row."""
        return self.picture.boxes(height, width)

    def to_original(self, boxes: Numbers) -> torch.Tensor:
        """Points or boxes `[..., 2 or 4]` (x, y) in texture pixels, in original pixels: float64."""
        return self.picture.to_original(boxes)

    def from_original(self, boxes: Numbers) -> torch.Tensor:
        """The inverse of `to_original`."""
        return self.picture.from_original(boxes)

    def sample(self, xy: Numbers, level: Numbers = 0.0, names: Iterable[str] | None = None) -> torch.Tensor:
        """All channels at points `[N, 2]` (x, y in [0, 1]), trilinear in (x, y, level): `[N, C]`.

        `level` is a number or `[N]`, clamped to the levels there are. Ids are read at the nearest pixel and level.
        Differentiable in the texture and in the points.
        """
        channels = self.channels if names is None else select_channels(names)
        if kernels.can_sample(self, channels, xy, level):
            # Points on the host are checked there. On the device a check would wait for them: a bad point gives NaN.
            on_host = not (isinstance(xy, torch.Tensor) and xy.is_cuda)
            points, levels = sampler.check_points(xy, level, self.device, finite=on_host)
            return kernels.sample_planes(self, channels, points.float(), levels.float())
        points, levels = sampler.check_points(xy, level, self.device)
        return sampler.sample(self.level, channels, points, levels, self.levels - 1).to(self.dtype)

    def sheet(self, **options: Any) -> Image.Image:
        """A labelled contact sheet of the layout's channels; options as in `arr_coc.texture.sheet.contact_sheet`."""
        from arr_coc.texture.sheet import contact_sheet

        return contact_sheet(self, **options)

    def supply(self, **maps: SuppliedMap) -> TextureArray:
        """The same texture with maps that only the caller has; everything that does not depend on them is shared.

        `previous_frame`: for `motion`. `embeddings`: `[16, h, w]`, or a function from `[3, H, W]` to it.
        Any channel marked "supplied by the caller" (`gaze`, `previous_relevance`, ...): a map `[h, w]` of any size.
        None removes a map.
        """
        new = TextureArray(self.picture, self.names, self.dtype, None, self.segmenter, self.text)
        new._supplied = {
            k: v for k, v in {**self._supplied, **read_supplied(maps, self.picture)}.items() if v is not None
        }
        new._cache = self._cache.without(maps)
        new._ready = {name: make for name, make in self._ready.items() if name not in maps}
        return new

    def supplied(self, name: str) -> Any:
        """For channel functions: the map the caller supplied under `name`, or None."""
        self._cache.add_dependency([name])
        return self._supplied.get(name)

    def once(self, key: str, make: Callable[[], T]) -> T:
        """For channel functions: a value that several channels share, computed on first use and cached."""
        return self._cache.once(("shared", key), make)

    def has(self, key: str) -> bool:
        """Whether `once` has a value under `key`."""
        return self._cache.has(("shared", key))

    def constant(self, value: float) -> torch.Tensor:
        """For channel functions: a constant plane `[H, W]`, which takes no memory."""
        return torch.full((1, 1), value, dtype=self.dtype, device=self.device).expand(self.size)

    @property
    def pixels(self) -> torch.Tensor:
        """For channel functions: the image, float32 `[3, H, W]` in [0, 1]."""
        if len(self.picture.pixels) == 0:
            raise ChannelError("this texture was made from planes and has no image to compute further channels from")
        return self.picture.pixels

    def pyramid(self, name: str) -> Pyramid:
        """For samplers: the levels of a channel."""
        return self._cache.once(("pyramid", name), lambda: Pyramid(self._plane(name), find_channel(name).pool))

    def keep(self, name: str, plane: torch.Tensor | Callable[[], torch.Tensor]) -> None:
        """Use a ready plane `[H, W]`, or a function that returns one on first use, instead of computing the channel.

        It stays until a map of that name is supplied.
        """
        self._ready[find_channel(name).name] = plane if callable(plane) else lambda: plane

    def is_computed(self, name: str) -> bool:
        """Whether a channel is there already, computed or given."""
        return name in self._ready or self._cache.has(("channel", name))

    def fill(self, name: str, plane: torch.Tensor) -> None:
        """For kernels that compute several textures at once: a channel `[H, W]` that depends on the image alone."""
        if name not in self._ready:
            self._cache.once(("channel", name), lambda: plane)

    def _level(self, name: str, number: int) -> torch.Tensor:
        return self.pyramid(name).level(number) if number else self._plane(name)

    def _plane(self, name: str) -> torch.Tensor:
        """A channel `[H, W]`, computed on first use."""
        channel = CHANNELS.get(name) or find_channel(name)  # which raises an error for an unknown name
        return self._cache.once(("channel", name), lambda: self._compute(channel))

    def _compute(self, channel: Channel) -> torch.Tensor:
        ready = self._ready.get(channel.name)
        if ready is not None:
            self._cache.add_dependency([channel.name])
        try:
            plane = channel.compute(self) if ready is None else ready()
        except torch.cuda.OutOfMemoryError:
            raise ArrCocError(
                f"expected memory on {self.device} for the channel {channel.name!r} of {self.size[1]} x {self.size[0]} px, and "
                "it is full: make the texture with a smaller max_side, with fewer channels or in half precision"
            ) from None
        plane = as_tensor(plane, channel.name) if isinstance(plane, np.ndarray) else plane
        if not isinstance(plane, torch.Tensor) or tuple(plane.shape) != self.size:
            got = list(plane.shape) if isinstance(plane, torch.Tensor) else type(plane).__name__
            raise ChannelError(f"channel {channel.name!r} must return a tensor {list(self.size)}, got {got}")
        return plane.to(device=self.device, dtype=self.dtype)


def _check_function(kind: str, given: str | ImageFunction, known: Mapping[str, ImageFunction]) -> str | ImageFunction:
    """The name of a known one or a function, unchanged."""
    if isinstance(given, str):
        if given not in known:
            raise ChannelError(f"there is no {kind} {given!r}{nearest_name(given, known)}")
    elif not callable(given):
        raise ChannelError(f"expected a {kind} as a function or one of {', '.join(known)}, got {given!r}")
    return given


class TextureBatch(Sequence[TextureArray]):
    """Textures of one layout, each computed separately; the images may differ in size."""

    def __init__(self, textures: Sequence[TextureArray]) -> None:
        if not textures:
            raise ArrCocError("a batch needs at least one texture")
        self._textures = list(textures)

    @property
    def names(self) -> tuple[str, ...]:
        return self._textures[0].names

    def grid(self, height: int, width: int, names: Iterable[str] | None = None) -> torch.Tensor:
        """Each texture on the same grid of cells: `[B, C, height, width]`."""
        selected = None if names is None else tuple(names)
        return torch.stack([texture.grid(height, width, selected) for texture in self])

    def sample(self, xy: Numbers, level: Numbers = 0.0, names: Iterable[str] | None = None) -> torch.Tensor:
        """Each texture at the same points `[N, 2]`: `[B, N, C]`."""
        selected = None if names is None else tuple(names)
        return torch.stack([texture.sample(xy, level, selected) for texture in self])

    @overload
    def __getitem__(self, index: int) -> TextureArray: ...
    @overload
    def __getitem__(self, index: slice) -> TextureBatch: ...
    def __getitem__(self, index: int | slice) -> TextureArray | TextureBatch:
        if isinstance(index, str):
            raise ChannelError(f"a batch holds textures, not channels; index a texture first: batch[0][{index!r}]")
        return TextureBatch(self._textures[index]) if isinstance(index, slice) else self._textures[index]

    def __iter__(self) -> Iterator[TextureArray]:
        return iter(self._textures)

    def __len__(self) -> int:
        return len(self._textures)

    def __repr__(self) -> str:
        return f"TextureBatch({len(self)} textures of {len(self.names)} channels)"
