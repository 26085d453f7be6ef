"""visionzip, vispruner, hiprune and tome against their definitions, and what merging conserves."""

from __future__ import annotations

import pytest
import torch

from arr_coc.selectors import SelectionInput, selector
from arr_coc.selectors.hiprune import MIDDLE, neighbours
from arr_coc.selectors.tome import merge_tokens
from arr_coc.selectors.visionzip import merge_into_targets
from arr_coc.types.grid import Cells, Grid
from tests.selectors.selections import TILES, choice, selection, slow_cosine, tokens

SEEDS = range(6)
BUDGETS = (1, 4, 13, 30, 40)


def by_attention(seen: SelectionInput, depth: float = 1.0) -> list[int]:
    values = seen.attention[depth].tolist()
    return sorted(range(len(values)), key=lambda i: -values[i])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", BUDGETS)
@pytest.mark.parametrize("every", [1, 2])
def test_visionzip(seed: int, k: int, every: int) -> None:
    seen = selection(Grid(1, 8, 10), k, torch.arange(0, 80, every), seed)
    assert seen.tokens is not None
    dominant = by_attention(seen)[: round(k * 54 / 64)]
    rest = [i for i in range(len(seen.tokens)) if i not in dominant]
    contextual = k - len(dominant)
    targets = [rest[i * len(rest) // contextual] for i in range(contextual)]
    groups = {target: [target] for target in targets}
    for i in rest:
        if targets and i not in targets:
            groups[max(targets, key=lambda t: slow_cosine(seen.tokens[i], seen.tokens[t]))].append(i)  # type: ignore[index]
    chosen = choice(selector("visionzip").select(seen))
    places = sorted(dominant + targets)
    assert chosen.keep.tolist() == seen.candidates[places].tolist()
    assert chosen.features is not None
    for place, feature in zip(places, chosen.features, strict=True):
        mean = torch.stack([seen.tokens[i] for i in groups.get(place, [place])]).mean(0)
        assert torch.allclose(feature, mean, atol=1e-6)


def test_visionzip_conserves_what_it_merges() -> None:
    for kind in ("random", "twins", "same"):
        made, targets = tokens(50, 1, kind), torch.arange(0, 50, 7)
        assert torch.allclose(merge_into_targets(made, torch.arange(50)), made)
        means = merge_into_targets(made, targets)
        unit = made / made.norm(dim=1, keepdim=True)
        group = (unit @ unit[targets].T).argmax(1)
        group[targets] = torch.arange(len(targets))
        sizes = torch.bincount(group, minlength=len(targets))
        assert torch.allclose((means * sizes[:, None]).sum(0), made.sum(0), atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 4, 13, 30, 79, 80])
def test_vispruner(seed: int, k: int) -> None:
    seen = selection(Grid(1, 8, 10), k, None, seed)
    assert seen.tokens is not None
    important, left = by_attention(seen)[: k // 2], by_attention(seen)[k // 2 :]
    while len(left) > k - k // 2:
        first, second = left[0::2], left[1::2]
        closest = {i: max(slow_cosine(seen.tokens[i], seen.tokens[j]) for j in second) for i in first}
        left = sorted(first, key=lambda i: -closest[i])[min(8, len(left) - k + k // 2) :] + second
    assert choice(selector("vispruner").select(seen)).keep.tolist() == sorted(important + left)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 3, 13, 20, 130])
@pytest.mark.parametrize("grid", [Grid(1, 4, 7), Grid(1, 12, 14), Grid(2, 3, 5), TILES], ids=str)
@pytest.mark.parametrize("every", [1, 3])
def test_hiprune(seed: int, k: int, grid: Cells, every: int) -> None:
    seen = selection(grid, k, torch.arange(0, grid.n, every), seed)
    count = min(k, len(seen.candidates))
    cells = seen.candidates.tolist()
    where = [tuple(place) for place in grid.thw(torch.arange(grid.n)).tolist()]
    anchors = [cells[i] for i in by_attention(seen, MIDDLE)][: max(1, round(0.1 * count / 5))]
    turns = list(anchors)
    for anchor in anchors:
        frame, row, column = where[anchor]
        for step in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            spot = (frame, row + step[0], column + step[1])
            if spot in where:
                turns.append(where.index(spot))
    turns += [cells[i] for i in by_attention(seen)]
    chosen = list(dict.fromkeys(cell for cell in turns if cell in cells))[:count]
    assert choice(selector("hiprune").select(seen)).keep.tolist() == sorted(chosen)


def test_no_row_goes_on_in_the_next_nor_a_view_or_frame() -> None:
    for grid in (Grid(2, 2, 3), TILES):
        where = grid.thw(torch.arange(grid.n))
        for cell, around in enumerate(neighbours(grid).tolist()):
            for other in around:
                if other >= 0:
                    assert where[cell, 0] == where[other, 0]
                    assert int((where[cell] - where[other]).abs().sum()) == 1
        assert int((neighbours(Grid(1, 3, 4)) >= 0).sum()) == 2 * (2 * 4 + 3 * 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", BUDGETS)
def test_tome(seed: int, k: int) -> None:
    seen = selection(Grid(1, 7, 6), k, None, seed)
    assert seen.tokens is not None
    groups = [[i] for i in range(42)]  # the last of a group is where it stands
    while len(groups) > k:
        means = [torch.stack([seen.tokens[i] for i in group]).double().mean(0) for group in groups]
        best = {
            a: max(range(1, len(groups), 2), key=lambda b: slow_cosine(means[a], means[b]))
            for a in range(0, len(groups), 2)
        }
        leaving = sorted(best, key=lambda a: -slow_cosine(means[a], means[best[a]]))[: len(groups) - k]
        for a in leaving:
            groups[best[a]] = groups[a] + groups[best[a]]
        groups = [group for number, group in enumerate(groups) if number not in leaving]
    chosen = choice(selector("tome").select(seen))
    assert chosen.keep.tolist() == [group[-1] for group in groups]
    assert chosen.scores["size"][chosen.keep].tolist() == [len(group) for group in groups]
    assert chosen.features is not None
    for group, feature in zip(groups, chosen.features, strict=True):
        assert torch.allclose(feature, torch.stack([seen.tokens[i] for i in group]).mean(0), atol=1e-5)


@pytest.mark.parametrize("kind", ["random", "twins", "same", "zeros"])
@pytest.mark.parametrize("count", [1, 2, 9, 40, 41])
def test_tome_conserves_sizes_and_sums(kind: str, count: int) -> None:
    made = tokens(41, 2, kind)
    _, features, sizes = merge_tokens(made, count)
    assert float(sizes.sum()) == 41
    assert torch.allclose((features * sizes[:, None]).sum(0), made.sum(0), atol=1e-4)
