"""`TextureEmbeddingVLM`: a model that reads its visual tokens from k texture planes.

    encoder -> k dimensions -> planes of the texture -> samples at the cells -> lift -> language model

The model's own frozen encoder makes a token for each cell. A projection compresses it to k dimensions (16, 32, 64), which are
stored as planes `[k, h, w]`. The language model reads samples of these planes at the cells' centres, lifted to its own width,
each at its cell's own position. Prompts, selectors, budgets and generation are those of the wrapped model.

Notable:
- the wrapped model is not modified and can still answer from its own tokens;
- a look caches the k dimensions, so an image is encoded once for any number of questions, even while the lift is trained;
- no gradient reaches the encoder;
- features for the first layers of the language model (DeepStack) are compressed together with the token;
- tokens that are not cells (line ends) are constants of the model and stay as they are.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn

from arr_coc.adapters.base import Encoded, Visual
from arr_coc.embedding import storage
from arr_coc.embedding.encoder import fingerprint
from arr_coc.embedding.projection import DIMS, Moments, Projection, fit_projection
from arr_coc.errors import ChannelError, ProjectionError
from arr_coc.frames.reader import VideoSource
from arr_coc.selectors import SelectorLike
from arr_coc.texture import TextureArray, sampler
from arr_coc.texture.layout import EMBEDDING_NAMES
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer
from arr_coc.types.budget import Budget
from arr_coc.types.grid import Cells
from arr_coc.types.image import ImageLike, Numbers
from arr_coc.vlm.generation import GenerationOptions
from arr_coc.vlm.look import Look
from arr_coc.vlm.model import DEFAULT_SELECTOR, VLM
from arr_coc.vlm.token_encoder import encode_image

Keep = Budget | torch.Tensor | np.ndarray | Allocation
FORMAT, VERSION = "texture embeddings for a language model", 1
NOTE, PROJECTION, LIFT = "texture_vlm.json", "projection.safetensors", "lift.safetensors"
LANGUAGE = "language.safetensors"


@dataclass(frozen=True, eq=False)
class EmbeddingPlanes:
    """k dimensions of an image or video as planes on its cells' own grid; 0 where nothing was encoded.

    A cell's centre is a plane's pixel centre, so a sample there is the stored value up to rounding of doubles.
    """

    grid: Cells
    planes: tuple[torch.Tensor, ...]  # [k, h, w] for each frame of each view, in the order of the cells

    @classmethod
    def of(cls, grid: Cells, cells: torch.Tensor, rows: torch.Tensor) -> EmbeddingPlanes:
        """From the features `[M, k]` of some cells `[M]`."""
        whole = rows.new_zeros(grid.n, rows.shape[1]).index_copy(0, cells.to(rows.device), rows)
        frames = _frames(grid)
        return cls(grid, tuple(whole[first:stop].T.reshape(-1, h, w).contiguous() for first, stop, h, w in frames))

    @property
    def dims(self) -> int:
        return len(self.planes[0])

    def at(self, cells: torch.Tensor) -> torch.Tensor:
        """Samples at the centres of cells `[M]`: float32 `[M, k]`."""
        read = self.planes[0].new_zeros(len(cells), self.dims)
        for number, (first, stop, h, w) in enumerate(_frames(self.grid)):
            here = ((cells >= first) & (cells < stop)).nonzero()[:, 0]
            inside = cells[here] - first
            # In double precision the neighbours' weight at a centre is about 1e-15.
            x, y = (inside % w + 0.5).double() / w, (inside // w + 0.5).double() / h
            if len(here):
                sampled = self.sample(torch.stack([x, y], dim=-1), number)
                read = read.index_copy(0, here.to(read.device), sampled.to(read))
        return read

    def sample(self, xy: Numbers, frame: int = 0) -> torch.Tensor:
        """At points `[N, 2]` (x, y in [0, 1]) of one frame, bilinear: float32 `[N, k]`."""
        planes = self.planes[frame]
        points, levels = sampler.check_points(xy, 0.0, planes.device)
        return sampler.trilinear(lambda _: list(planes), points, levels, 0).float()

    def texture(self, frame: int = 0) -> TextureArray:
        """One frame as a texture array with the channels embedding_00, embedding_01 and so on."""
        if self.dims > len(EMBEDDING_NAMES):
            raise ChannelError(
                f"a texture array has {len(EMBEDDING_NAMES)} embedding channels, these are {self.dims}: "
                "use planes and sample as they are"
            )
        return TextureArray.from_planes(dict(zip(EMBEDDING_NAMES, self.planes[frame], strict=False)))


def _frames(grid: Cells) -> Iterator[tuple[int, int, int, int]]:
    """The first cell, the cell after the last, the rows and the columns of each frame of each view."""
    first = 0
    for view in grid.views:
        for _ in range(view.t):
            yield first, first + view.h * view.w, view.h, view.w
            first += view.h * view.w


class Lift(nn.Module):
    """`[.., k]` to `[.., D]`. Before training it is the projection's own reconstruction.

    `hidden`: units of a hidden layer; 0 for a linear map. The hidden part is the difference of two networks that start
    equal: it starts at exactly 0, and every weight gets a gradient from the first step on.
    `spread`: the features' total variance. If given, inputs are normalised, so that all dimensions learn equally fast.
    """

    scale: torch.Tensor  # [k]

    def __init__(self, projection: Projection, hidden: int = 0, spread: float | None = None) -> None:
        super().__init__()
        k, width = projection.dims, projection.width
        self.hidden = hidden
        deviation = torch.ones(k) if spread is None else (projection.variance.clamp(min=1e-9) * spread).sqrt()
        self.register_buffer("scale", deviation)
        self.linear = nn.Linear(k, width)
        with torch.no_grad():
            self.linear.weight.copy_(projection.components.T * deviation)
            self.linear.bias.copy_(projection.image_mean)
        network = nn.Sequential(nn.Linear(k, hidden), nn.GELU(), nn.Linear(hidden, width)) if hidden else None
        self.more = network
        self.less = copy.deepcopy(self.more)

    def forward(self, stored: torch.Tensor) -> torch.Tensor:
        even = stored / self.scale
        if self.more is None or self.less is None:
            return self.linear(even)
        return self.linear(even) + (self.more(even) - self.less(even))


def encoder_identity(model: Any, language: Any) -> str:
    """A fingerprint of `model`'s weights without its `language` model. It does not depend on the precision."""
    later = language_weights(model, language)
    weights = {name: p.detach().float() for name, p in model.named_parameters() if name not in later}
    return f"tokens-{fingerprint(weights, (model.config.model_type,))}"


def with_own(model: Any, own: Iterable[torch.Tensor]) -> Any:
    """A copy of a model with its own copies of the weights in `own`; all others are shared."""
    mine = {id(parameter) for parameter in own}
    shared = {id(p): p for p in model.parameters() if id(p) not in mine}
    return copy.deepcopy(model, shared)


def language_weights(model: Any, language: Any) -> dict[str, torch.Tensor]:
    """The language model's weights, output layer included, by their names in `model`."""
    mine = {id(parameter) for parameter in language.parameters()}
    output = model.get_output_embeddings()
    mine |= set() if output is None else {id(parameter) for parameter in output.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in mine}


def write_folder(
    folder: str | Path, projection: Projection, lift: Lift, language: Mapping[str, torch.Tensor] | None = None
) -> Path:
    """Write the projection, the lift and, if it was trained, the language model's weights."""
    path = Path(folder)
    note = {
        "format": FORMAT, "version": VERSION, "encoder": projection.encoder, "dims": projection.dims,
        "width": projection.width, "hidden": lift.hidden, "language": language is not None,
    }  # fmt: skip
    try:
        path.mkdir(parents=True, exist_ok=True)
        storage.write(path / LIFT, lift.state_dict(), note)
        if language is None:
            (path / LANGUAGE).unlink(missing_ok=True)
        else:
            storage.write(path / LANGUAGE, language, note)
        (path / NOTE).write_text(json.dumps(note, indent=2) + "\n")
    except OSError as error:
        raise ProjectionError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    projection.save(path / PROJECTION)
    return path


def read_folder(folder: str | Path) -> tuple[Projection, Lift, dict[str, torch.Tensor] | None]:
    """Read what `write_folder` wrote."""
    path = Path(folder)
    try:
        note = json.loads((path / NOTE).read_text())
        if not isinstance(note, dict) or (note.get("format"), note.get("version")) != (FORMAT, VERSION):
            raise ProjectionError(f"{str(path)!r} holds no {FORMAT} of version {VERSION}: its {NOTE} says otherwise")
        weights, _ = storage.read(path / LIFT)
        language = storage.read(path / LANGUAGE)[0] if note["language"] else None
    except OSError as error:
        raise ProjectionError(f"{str(path)!r} holds no {FORMAT}: {error.strerror or error}") from None
    except ProjectionError:
        raise
    except (storage.DamagedFileError, ValueError, KeyError) as error:
        raise ProjectionError(f"{str(path)!r} is damaged: {error}") from None
    projection = Projection.load(path / PROJECTION)
    lift = Lift(projection, note.get("hidden", 0))
    try:
        lift.load_state_dict(weights)
    except RuntimeError:
        expected = f"{projection.dims} to {projection.width} dimensions with {lift.hidden} hidden units"
        raise ProjectionError(f"{str(path)!r} is damaged: its lift is not from {expected}") from None
    return projection, lift, language


@dataclass(frozen=True, eq=False)
class Stored(Encoded):
    """An image as it is stored: the planes, and instead of tokens the samples `[M, k]` at the encoded cells."""

    planes: EmbeddingPlanes | None = None


class TextureCodec:
    """A `TokenCodec` that stores tokens as k dimensions of the texture."""

    def __init__(self, projection: Projection, lift: Lift, levels: int, dtype: torch.dtype) -> None:
        self.projection, self.lift, self.levels, self.dtype = projection, lift, levels, dtype
        self.key = projection.identity
        self._placed: dict[torch.device, Projection] = {}

    def encode(self, visual: Visual, tokens: Encoded) -> Stored:
        features = token_rows(tokens).detach()
        planes = EmbeddingPlanes.of(visual.grid, tokens.cells, self._on(features.device).transform(features))
        return Stored(tokens.cells, planes.at(tokens.cells), (), tokens.extra, tokens.attention, planes)

    def decode(self, stored: Encoded) -> Encoded:
        tokens, *deep = self.lift(stored.tokens).to(self.dtype).chunk(1 + self.levels, dim=-1)
        return Encoded(stored.cells, tokens, tuple(deep), stored.extra, stored.attention)

    def _on(self, device: torch.device) -> Projection:
        """The projection on `device`, cached."""
        if device not in self._placed:
            names = ("components", "dual", "image_mean", "text_mean", "variance")
            moved: dict[str, Any] = {name: getattr(self.projection, name).to(device) for name in names}
            self._placed[device] = replace(self.projection, **moved)
        return self._placed[device]


class TextureEmbeddingVLM:
    """A wrapped model, a projection of its encoder's tokens, and the lift back to them. `fit` creates all three.

    `vlm` is the model that reads from the texture, with the usual `ask`, `generate` and `prepare`. `wrapped` is the given one.
    """

    def __init__(self, vlm: VLM, projection: Projection, lift: Lift | None = None) -> None:
        if vlm.codec is not None:
            raise ProjectionError("expected a model that reads its encoder's own tokens, got one that reads a texture")
        identity = encoder_identity(vlm.model, vlm.adapter.text_model)
        if projection.encoder != identity:
            raise ProjectionError(
                f"this projection is for the encoder {projection.encoder!r}, the model's is {identity!r}: "
                "fit one with TextureEmbeddingVLM.fit"
            )
        table = vlm.model.get_input_embeddings().weight
        levels = vlm.adapter.deep_layers
        if projection.width != table.shape[1] * (1 + levels):
            raise ProjectionError(
                f"expected a projection of {table.shape[1] * (1 + levels)} dimensions, got {projection.width}"
            )
        own = Lift(projection) if lift is None else lift
        if (own.linear.in_features, own.linear.out_features) != (projection.dims, projection.width):
            raise ProjectionError(
                f"expected a lift from {projection.dims} to {projection.width} dimensions, "
                f"got one from {own.linear.in_features} to {own.linear.out_features}"
            )
        self.wrapped, self.projection, self.lift = vlm, projection, own.to(table.device)
        self.codec = TextureCodec(projection, self.lift, levels, table.dtype)
        self.vlm = vlm.with_codec(self.codec)

    @classmethod
    def fit(cls, vlm: VLM, images: Iterable[ImageLike], dims: int = DIMS, hidden: int = 0) -> TextureEmbeddingVLM:
        """Fit the projection to the principal components of the tokens of `images`, which are read one by one."""
        identity = encoder_identity(vlm.model, vlm.adapter.text_model)
        moments, pictures = None, 0
        for image in images:
            found = Moments.of(token_rows(encode_image(vlm, image)[0]))
            moments, pictures = found if moments is None else moments + found, pictures + 1
        if moments is None:
            raise ProjectionError("expected pictures to fit a projection on, got none")
        projection = fit_projection(moments, dims=dims, encoder=identity, pictures=pictures)
        return cls(vlm, projection, Lift(projection, hidden, float(moments.covariance.trace())))

    @property
    def dims(self) -> int:
        return self.projection.dims

    def look(
        self, images: Any = None, *, videos: Any = None, video: VideoSource | None = None, fps: float | None = None,
        frames: int | None = None, attention_at: Sequence[float] = (),
    ) -> Look:  # fmt: skip
        """`VLM.look`: images for any number of questions, stored in k dimensions once the first is asked."""
        return self.vlm.look(images, videos=videos, video=video, fps=fps, frames=frames, attention_at=attention_at)

    def planes(self, image: ImageLike | Look) -> tuple[EmbeddingPlanes, ...]:
        """The k dimensions of each image as planes; a look caches them."""
        seen = image if isinstance(image, Look) else self.look(image)
        self.vlm.prepare(
            look=seen, text="?", budget="all", glance="all"
        )  # any question: only the cached encoding matters
        kept = [encoding for key, encoding in seen.encoded.items() if key[0] is None and key[-1] == self.codec.key][-1]
        return tuple(one.planes for one in kept.tokens if isinstance(one, Stored) and one.planes is not None)

    def ask(
        self,
        image: Any,
        question: str | Sequence[str],
        keep: Keep | list[Budget] = "all",
        *,
        glance: Budget | Sequence[Budget] = "all",
        selector: SelectorLike = DEFAULT_SELECTOR,
        seed: int = 0,
        remember: bool | None = None,
        after: Answer | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Answer | list[Answer]:
        """An answer from samples of the texture.

        `keep`: how many cells to read, as a budget (128, "12.5%", "mass 90%", "auto", "all"; `selector` chooses them), or
        the cells themselves, as an allocation or a tensor of their numbers. The other arguments are those of `VLM.ask`.
        """
        kept = "allocation" if isinstance(keep, Allocation | torch.Tensor | np.ndarray) else "budget"
        given: Any = {kept: keep, "glance": glance, "selector": selector, "seed": seed, **options}
        return self.vlm.ask(image, question, after=after, remember=remember, **given)  # type: ignore[arg-type]

    def save_pretrained(self, folder: str | Path, language: bool = False) -> Path:
        """Write projection and lift; with `language`, also the language model's weights."""
        weights = language_weights(self.vlm.model, self.vlm.adapter.text_model) if language else None
        return write_folder(folder, self.projection, self.lift, weights)

    @classmethod
    def from_pretrained(cls, folder: str | Path, vlm: VLM) -> TextureEmbeddingVLM:
        """Read what `save_pretrained` wrote, for the model it was made for.

        If the folder holds language weights, they go into a copy of the model that shares its encoder; `vlm` is not modified.
        """
        projection, lift, language = read_folder(folder)
        if language is None:
            return cls(vlm, projection, lift)
        own = language_weights(vlm.model, vlm.adapter.text_model)
        wrong = sorted(name for name in {*own, *language} if name not in own or name not in language)
        wrong += sorted(name for name in own.keys() & language.keys() if own[name].shape != language[name].shape)
        if wrong:
            raise ProjectionError(f"{str(folder)!r} holds another language model than {vlm!r} has: {wrong[0]} differs")
        model = with_own(vlm.model, own.values())
        reader = VLM(model, vlm.processor, batch_windows=vlm.adapter.batch_windows, embeddings=vlm.embeddings)
        with torch.no_grad():
            for name, weights in language_weights(reader.model, reader.adapter.text_model).items():
                weights.copy_(language[name])
        return cls(reader, projection, lift)

    def __repr__(self) -> str:
        return f"TextureEmbeddingVLM({self.dims} dimensions, {self.vlm!r})"


def token_rows(seen: Encoded) -> torch.Tensor:
    """The token and the deep features of each cell, concatenated: `[M, D]`."""
    return torch.cat([seen.tokens, *seen.deep], dim=-1)
