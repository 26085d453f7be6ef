"""Fit the projection that ships for the encoder `labels`, from nothing that is evaluated.

    python benchmarks/fit_shipped_projection.py [--dims 32] [--samples DATA]

Its features are mixtures of 1,000 label vectors, so these are half of what is fitted; the other half are the sample pictures
that come with scikit-image (extra `bench`), which say how pictures mix them. Both halves have equal weight. The text mean is that of
all everyday questions. With --samples, evidence recall and pointing on DATA, compared with the features in full.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from arr_coc.bench.timing import machine
from arr_coc.embedding.embeddings import SHIPPED
from arr_coc.embedding.encoder import open_encoder
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.evaluation.data import read_samples
from arr_coc.training.projection.fit import everyday_questions, text_moments
from arr_coc.training.projection.gather import find_images, gather_moments
from embedding_evidence import Scorer, compressed_scorer, measure_evidence, plain_cosine


def sample_pictures() -> Path:
    """The folder of scikit-image's own pictures."""
    import skimage

    return Path(skimage.__file__).parent / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, default=32)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--out", type=Path, default=SHIPPED / "labels.safetensors")
    arguments = parser.parse_args()
    encoder = open_encoder("labels")
    part, _ = gather_moments(find_images([sample_pictures()]), encoder)
    labels = Moments.of(encoder.vectors).with_count(part.features.count)  # type: ignore[attr-defined]
    made = fit_projection(
        part.features + labels, text_moments(encoder, everyday_questions()), arguments.dims, encoder=encoder.identity,
        pictures=part.pictures,
    )  # fmt: skip
    arguments.out.parent.mkdir(exist_ok=True)
    made.save(arguments.out)
    size = arguments.out.stat().st_size
    print(
        f"{made.encoder}: {made.dims} dimensions, {float(made.variance.sum()):.3f} of the variance, {size / 1024:.0f} KB; {machine()}"
    )
    if arguments.samples is None:
        return
    ways: dict[str, Scorer] = {"full": made.full_scores, "full, not centred": plain_cosine}
    ways |= {str(dims): compressed_scorer(made.first(dims)) for dims in (8, 16, 32, 64) if dims <= made.dims}
    print("\n| dimensions | evidence recall | pointing |\n|---|---|---|")
    for name, found in measure_evidence(encoder, ways, read_samples(arguments.samples)).items():
        said = found.to_dict()
        cells = []
        for figure in ("evidence_recall", "pointing"):
            low, high = said[f"{figure}_ci"]
            cells.append(f"{said[figure]:.3f} ({low:.3f} to {high:.3f})")
        print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
