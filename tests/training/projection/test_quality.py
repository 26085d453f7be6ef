"""The figures by which a projection is judged, against direct computations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F

from arr_coc.embedding.projection import Moments, Projection, fit_projection
from arr_coc.errors import ArrCocError, DataError, ImageError
from arr_coc.training.projection.fit import (
    everyday_questions,
    read_questions,
    split_images,
    split_questions,
    text_moments,
)
from arr_coc.training.projection.quality import (
    ProjectionQuality,
    QualityThresholds,
    compare_projections,
    spearman,
)
from tests.embedding.fake import NAMES, WIDTH, Colours, photo

QUESTIONS = [f"Where is the {name} thing?" for name in NAMES]
PICTURES = [photo(seed=100 + number) for number in range(12)]


def fitted(dims: int = 16, encoder: Colours | None = None) -> Projection:
    encoder = encoder or Colours()
    rows = torch.cat([encoder.dense(photo(seed=n)).features.flatten(1).T for n in range(40)])
    return fit_projection(Moments.of(rows), text_moments(encoder, QUESTIONS), dims, encoder=encoder.identity)


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_is_scipys(ties: bool) -> None:
    dice = np.random.default_rng(0)
    a, b = dice.normal(size=(5, 40)), dice.normal(size=(5, 40))
    if ties:
        a, b = a.round(), b.round()
    found = spearman(torch.from_numpy(a), torch.from_numpy(b))
    direct = [scipy.stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(found, direct, atol=1e-12)


def test_all_dimensions_lose_nothing() -> None:
    found = compare_projections(Colours(), {"": fitted(WIDTH)}, PICTURES, QUESTIONS)[""]
    assert found.variance == pytest.approx(1, abs=1e-5)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.survival == pytest.approx(1, abs=1e-3)
    assert found.overlap == pytest.approx(1, abs=0.02)
    assert (found.kept, found.found) == (pytest.approx(1, abs=0.02), pytest.approx(1, abs=0.02))
    assert (found.pictures, found.questions) == (12, 10)


def test_the_figures_against_a_slow_reference() -> None:
    encoder, projection = Colours(), fitted(8)
    found = compare_projections(encoder, {"": projection}, PICTURES, QUESTIONS)[""]
    texts = encoder.text(QUESTIONS)
    missed, spread, count, ranks, kept, hits = 0.0, 0.0, 0, [], [], []
    pool: list[torch.Tensor] = []
    for picture in PICTURES:
        features = encoder.dense(picture).features.flatten(1).T
        back = projection.reconstruct(projection.transform(features))
        missed += float((features - back).square().sum())
        spread += float((features - projection.image_mean).square().sum())
        count += len(features)
        pool.append(torch.stack([features, back], 1))
        full = F.normalize(texts - projection.text_mean, dim=1) @ F.normalize(features - projection.image_mean, dim=1).T
        estimate = projection.scores(projection.compress(features), texts)
        for a, b in zip(full, estimate, strict=True):
            ranks.append(scipy.stats.spearmanr(a, b).statistic)
            best, guess = (set(x.topk(8).indices.tolist()) for x in (a, b))
            kept.append(len(best & guess) / len(best | guess))
            hits.append(int(b.argmax()) in best)
    both = torch.cat(pool)  # all cells [768, 2, D]: they fit into the pool, and 512 of them ask
    asking = torch.linspace(0, len(both) - 1, 512).round().long()
    shared = []
    for cell in asking:
        near = [(both[:, way] - both[cell, way]).norm(dim=1).argsort()[1:11] for way in (0, 1)]
        shared.append(len(set(near[0].tolist()) & set(near[1].tolist())) / 10)
    assert found.overlap == pytest.approx(np.mean(shared), abs=2e-3)
    assert found.variance == pytest.approx(1 - missed / spread, abs=1e-6)
    assert found.error == pytest.approx(missed / count, abs=1e-6)
    assert found.survival == pytest.approx(np.mean(ranks), abs=1e-4)
    assert found.kept == pytest.approx(np.mean(kept), abs=1e-3)
    assert found.found == pytest.approx(np.mean(hits), abs=1e-2)
    assert found.largest == pytest.approx(float(projection.variance.max()))
    assert found.survival_ci is not None
    assert found.survival_ci[0] <= found.survival <= found.survival_ci[1]


def test_more_dimensions_are_better() -> None:
    encoder = Colours()
    whole = fitted(32, encoder)
    encoder.pictures = 0
    found = compare_projections(encoder, {str(k): whole.first(k) for k in (4, 8, 16, 32)}, PICTURES, QUESTIONS)
    assert encoder.pictures == 12  # each once for all of them
    for name in ("variance", "survival", "overlap"):
        values = [getattr(found[str(k)], name) for k in (4, 8, 16, 32)]
        assert values == sorted(values), name
    assert [one.error for one in found.values()] == sorted((one.error for one in found.values()), reverse=True)


def test_flat_pictures_and_missing_questions_give_none() -> None:
    flat = torch.full((3, 20, 20), 0.5)
    found = compare_projections(Colours(), {"": fitted()}, [flat], QUESTIONS)[""]
    assert (found.survival, found.survival_ci, found.kept, found.found) == (None, None, None, None)
    found = compare_projections(Colours(), {"": fitted()}, PICTURES, [])[""]
    assert found.survival is None
    assert found.overlap is not None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no")
    unreadable: list[tuple[str, str]] = []
    found = compare_projections(
        Colours(), {"": fitted()}, [tmp_path / "a.png", PICTURES[0]], QUESTIONS, unreadable=unreadable
    )
    assert found[""].pictures == 1
    assert [Path(file).name for file, _ in unreadable] == ["a.png"]
    with pytest.raises(ImageError):
        compare_projections(Colours(), {"": fitted()}, [tmp_path / "a.png"], QUESTIONS)[""]
    with pytest.raises(ArrCocError, match="none of them could be read"):
        compare_projections(Colours(), {"": fitted()}, [tmp_path / "a.png"], QUESTIONS, unreadable=[])


def test_missed_thresholds_are_named() -> None:
    good = ProjectionQuality(16, 0.95, 0.01, 0.9, 0.98, (0.97, 0.99), 0.8, 0.9, 0.2, 10, 10)
    assert QualityThresholds().missed(good) == []
    bad = replace(good, variance=0.1, error=0.9, overlap=0.01, survival=0.2, largest=0.99)
    said = QualityThresholds().missed(bad)
    assert [one.split()[0] for one in said] == ["variance", "overlap", "survival", "error", "largest"]
    assert "0.100 is below" in said[0]
    assert QualityThresholds().missed(replace(good, overlap=None, survival=None)) == []


def test_pictures_are_held_out_if_there_are_enough() -> None:
    paths = [Path(f"{n:05d}") for n in range(1000)]
    fitting, judging, notes = split_images(paths, 16)
    assert (len(fitting), len(judging), notes) == (936, 64, [])
    assert not set(fitting) & set(judging)
    assert sorted([*fitting, *judging]) == paths
    few, same, notes = split_images(paths[:9], 4)
    assert few is same
    assert "too few to hold any out" in notes[0]
    assert split_images(paths[:16], 16)[0] is not None
    assert len(split_images(paths[:16], 16)[0]) == 16  # none is spared where each is needed


# Questions


def test_everyday_questions_are_split() -> None:
    asked = everyday_questions()
    assert len(asked) == len(set(asked)) > 80
    fitting, judging = split_questions(asked)
    assert not set(fitting) & set(judging)
    assert split_questions(["only"]) == (["only"], ["only"])


def test_questions_from_a_file_or_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Where?\n\n  What is it? \nWhere?\n")
    assert read_questions(tmp_path / "q.txt") == ["Where?", "What is it?"]
    photo().save(tmp_path / "a.png")
    (tmp_path / "samples.jsonl").write_text('{"image": "a.png", "question": "Where is red?"}\n' * 2)
    assert read_questions(tmp_path) == ["Where is red?"]
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00x")
    for name, complaint in (("empty.txt", "found none"), ("no.txt", "there is no file"), ("odd.txt", "UTF-8")):
        with pytest.raises(DataError, match=complaint):
            read_questions(tmp_path / name)
