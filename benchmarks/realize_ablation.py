"""Ablation of relevance without a trained layer: evidence recall and reader accuracy with one part left out, or with one part alone.

    python benchmarks/realize_ablation.py SCANS --out ablation.jsonl --device cuda
    python benchmarks/realize_ablation.py --table ablation.jsonl

SCANS are the validation scans of `python -m recipes.reader.export_exam`. The reader answers from the kept cells. Confidence
intervals are over scans.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import arr_coc
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.evaluation.statistics import interval, mean
from arr_coc.relevance.coupling import couple
from arr_coc.relevance.knowing import know, texture_scores
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.selectors.base import FunctionSelector, ImageSource, SelectionInput
from arr_coc.selectors.scoring import encoder_tokens, unit_vectors
from arr_coc.texture import TextureArray
from arr_coc.texture.layout import MVP13
from arr_coc.training.answer_loss import answers_exactly
from arr_coc.training.examples import read_folder

Pick = Callable[[SelectionInput], torch.Tensor]
SHARES = ("25%", "12.5%", "6.25%")
KINDS = ("total", "date", "company")
CELL = 28  # pixels of the reader's cells
USED = (
    "edges", "edges_inverted", "highpass", "lowpass", "distance", "saliency", "motion", "eccentricity", "text",
)  # fmt: skip
FAMILIES = {
    "contours (edges, distance)": ("edges", "edges_inverted", "distance"),
    "detail (highpass)": ("highpass",),
    "saliency": ("saliency",),
    "text": ("text",),
    "position (eccentricity)": ("eccentricity",),
}


def whole(selection: SelectionInput, **options: object) -> torch.Tensor:
    """Relevance without a trained layer, with all of its parts."""
    return realized(selection, RelevanceSettings(learned=False, **options)).keep  # type: ignore[arg-type]


def without(channels: tuple[str, ...], selection: SelectionInput) -> torch.Tensor:
    """Some channels set to 0. The check for a void still reads the real edges."""
    return _with_channels(selection, f"without {channels}", dict.fromkeys(channels))


def small_layout(selection: SelectionInput) -> torch.Tensor:
    """The channels of `mvp13`: one channel of edges; no detail, distance or motion."""
    lacking = {name: None for name in USED if name not in MVP13}
    return _with_channels(selection, "mvp13", lacking | {"edges": "edge_magnitude"})


def _with_channels(selection: SelectionInput, key: str, changed: Mapping[str, str | None]) -> torch.Tensor:
    """Some channels replaced by others, or by zeros (None)."""
    texture, (view,) = selection.texture, selection.grid.views

    def make() -> TextureArray:
        sources = {name: changed.get(name, name) for name in USED}
        zeros = torch.zeros_like(texture["edges"])
        other = TextureArray.from_planes(
            {name: zeros if one is None else texture[one] for name, one in sources.items()}
        )
        scores = texture_scores(other, view)
        scores[3] = texture_scores(texture, view)[3]  # the rules about even images stay as they are
        other.once(f"scores {view!r}", scores.cpu)
        return other

    other = texture.once(key, make)
    return whole(replace(selection, source=ImageSource(texture=other)))


def processed(selection: SelectionInput) -> torch.Tensor:
    """The texture computed at the encoder's resolution."""
    texture = selection.texture
    (view,) = selection.grid.views

    def make() -> TextureArray:
        pixels = torch.stack([texture[name] for name in ("red", "green", "blue")])[None]
        size = (CELL * view.h, CELL * view.w)
        return TextureArray.from_image(F.interpolate(pixels, size, mode="bicubic", antialias=True)[0].clamp(0, 1))

    small = texture.once("processed", make)
    return whole(replace(selection, source=ImageSource(texture=small)))


def best(selection: SelectionInput, scores: torch.Tensor) -> torch.Tensor:
    """The top-k candidates by `scores` `[M]`."""
    return selection.candidates[scores.argsort(descending=True, stable=True)[: selection.count]].sort().values


def alone(way: str, selection: SelectionInput) -> torch.Tensor:
    """The top-k candidates by a single score."""
    scores = know(selection)
    if way == "coupling":
        coupled = couple(replace(selection, layer=None), scores, "probe")
        assert coupled is not None
        return best(selection, coupled.values)
    return best(selection, getattr(scores, way))


def by_words(pooling: str, selection: SelectionInput) -> torch.Tensor:
    """Cosine of the tokens with the question's word embeddings: with their mean, with the last, or the maximum over all."""
    words = selection.question.embeddings.detach().float()
    tokens = unit_vectors(encoder_tokens(selection).float())
    if pooling == "max":
        return best(selection, (tokens @ unit_vectors(words).T).amax(-1).cpu())
    one = words.mean(0, keepdim=True) if pooling == "mean" else words[-1:]
    return best(selection, (tokens @ unit_vectors(one)[0]).cpu())


VARIANTS: dict[str, Pick] = {
    "whole": whole,
    **{f"{way} alone": partial(alone, way) for way in ("information", "salience", "text", "coupling")},
    "no coupling": partial(whole, coupling="none"),
    **{f"question as the {one} of its words, alone": partial(by_words, one) for one in ("mean", "last", "max")},
    "balance by fixed formulas": partial(whole, balance="oppose"),
    "near-copies not set back": partial(whole, diverse=False),
    "texture from the encoder's picture": processed,
    **{f"without {name}": partial(without, channels) for name, channels in FAMILIES.items()},
    "mvp13 in place of full40": small_layout,
}


def measure(folder: Path, out: Path, device: str) -> None:
    vlm = arr_coc.load("reader", layer=None)
    vlm.model.to(device)
    found: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: {"recall": defaultdict(list), "right": defaultdict(list)}
    )
    for picture in read_folder(folder).pictures:
        look = vlm.look(picture.still)
        for sample in (one for one in picture.samples if one.kind in KINDS):
            for share in SHARES:
                for name, pick in VARIANTS.items():
                    prepared = vlm.prepare(
                        look=look, text=sample.question, budget=share, selector=FunctionSelector(pick)
                    )
                    (made,) = prepared.allocations
                    if made.fallback:
                        raise RuntimeError(f"{name} failed: {made.fallback}")
                    values = found[name, share]
                    groups = evidence_cells(sample.evidence, made.grid, picture.size)
                    values["recall"][picture.name].append(recall(made.keep, groups) or 0.0)
                    right = answers_exactly(vlm, look, sample.question, sample.answers[0], made.keep)
                    values["right"][picture.name].append(float(right))
        print(picture.name, flush=True)
    with out.open("w") as file:
        for (name, share), each in found.items():
            scores = {what: {"mean": mean(one), "interval": interval(one)} for what, one in each.items()}
            file.write(json.dumps({"variant": name, "share": share, **scores}) + "\n")


def table(path: Path) -> str:
    found = {(one["variant"], one["share"]): one for one in map(json.loads, path.read_text().splitlines())}
    lines = [
        f"| | {' | '.join(f'right at {s}' for s in SHARES)} | evidence kept at {SHARES[1]} |",
        "|---|---|---|---|---|",
    ]
    for name in VARIANTS:
        cells = [_cell(found[name, share]["right"]) for share in SHARES] + [_cell(found[name, SHARES[1]]["recall"])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(score: dict[str, list[float]]) -> str:
    low, high = score["interval"]
    return f"{score['mean']:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", nargs="?", type=Path, help="folder of validation scans")
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print these measurements as a table")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(table(arguments.table))
    else:
        measure(arguments.scans, arguments.out, arguments.device)


if __name__ == "__main__":
    main()
