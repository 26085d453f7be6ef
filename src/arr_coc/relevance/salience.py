"""Other sources of salience than the texture's own channel: archetypes, and an image encoder's attention.

| source | what stands out |
|---|---|
| `texture`, the default | contrast, motion, nearness to the centre (`knowing.py`) |
| `archetypes` | what resembles one of a few prototypes of what questions are about: print, large letters, marks of charts, objects |
| `encoder` | what the encoder itself attends to: the model's, recorded while it encodes, or the image-text encoder's class token or pooled query |

An archetype is a Gaussian in the space of a cell's features, with a height: the chance that such a cell shows what a person asks
about. `python -m recipes.archetypes` fits them on evidence boxes. `benchmarks/salience_ablation.py` measures all sources.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

from arr_coc.embedding.encoder import Encoder
from arr_coc.errors import SelectorError
from arr_coc.relevance.knowing import scale_to_max
from arr_coc.selectors.base import SelectionInput
from arr_coc.selectors.scoring import encoder_attention, pool_channels, score_cells
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Cells, Grid

DEPTH = 1.0  # of the model's encoder, whose attention counts: `selector.ENCODER_DEPTH`
WEIGHTS = Path(__file__).with_name("archetypes.safetensors")
CHANNELS = ("edges", "edges_inverted", "highpass", "saliency", "text", "distance", "lowpass", "red", "green", "blue")
FEATURES = (
    "edges", "highpass", "saliency", "text", "distance", "brightness", "colour",
    "edges around", "highpass around", "saliency around", "text around", "colour around", "share of text",
)  # fmt: skip
NEAR = 0.1  # distance to an edge, as the channel has it, beyond which nothing is near
FEW = 0.05  # share of what stands out below which an archetype is not named


@dataclass(frozen=True, eq=False)
class Archetypes:
    """Prototypes by name: a centre and a precision for each feature, and a height in [0, 1]."""

    names: tuple[str, ...]
    centre: torch.Tensor  # [K, F]
    precision: torch.Tensor  # [K, F]
    height: torch.Tensor  # [K]

    def match(self, features: torch.Tensor) -> torch.Tensor:
        """How far each cell resembles each archetype: `[K, h, w]` in [0, 1], from features `[F, h, w]`."""
        away = features[None] - self.centre[:, :, None, None]
        return self.height[:, None, None] * (-0.5 * (away.square() * self.precision[:, :, None, None]).sum(1)).exp()


def salience_by(source: str, selection: SelectionInput, usual: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The salience of each candidate `[M]` in [0, 1], and in words where it comes from; `usual`: the texture's."""
    if source == "archetypes":
        matches = score_cells(selection, archetype_matches)  # [K, M]
        return scale_to_max(together(matches)), f"salience by archetypes ({_named(matches)})"
    if DEPTH in selection.attention:
        return scale_to_max(encoder_attention(selection, DEPTH)), "salience by the model's vision encoder"
    encoder = None if selection.source is None else getattr(selection.source.embeddings, "encoder", None)
    if isinstance(encoder, Encoder) and encoder.attends:
        values = score_cells(selection, lambda texture, view: _encoder_map(encoder, texture, view))
        return scale_to_max(values), f"salience by the image-text encoder {encoder.name}"
    if selection.tokens is None and len(selection.question.ids):  # a model's glance
        return usual, "salience by the texture, because nothing is encoded yet"
    raise SelectorError(
        "salience='encoder' needs a model whose encoder's attention is recorded, or embeddings of CLIP or SigLIP: "
        "take salience='texture' or 'archetypes'"
    )


def together(matches: torch.Tensor) -> torch.Tensor:
    """The chance that any of the archetypes `[K, ...]` explains a cell."""
    return 1 - (1 - matches).prod(0)


def archetype_matches(texture: TextureArray, view: Grid) -> torch.Tensor:
    """How far each cell of one frame of `view` resembles each archetype: `[K, h, w]`."""
    return texture.once(f"archetypes {view!r}", lambda: shipped().match(cell_features(texture, view)))


def archetype_maps(texture: TextureArray, grid: Cells) -> dict[str, torch.Tensor]:
    """How far each cell resembles the archetypes of each name: `[N]` by name."""
    found = torch.cat([archetype_matches(texture, view).flatten(1) for view in grid.views], 1)  # [K, N]
    names = shipped().names
    return {name: together(found[torch.tensor([one == name for one in names])]) for name in dict.fromkeys(names)}


def cell_features(texture: TextureArray, view: Grid) -> torch.Tensor:
    """`FEATURES` of the cells of one frame of `view`: `[F, h, w]`, about 0 to 1. "around": the mean of 3 x 3 cells."""
    found = dict(zip(CHANNELS, pool_channels(texture, view, CHANNELS).cpu(), strict=True))
    edges = torch.maximum(found["edges"], found["edges_inverted"])
    rgb = torch.stack([found[name] for name in ("red", "green", "blue")])
    colour = (rgb - rgb.mean(0)).square().sum(0).sqrt()  # distance from gray
    ground = found["lowpass"].median()
    text = found["text"]
    own = (
        scale_to_max(edges), scale_to_max(found["highpass"]), scale_to_max(found["saliency"]), text,
        (found["distance"] / NEAR).clamp(max=1), (found["lowpass"] - ground).abs(), 2 * colour,
    )  # fmt: skip
    around = [_around(own[number]) for number in (0, 1, 2, 3, 6)]
    return torch.stack([*own, *around, torch.full_like(text, float((text > 0.25).float().mean()))])


def _around(plane: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(plane[None, None], 3, 1, 1, count_include_pad=False)[0, 0]


def _encoder_map(encoder: Encoder, texture: TextureArray, view: Grid) -> torch.Tensor:
    """The encoder's attention on the cells of one frame of `view`: `[h, w]`."""
    plane = texture.once(
        f"attention of {encoder.identity}",
        lambda: F.interpolate(
            encoder.attention(texture.pixels)[None, None].float().cpu(), size=texture.size, mode="bilinear"
        )[0, 0],
    )
    left, top, right, bottom = view.area
    height, width = plane.shape
    part = plane[
        round(max(0.0, top) * height) : max(1, round(bottom * height)),
        round(max(0.0, left) * width) : max(1, round(right * width)),
    ]
    return F.adaptive_avg_pool2d(part[None, None], (view.h, view.w))[0, 0]


def _named(matches: torch.Tensor) -> str:
    """What share of what stands out each archetype explains, the largest first."""
    names = shipped().names
    shares: dict[str, float] = dict.fromkeys(names, 0.0)
    for name, share in zip(names, (matches.sum(1) / matches.sum().clamp(min=1e-9)).tolist(), strict=True):
        shares[name] += share
    shown = [f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda one: -one[1]) if share >= FEW]
    return ", ".join(shown) or "none"


@lru_cache(maxsize=1)
def shipped() -> Archetypes:
    """The archetypes of the package."""
    with safe_open(WEIGHTS, "pt") as stored:
        names = tuple(json.loads(stored.metadata()["names"]))
        return Archetypes(names, *(stored.get_tensor(name) for name in ("centre", "precision", "height")))
