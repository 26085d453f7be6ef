"""The projection: PCA without questions, the optimum with them, and scores that estimate the full cosine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.embedding import projection as projection_module
from arr_coc.embedding import storage
from arr_coc.embedding.projection import Moments, Projection, fit_projection, spectrum
from arr_coc.errors import ProjectionError

WIDTH = 48


def unit(rows: torch.Tensor) -> torch.Tensor:
    return F.normalize(rows, dim=-1)


def low_rank(
    count: int, rank: int = 12, width: int = WIDTH, noise: float = 0.05, seed: int = 0, gap: float = 0.5
) -> torch.Tensor:
    """Features `[count, width]` of length 1 that vary in `rank` directions, around a mean that is far from zero."""
    dice = torch.Generator().manual_seed(seed)
    directions = basis(width)[:rank]
    strength = torch.linspace(1.0, 0.3, rank)
    made = (torch.randn(count, rank, generator=dice) * strength) @ directions
    made = made + noise * torch.randn(count, width, generator=dice)
    return unit(made + gap * width**0.5 * basis(width)[-1] / 4)


def basis(width: int = WIDTH) -> torch.Tensor:
    """An orthonormal basis `[width, width]`, always the same."""
    return torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(7)))[0].T.contiguous()


def questions(count: int, among: slice = slice(0, 12), width: int = WIDTH, seed: int = 1) -> torch.Tensor:
    """Questions `[count, width]` of length 1 in some directions of the basis, around a mean of their own."""
    dice = torch.Generator().manual_seed(seed)
    directions = basis(width)[among]
    made = torch.randn(count, len(directions), generator=dice) @ directions
    return unit(made + 2.0 * basis(width)[-2])


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    """By the book, for rows without equal values."""
    ranks = [x.argsort().argsort().double() for x in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def plain(features: torch.Tensor, dims: int = 16) -> Projection:
    return fit_projection(Moments.of(features), dims=dims, encoder="made up")


def aware(features: torch.Tensor, asked: torch.Tensor, dims: int = 16, weight: float = 0.9) -> Projection:
    return fit_projection(Moments.of(features), Moments.of(asked), dims, encoder="made up", text_weight=weight)


def loss(projection: Projection, features: torch.Tensor, asked: torch.Tensor) -> float:
    """The mean squared error of dot products over features and questions."""
    full = (asked - projection.text_mean) @ (features - projection.image_mean).T
    wrong = projection.transform_text(asked) @ projection.transform(features).T - full
    return float(wrong.double().square().mean())


def test_without_questions_it_is_the_textbook_pca() -> None:
    features = low_rank(600).double()
    found = plain(features, 8)
    around = (features - features.mean(0)).numpy()
    _, strength, directions = np.linalg.svd(around, full_matrices=False)
    overlap = np.abs(found.components.numpy() @ directions[:8].T)
    np.testing.assert_allclose(overlap, np.eye(8), atol=1e-5)
    np.testing.assert_allclose(found.variance, strength[:8] ** 2 / (strength**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(spectrum(Moments.of(features))[:8], found.variance, rtol=1e-5)
    assert found.is_pca


def test_the_reconstruction_error_matches_the_variance() -> None:
    features, asked = low_rank(800, noise=0.2), questions(60)
    total = float((features - features.mean(0)).square().sum(1).mean())
    for found in (plain(features), aware(features, asked)):
        lost = features - found.reconstruct(found.transform(features))
        assert float(lost.square().sum(1).mean()) == pytest.approx(total * (1 - float(found.variance.sum())), rel=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_components_are_uncorrelated_of_length_one_and_nested(weight: float) -> None:
    features, asked = low_rank(500, noise=0.3), questions(80, slice(0, 40))
    whole = aware(features, asked, 32, weight)
    torch.testing.assert_close(whole.components.norm(dim=1), torch.ones(32))
    # The dual basis: each component is read by its own row only.
    torch.testing.assert_close(whole.dual @ whole.components.T, torch.eye(32), atol=2e-4, rtol=0)
    z = whole.transform(features).double()
    covariance = torch.cov(z.T, correction=0)
    off = covariance - covariance.diag().diag()
    assert float(off.abs().max()) < 1e-4 * float(covariance.max())
    narrow = aware(features, asked, 16, weight)
    first = whole.first(16)
    torch.testing.assert_close(first.components, narrow.components, atol=1e-5, rtol=0)
    torch.testing.assert_close(first.transform(features), narrow.transform(features), atol=1e-5, rtol=0)


def test_the_fit_minimises_the_error_of_dot_products() -> None:
    """Against PCA, against either modality's own directions, and against small changes of the fitted maps."""
    features, asked = low_rank(700, rank=30, noise=0.3), questions(100, slice(10, 40))
    best = aware(features, asked, 8, weight=1.0)
    least = loss(best, features, asked)
    textbook = replace(plain(features, 8), text_mean=best.text_mean)
    assert least < 0.8 * loss(textbook, features, asked)
    dice = torch.Generator().manual_seed(0)
    for scale in (1e-1, 1e-2):
        for name in ("components", "dual"):
            moved = getattr(best, name) + scale * torch.randn(8, WIDTH, generator=dice) / WIDTH**0.5
            assert loss(replace(best, **{name: moved}), features, asked) > least
    # The closed form of what is lost: the eigenvalues that were left out.
    covariance = Moments.of(features).covariance
    spread, directions = torch.linalg.eigh(covariance)
    root = directions @ spread.clamp(min=0).sqrt().diag() @ directions.T
    left_out = torch.linalg.eigvalsh(root @ Moments.of(asked).covariance @ root)[:-8].sum()
    assert least == pytest.approx(float(left_out), rel=1e-4)


def test_scores_are_cosines_of_centred_vectors() -> None:
    features, asked = low_rank(300), questions(20)
    for found in (plain(features), aware(features, asked)):
        by_hand = torch.nn.functional.cosine_similarity(
            (asked - found.text_mean)[:, None], (features - found.image_mean)[None], dim=2
        )
        torch.testing.assert_close(found.full_scores(features, asked), by_hand, atol=1e-5, rtol=0)
        small = torch.nn.functional.cosine_similarity(
            found.transform_text(asked)[:, None], found.transform(features)[None], dim=2
        )
        scores = found.scores(found.compress(features), asked)
        torch.testing.assert_close(scores, small, atol=1e-5, rtol=0)
        assert float((scores - by_hand).abs().mean()) < 0.1
        torch.testing.assert_close(found.compress(features).norm(dim=1), torch.ones(300))
        torch.testing.assert_close(found.compress_text(asked).norm(dim=1), torch.ones(20))
    everything = plain(features, WIDTH)
    torch.testing.assert_close(
        everything.scores(everything.compress(features), asked),
        everything.full_scores(features, asked),
        atol=1e-5,
        rtol=0,
    )


def test_dot_products_equal_those_of_the_reconstruction() -> None:
    features, asked = low_rank(200), questions(10)
    found = aware(features, asked)
    z = found.transform(features)
    back = (asked - found.text_mean) @ (found.reconstruct(z) - found.image_mean).T
    torch.testing.assert_close(found.transform_text(asked) @ z.T, back, atol=1e-5, rtol=0)


def test_rankings_survive_on_features_of_low_rank() -> None:
    """Twelve directions and a little noise, a gap between the modalities: sixteen dimensions rank cells as all 48 do."""
    seen, fresh, asked = low_rank(2000, seed=0), low_rank(196, seed=5), questions(40)
    for found in (plain(seen), aware(seen, questions(60, seed=4))):
        full = found.full_scores(fresh, asked)
        survived = [spearman(a, b) for a, b in zip(found.scores(found.compress(fresh), asked), full, strict=True)]
        assert min(survived) > 0.9
        assert sum(survived) / len(survived) > 0.98
        narrow = found.first(4)
        worse = narrow.scores(narrow.compress(fresh), asked)
        assert sum(spearman(a, b) for a, b in zip(worse, full, strict=True)) / 40 < 0.9


def test_centring_removes_what_all_questions_share() -> None:
    """A direction that all questions share and places vary in would decide every ranking; particular ones should."""
    dice = torch.Generator().manual_seed(3)
    strength = torch.cat([torch.full((WIDTH - 2,), 0.3), torch.tensor([2.0, 0.3])])
    features = unit((torch.randn(800, WIDTH, generator=dice) * strength) @ basis())
    asked = questions(100, slice(0, 20))  # their mean lies in the strong direction
    found = aware(features, asked)
    plain_cosine = asked @ features.T
    alike = [spearman(plain_cosine[0], other) for other in plain_cosine[1:20]]
    particular = [spearman(found.full_scores(features, asked)[0], o) for o in found.full_scores(features, asked)[1:20]]
    assert sum(alike) / 19 > 0.8
    assert abs(sum(particular) / 19) < 0.2


def test_normalised_vectors_find_rare_things() -> None:
    """Forty kinds of things, the later the rarer: after the projection the rare ones are short, and dot products miss them."""
    dice = torch.Generator().manual_seed(0)
    kinds = unit(torch.randn(40, WIDTH, generator=dice))
    often = (0.85 ** torch.arange(40.0)).clamp(min=0.01)
    shown = torch.multinomial(often, 3000, replacement=True, generator=dice)
    features = unit(kinds[shown] + 0.05 * torch.randn(3000, WIDTH, generator=dice))
    found = plain(features, 8)
    rare = range(24, 40)
    full = found.full_scores(features, kinds)
    dots = found.transform_text(kinds) @ found.transform(features).T
    cosines = found.scores(found.compress(features), kinds)

    def right(scores: torch.Tensor) -> float:
        return sum(int(shown[scores[kind].argmax()]) == kind for kind in rare) / len(rare)

    assert right(full) == 1
    assert right(cosines) > right(dots) + 0.2


def test_directions_that_questions_use_survive() -> None:
    """Pictures hardly vary in directions 20 to 29; all questions are about these."""
    dice = torch.Generator().manual_seed(3)
    strength = torch.cat([torch.full((20,), 1.0), torch.full((10,), 0.25), torch.full((WIDTH - 30,), 0.02)])
    features = unit((torch.randn(1500, WIDTH, generator=dice) * strength) @ basis())
    fitted, fresh = questions(200, slice(20, 30), seed=1), questions(40, slice(20, 30), seed=2)

    def survived(found: Projection) -> float:
        estimate, full = found.scores(found.compress(features), fresh), found.full_scores(features, fresh)
        return sum(spearman(a, b) for a, b in zip(estimate, full, strict=True)) / len(fresh)

    assert survived(plain(features)) < 0.5
    assert survived(aware(features, fitted)) > 0.95


def test_each_modality_has_its_own_mean() -> None:
    features, asked = low_rank(400), questions(50)
    found = aware(features, asked)
    torch.testing.assert_close(found.image_mean, features.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.text_mean, asked.mean(0), atol=1e-6, rtol=0)
    # Thrown together, the gap between the modalities is the strongest component; apart, it takes none.
    gap = unit(features.mean(0) - asked.mean(0))
    together = plain(torch.cat([features, asked.repeat(8, 1)]))
    assert float((together.components[0] @ gap).abs()) > 0.8
    assert float((plain(features, 12).components @ gap).abs().max()) < 0.4
    torch.testing.assert_close(found.transform_text(asked).mean(0), torch.zeros(16), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.transform(features).mean(0), torch.zeros(16), atol=1e-5, rtol=0)


def test_fewer_than_eight_questions_are_not_used() -> None:
    """The mean of one question is that question: centring would remove all of it."""
    features = low_rank(300)
    few = aware(features, questions(7))
    assert (few.questions, few.text_weight, few.is_pca) == (0, 0.0, True)
    assert float(few.text_mean.abs().max()) == 0
    assert aware(features, questions(8)).questions == 8
    with pytest.raises(ProjectionError, match="a text weight below 1"):
        aware(features, questions(10), weight=1.0)


def test_dense_and_rows_give_the_same() -> None:
    features = low_rank(200)
    found = plain(features)
    dense = features[:60].T.reshape(WIDTH, 6, 10)
    transformed, compressed = found.transform(dense), found.compress(dense)
    assert transformed.shape == compressed.shape == (16, 6, 10)
    torch.testing.assert_close(transformed.flatten(1).T, found.transform(features[:60]))
    torch.testing.assert_close(compressed.flatten(1).T, found.compress(features[:60]))
    assert found.reconstruct(transformed).shape == dense.shape
    torch.testing.assert_close(
        found.scores(compressed, questions(3)), found.scores(compressed.flatten(1).T, questions(3))
    )
    assert found.transform(dense.half()).dtype == torch.float32


def test_a_fit_is_deterministic() -> None:
    features = low_rank(300)
    torch.testing.assert_close(plain(features).components, plain(features.flip(0)).components, atol=1e-5, rtol=0)
    assert plain(features).identity == plain(features).identity
    assert plain(features).identity != plain(features, 15).identity
    assert plain(features).identity != replace(plain(features), encoder="another").identity


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_saved_and_loaded(tmp_path: Path, weight: float) -> None:
    features = low_rank(200)
    made = replace(aware(features, questions(30), weight=weight), pictures=7, quality={"variance": 0.5})
    made.save(tmp_path / "p.safetensors")
    back = Projection.load(tmp_path / "p.safetensors")
    assert back.identity == made.identity
    assert (back.pictures, back.cells, back.questions, back.text_weight) == (7, 200, 30, weight)
    assert back.quality == {"variance": 0.5}
    assert torch.equal(back.text_mean, made.text_mean)
    assert torch.equal(back.transform(features), made.transform(features))
    assert (tmp_path / "p.safetensors").stat().st_size < 16 * WIDTH * 4 * (2 if weight else 1) + 2500
    assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"]


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    made = plain(low_rank(200))
    with pytest.raises(ProjectionError, match="cannot read"):
        Projection.load(path)
    made.save(path)
    whole = path.read_bytes()
    for data in (b"", b"no", whole[:-1], whole[:50], whole + b"more", b"\xff" * 400, b"\x80\x04K\x01."):
        path.write_bytes(data)
        with pytest.raises(ProjectionError, match="is no projection"):
            Projection.load(path)
    tensors = {"components": made.components}
    for note, complaint in (
        ({"format": "else"}, "it holds 'else'"),
        ({"format": "embedding projection", "version": 99}, "version 99"),
        ({"format": "embedding projection", "version": 1}, "damaged"),
    ):
        storage.write(path, tensors, note)
        with pytest.raises(ProjectionError, match=complaint):
            Projection.load(path)
    replace(made, image_mean=made.image_mean[:-1]).save(path)
    with pytest.raises(ProjectionError, match="image_mean"):
        Projection.load(path)
    with pytest.raises(ProjectionError, match="cannot write"):
        made.save(tmp_path / "nowhere" / "p.safetensors")


def test_the_header_holds_the_history_as_json(tmp_path: Path) -> None:
    replace(plain(low_rank(200)), pictures=9).save(tmp_path / "p.safetensors")
    data = (tmp_path / "p.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    said = json.loads(header["__metadata__"]["arr_coc"])
    assert (said["encoder"], said["dims"], said["pictures"], said["version"]) == ("made up", 16, 9, 1)


@pytest.mark.parametrize(
    ("count", "dims", "complaint"),
    [
        (16, 16, "16 cells are too few to fit 16"),
        (0, 16, "0 cells are too few"),
        (100, 0, "1 to 48"),
        (100, 49, "1 to 48"),
        (100, 2.5, "1 to 48"),
    ],
)
def test_invalid_counts_and_dimensions(count: int, dims: int, complaint: str) -> None:
    with pytest.raises(ProjectionError, match=complaint):
        plain(low_rank(count), dims)


def test_features_of_too_low_rank() -> None:
    with pytest.raises(ProjectionError, match="vary in 0 directions"):
        plain(low_rank(1).expand(100, -1))
    with pytest.raises(ProjectionError, match="vary in 3 directions"):
        plain(basis()[:4].repeat(30, 1))
    with pytest.raises(ProjectionError, match="0 to 1"):
        aware(low_rank(100), questions(4), weight=2)


def test_other_widths_are_refused() -> None:
    found = plain(low_rank(100))
    with pytest.raises(ProjectionError, match=r"features of 48 dimensions.*\[47, 2, 2\]"):
        found.transform(torch.zeros(47, 2, 2))
    with pytest.raises(ProjectionError, match="questions of 48"):
        found.transform_text(torch.zeros(2, 16))
    with pytest.raises(ProjectionError, match="1 to 16"):
        found.first(17)


# Moments


def vectors(count: int, width: int, seed: int = 0, far: float = 0.0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=dice, dtype=torch.float64) + far


def direct(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    around = rows - rows.mean(0)
    return rows.mean(0), around.T @ around


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=6), width=st.integers(1, 9), seed=st.integers(0, 99),
    far=st.sampled_from([0.0, 1.0, 1e4]),
)  # fmt: skip
def test_moments_do_not_depend_on_chunks_and_order(cuts: list[int], width: int, seed: int, far: float) -> None:
    rows = vectors(40, width, seed, far)
    parts = torch.tensor_split(rows, sorted(cuts))
    found = Moments.empty(width)
    for number in torch.randperm(len(parts), generator=torch.Generator().manual_seed(seed)):
        found = found + Moments.of(parts[number])
    mean, scatter = direct(rows)
    assert found.count == 40
    torch.testing.assert_close(found.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.scatter, scatter, rtol=1e-9, atol=1e-9)


def test_merging_is_associative() -> None:
    a, b, c = (Moments.of(vectors(n, 5, n)) for n in (3, 50, 11))
    left, right = (a + b) + c, a + (b + c)
    torch.testing.assert_close(left.scatter, right.scatter, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left.mean, right.mean, rtol=1e-13, atol=1e-13)


def test_features_far_from_zero_lose_nothing() -> None:
    """A difference of large sums would: the scatter here is 1e-16 of the sum of squares."""
    rows = vectors(1000, 4, far=1e8)
    torch.testing.assert_close(Moments.of(rows).scatter, direct(rows)[1], rtol=1e-6, atol=1e-6)


def test_many_rows_are_processed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = vectors(100, 6)
    whole = Moments.of(rows)
    monkeypatch.setattr(projection_module, "ROWS_PER_CHUNK", 7)
    torch.testing.assert_close(Moments.of(rows).scatter, whole.scatter, rtol=1e-12, atol=1e-12)


def test_covariance() -> None:
    rows = vectors(30, 3, far=2)
    found = Moments.of(rows.float())
    torch.testing.assert_close(found.covariance, torch.cov(rows.float().double().T, correction=0))


def test_with_count_gives_two_sets_equal_weight() -> None:
    few, many = vectors(10, 3, seed=1, far=4), vectors(500, 3, seed=2)
    both = Moments.of(few).with_count(500) + Moments.of(many)
    repeated = Moments.of(torch.cat([few.repeat(50, 1), many]))
    assert both.count == 1000
    torch.testing.assert_close(both.mean, repeated.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(both.scatter, repeated.scatter, rtol=1e-10, atol=1e-8)


def test_empty_moments() -> None:
    nothing = Moments.empty(4)
    some = Moments.of(vectors(3, 4))
    assert (nothing + some) is some
    assert (some + nothing) is some
    assert Moments.of(torch.zeros(0, 4)).count == 0
    assert nothing.covariance.abs().sum() == 0


def test_moments_as_tensors_and_back() -> None:
    some = Moments.of(vectors(9, 4))
    back = Moments.from_tensors(some.to_tensors("image"), "image")
    assert back.count == 9
    assert torch.equal(back.scatter, some.scatter)
    assert torch.equal(back.mean, some.mean)


def test_invalid_vectors_are_refused() -> None:
    with pytest.raises(ProjectionError, match="4 dimensions, got 5"):
        Moments.of(vectors(3, 4)) + Moments.of(vectors(3, 5))
    with pytest.raises(ProjectionError, match="NaN"):
        Moments.of(torch.tensor([[float("nan"), 1.0]]))
    with pytest.raises(ProjectionError, match=r"\[N, D\]"):
        Moments.of(torch.zeros(3))
