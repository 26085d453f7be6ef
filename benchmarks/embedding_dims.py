"""What survives of an encoder's features in 8, 16, 32 and 64 dimensions, with and without questions in the fit.

    python benchmarks/embedding_dims.py ENCODER IMAGES [--samples DATA] [--folds 2] [--out dims.jsonl]

The projections are fitted on IMAGES and validated on held-out pictures: with --samples on those of DATA, in folds, so that
IMAGES and DATA may be the same folder; without, on one picture in ten. Questions of the fit and of the validation
are two halves of `arr_coc.training.projection.fit`; with --samples, evidence recall at an eighth of the cells and the
pointing game are measured with DATA's own questions, also for the dot products that were not taken. Fits are nested: each row
is the start of the one with more dimensions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from arr_coc.bench.timing import machine
from arr_coc.embedding.encoder import Encoder, open_encoder
from arr_coc.embedding.projection import Projection, fit_projection
from arr_coc.evaluation.data import Data, PictureQuestions, read_samples
from arr_coc.training.projection.fit import everyday_questions, split_images, split_questions, text_moments
from arr_coc.training.projection.gather import CellSampling, GatheredMoments, find_images, gather_moments
from arr_coc.training.projection.quality import ProjectionQuality, compare_projections
from embedding_evidence import CENTRE, CHANCE, EvidenceScores, Scorer, compressed_scorer, measure_evidence, plain_cosine

FIGURES = ("dims", "variance", "error", "overlap", "survival", "kept", "found", "largest")
WEIGHTS = (0.0, 0.2, 0.5)
FULL, PLAIN, DOT = "full", "full, not centred", "dot product"
Fold = tuple[Sequence[Path], Sequence[PictureQuestions | Path]]  # pictures to fit on, pictures to judge on


def projections(
    encoder: Encoder, part: GatheredMoments, dims: Sequence[int], weights: Sequence[float]
) -> dict[str, Projection]:
    """One fit for each text weight, cut to each number of dimensions."""
    texts = text_moments(encoder, split_questions(everyday_questions())[0])
    made: dict[str, Projection] = {}
    for weight in weights:
        widest = fit_projection(part.features, texts, max(dims), encoder=encoder.identity, text_weight=weight)
        made |= {f"{number} {weight:g}": widest.first(number) for number in dims}
    return made


def folds_of(images: Sequence[Path], data: Data | None, folds: int) -> list[Fold]:
    if data is None:
        fitting, judging, notes = split_images(images, 1)
        for note in notes:
            print(f"note: {note}")
        return [(fitting, list(judging))]
    out: list[Fold] = []
    for number in range(folds):
        mine = data.pictures[number::folds]
        known = {Path(picture.image).resolve() for picture in mine if isinstance(picture.image, Path)}
        out.append(([image for image in images if image.resolve() not in known], list(mine)))
    return out


def scorers(made: dict[str, Projection]) -> dict[str, Scorer]:
    """Those in full, each projection's, and its dot products."""
    ways: dict[str, Scorer] = {FULL: next(iter(made.values())).full_scores, PLAIN: plain_cosine}
    for name, one in made.items():
        ways[name] = compressed_scorer(one)
        if one.text_weight == 0:
            ways[f"{name} {DOT}"] = lambda features, texts, p=one: p.transform_text(texts) @ p.transform(features).T  # type: ignore[misc]
    return ways


def together(parts: Sequence[ProjectionQuality]) -> dict[str, Any]:
    """The mean over folds."""
    out: dict[str, Any] = {}
    for name in FIGURES:
        values = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        out[name] = mean(values) if values else None
    return out | {"pictures": sum(part.pictures for part in parts), "questions": parts[0].questions}


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def measured(found: dict[str, Any], name: str) -> str:
    if found.get(name) is None:
        return ""
    low, high = found[f"{name}_ci"]
    return f"{found[name]:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("images", type=Path)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--weights", type=float, nargs="+", default=list(WEIGHTS))
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--mode", choices=("fast", "native"), default="fast")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    make = partial(open_encoder, arguments.encoder, arguments.device)
    encoder = make()
    images = find_images([arguments.images])
    data = None if arguments.samples is None else read_samples(arguments.samples)
    judges = split_questions(everyday_questions())[1]
    figures: dict[str, list[ProjectionQuality]] = {}
    proofs: dict[str, EvidenceScores] = {}
    for fitting, judging in folds_of(images, data, arguments.folds):
        part, _ = gather_moments(fitting, encoder, CellSampling(arguments.mode), workers=arguments.workers, make=make)
        made = projections(encoder, part, arguments.dims, arguments.weights)
        pictures = [one.still if isinstance(one, PictureQuestions) else one for one in judging]
        for name, quality in compare_projections(encoder, made, pictures, judges, arguments.mode).items():
            figures.setdefault(name, []).append(quality)
        if data is not None:
            mine = replace(data, pictures=tuple(one for one in judging if isinstance(one, PictureQuestions)))
            for name, proof in measure_evidence(encoder, scorers(made), mine, mode=arguments.mode).items():
                proofs[name] = proofs[name] | proof if name in proofs else proof
    lines: list[dict[str, Any]] = []
    for name in proofs if proofs else figures:
        if name in (FULL, PLAIN, CENTRE, CHANCE):
            line: dict[str, Any] = {"dims": name}
        else:
            number, weight, *score = name.split(maxsplit=2)
            line = {"dims": int(number), "text_weight": float(weight)} | ({"score": score[0]} if score else {})
        line |= together(figures[name]) if name in figures else {}
        lines.append(line | (proofs[name].to_dict() if proofs else {}))
    print(
        f"{encoder.identity}, {encoder.width} dimensions, {arguments.mode} mode; {machine()}, {date.today().isoformat()}\n"
    )
    heads = ["dimensions", "text weight", "variance", "error", "top-10 overlap", "ranking survival", "best eighth kept"]
    heads += ["best cell found", "largest", *(["evidence recall", "pointing"] if proofs else [])]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for line in lines:
        row = [f"{line['dims']}{', ' + line['score'] if 'score' in line else ''}"]
        row += [f"{line['text_weight']:g}" if "text_weight" in line else ""]
        row += [
            shown(line.get(name)) for name in ("variance", "error", "overlap", "survival", "kept", "found", "largest")
        ]
        row += [measured(line, name) for name in ("evidence_recall", "pointing")] if proofs else []
        print("| " + " | ".join(row) + " |")
    if arguments.out is not None:
        head = {
            "encoder": encoder.identity,
            "mode": arguments.mode,
            "machine": machine(),
            "date": date.today().isoformat(),
        }
        arguments.out.write_text("".join(json.dumps(head | line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
