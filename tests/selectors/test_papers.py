"""The published methods against their definitions, written out in loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import Choice, LayerState, Question, SelectionInput, selector
from arr_coc.selectors.cdpruner import greedy_dpp
from arr_coc.selectors.dart import DART
from arr_coc.selectors.fastv import FastV
from arr_coc.selectors.hiprune import MIDDLE, neighbours
from arr_coc.selectors.idpruner import IDPruner
from arr_coc.selectors.mmr import MMR
from arr_coc.selectors.pixelprune import PixelPrune
from arr_coc.selectors.scope import Scope
from arr_coc.selectors.scoring import unit_vectors
from arr_coc.selectors.sparsevlm import SparseVLM
from arr_coc.selectors.tome import merge_tokens
from arr_coc.selectors.visionzip import merge_into_targets
from arr_coc.types.grid import Cells, Grid
from tests.adapters import families
from tests.adapters.test_layer_pruning import masked_from
from tests.adapters.tiny_vlm import GREEDY, picture, stock_inputs, wrapped
from tests.selectors.selections import TILES, choice, selection, slow_cosine, tokens

SEEDS = range(6)
GREEDY_BUDGETS = (1, 3, 10, 14)
BUDGETS = (1, 4, 13, 30, 40)
GRID = Grid(1, 5, 8)
CELLS = torch.tensor([-1, -1, *range(12), -1, 12, 13, 14, 15, -1, -1, -1])


def cosine_table(seen: SelectionInput) -> list[list[float]]:
    assert seen.tokens is not None
    return [[slow_cosine(a, b) for b in seen.tokens] for a in seen.tokens]


def relevance(seen: SelectionInput) -> list[float]:
    assert seen.tokens is not None
    mean = seen.question.embeddings.double().mean(0)
    raw = [slow_cosine(token, mean) for token in seen.tokens]
    return [(value - min(raw)) / (max(raw) - min(raw)) for value in raw]


def smooth(count: int, seed: int) -> torch.Tensor:
    """Tokens `[count, 128]` that resemble their neighbours, as those of an image do."""
    rough = torch.randn(1, 128, count // 5, generator=torch.Generator().manual_seed(seed))
    noise = torch.randn(count, 128, generator=torch.Generator().manual_seed(seed + 50))
    return torch.nn.functional.interpolate(rough, count, mode="linear")[0].T + 0.3 * noise


def random_question(seed: int) -> Question:
    embeddings = torch.randn(5, 128, generator=torch.Generator().manual_seed(seed + 90))
    return Question("What?", torch.arange(5), lambda ids: embeddings)


def kept(seen: SelectionInput, places: list[int]) -> list[int]:
    return sorted(seen.candidates[places].tolist())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", GREEDY_BUDGETS)
@pytest.mark.parametrize("every", [1, 2])
def test_divprune(seed: int, k: int, every: int) -> None:
    seen = selection(GRID, k, torch.arange(0, 40, every), seed)
    cos = cosine_table(seen)
    indices = range(len(cos))
    chosen = [max(indices, key=lambda i: min(1 - cos[i][j] for j in indices if j != i))]
    while len(chosen) < k:
        free = [i for i in indices if i not in chosen]
        chosen.append(max(free, key=lambda i: min(1 - cos[i][j] for j in chosen)))
    assert choice(selector("divprune").select(seen)).keep.tolist() == kept(seen, chosen)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", GREEDY_BUDGETS)
def test_cdpruner(seed: int, k: int) -> None:
    seen = selection(GRID, k, None, seed)
    worth = relevance(seen)
    cos = torch.tensor(cosine_table(seen), dtype=torch.float64)
    kernel = cos * torch.outer(torch.tensor(worth), torch.tensor(worth))
    chosen: list[int] = []
    while len(chosen) < k:
        free = [i for i in range(40) if i not in chosen]

        def volume(i: int) -> float:
            some = torch.tensor([*chosen, i])
            return float(torch.linalg.det(kernel[some][:, some]))

        chosen.append(max(free, key=volume))
    assert choice(selector("cdpruner").select(seen)).keep.tolist() == kept(seen, chosen)


def test_cdpruner_falls_back_to_relevance_when_no_token_adds_volume() -> None:
    unit = unit_vectors(tokens(12, 0, "twins"))
    worth = torch.linspace(0.5, 1, 12)
    chosen = greedy_dpp(unit, worth, 5).tolist()
    assert sorted(place % 3 for place in chosen[:3]) == [0, 1, 2]  # one of each kind
    assert chosen[3:] == sorted(set(range(12)) - set(chosen[:3]), reverse=True)[:2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [*GREEDY_BUDGETS, 40])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])  # 0 makes ties: two tokens that are each other's nearest
def test_scope(seed: int, k: int, alpha: float) -> None:
    seen = selection(GRID, k, None, seed)
    cos = cosine_table(seen)
    attention = seen.attention[1.0].double().tolist()
    cover = [0.0] * 40
    chosen: list[int] = []
    while len(chosen) < k:
        free = [i for i in range(40) if i not in chosen]
        gains = {j: sum(max(0.0, cos[i][j] - cover[i]) for i in range(40)) * attention[j] ** alpha for j in free}
        chosen.append(max(free, key=lambda j: gains[j]))
        cover = [max(a, cos[i][chosen[-1]]) for i, a in enumerate(cover)]
    assert choice(Scope(alpha).select(seen)).keep.tolist() == kept(seen, chosen)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", GREEDY_BUDGETS)
@pytest.mark.parametrize("balance", [0.5, 0.2, 1.0])
def test_mmr(seed: int, k: int, balance: float) -> None:
    seen = selection(GRID, k, None, seed)
    cos, worth = cosine_table(seen), relevance(seen)
    chosen: list[int] = []
    while len(chosen) < k:
        free = [i for i in range(40) if i not in chosen]
        chosen.append(
            max(free, key=lambda i: balance * worth[i] - (1 - balance) * max((cos[i][j] for j in chosen), default=0))
        )
    assert choice(MMR(balance).select(seen)).keep.tolist() == kept(seen, chosen)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", GREEDY_BUDGETS)
@pytest.mark.parametrize("balance", [0.5, 0.2, 1.0])
def test_idpruner(seed: int, k: int, balance: float) -> None:
    seen = selection(GRID, k, torch.arange(0, 40, 2), seed)
    cos, paid = cosine_table(seen), seen.attention[1.0].double().tolist()
    worth = [(value - min(paid)) / (max(paid) - min(paid)) for value in paid]
    chosen = [max(range(20), key=lambda i: worth[i])]
    while len(chosen) < k:
        free = [i for i in range(20) if i not in chosen]
        chosen.append(max(free, key=lambda i: balance * worth[i] - (1 - balance) * max(cos[i][j] for j in chosen)))
    assert choice(IDPruner(balance).select(seen)).keep.tolist() == kept(seen, chosen)


def test_idpruner_takes_another_importance_and_then_records_no_attention() -> None:
    seen = replace(selection(GRID, 5), attention={})
    last_first = IDPruner(1.0, importance=lambda selection: torch.arange(len(selection.candidates)).float())
    assert last_first.attention_at == ()
    assert choice(last_first.select(seen)).keep.tolist() == [35, 36, 37, 38, 39]
    with pytest.raises(SelectorError, match="needs the encoder's attention at depth 1"):
        IDPruner().select(seen)


@pytest.mark.parametrize("k", [1, 33, 100, 299])
@pytest.mark.parametrize("seed", range(2))
def test_greedy_methods_equal_their_definition_on_many_tokens(seed: int, k: int) -> None:
    """Cosine rows are computed in batches and gains are upper bounds; 300 smooth tokens exercise both."""
    grid = Grid(1, 15, 20)
    seen = selection(grid, k, None, seed, tokens=smooth(300, seed), question=random_question(seed))
    unit = unit_vectors(seen.tokens).double().numpy()  # type: ignore[arg-type]
    cos = unit @ unit.T
    worth = np.array(relevance(seen))
    weight = seen.attention[1.0].double().numpy() * 300
    cover, taken, volumes = (
        np.zeros(300),
        {name: list[int]() for name in ("cdpruner", "mmr", "scope")},
        unit * worth[:, None],
    )
    for _ in range(k):
        gains = {"scope": np.maximum(cos - cover[:, None], 0).sum(0) * weight, "cdpruner": (volumes**2).sum(1)}
        nearest = cos[:, taken["mmr"]].max(1) if taken["mmr"] else 0.0
        gains["mmr"] = 0.5 * worth - 0.5 * nearest
        for name, gain in gains.items():
            gain[taken[name]] = -np.inf
            taken[name].append(int(gain.argmax()))
        cover = np.maximum(cover, cos[taken["scope"][-1]])
        axis = volumes[taken["cdpruner"][-1]]
        axis = axis / max(float(np.linalg.norm(axis)), 1e-12)
        volumes = volumes - np.outer(volumes @ axis, axis)  # the residual outside the span of the chosen ones
    for name, places in taken.items():
        if name == "cdpruner" and k > 100:  # beyond the tokens' rank no volume is left
            continue
        assert choice(selector(name).select(seen)).keep.tolist() == kept(seen, places), name


def test_only_methods_that_read_the_question_depend_on_it() -> None:
    seen, other = selection(GRID, 10), selection(GRID, 10)
    embeddings = torch.randn(4, 16, generator=torch.Generator().manual_seed(77))
    other = replace(other, question=Question("Why?", torch.arange(4), lambda ids: embeddings))
    moved = {
        name: choice(selector(name).select(seen)).keep.tolist() != choice(selector(name).select(other)).keep.tolist()
        for name in ("cdpruner", "mmr", "divprune", "scope", "tome", "idpruner")
    }
    assert {name for name, moves in moved.items() if moves} == {"cdpruner", "mmr"}


def test_without_a_question_all_tokens_are_equally_relevant() -> None:
    seen = selection(Grid(1, 3, 3), 3)
    no_question = replace(seen, question=Question("", torch.arange(0)))
    for name in ("cdpruner", "mmr"):
        assert len(choice(selector(name).select(no_question)).keep) == 3
        assert (choice(selector(name).select(no_question)).relevance == 1).all()


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


def test_visionzip_merging_preserves_the_sum() -> None:
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
    ranked = list(anchors)
    for anchor in anchors:
        frame, row, column = where[anchor]
        for step in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            spot = (frame, row + step[0], column + step[1])
            if spot in where:
                ranked.append(where.index(spot))
    ranked += [cells[i] for i in by_attention(seen)]
    chosen = list(dict.fromkeys(cell for cell in ranked if cell in cells))[:count]
    assert choice(selector("hiprune").select(seen)).keep.tolist() == sorted(chosen)


def test_hiprune_neighbours_stay_in_their_row_view_and_frame() -> None:
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
    groups = [[i] for i in range(42)]  # a group takes the place of its last token
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
def test_tome_merging_preserves_sizes_and_sums(kind: str, count: int) -> None:
    made = tokens(41, 2, kind)
    _, features, sizes = merge_tokens(made, count)
    assert float(sizes.sum()) == 41
    assert torch.allclose((features * sizes[:, None]).sum(0), made.sum(0), atol=1e-4)


def video(grid: Grid, k: int, candidates: torch.Tensor | None = None, seed: int = 0) -> SelectionInput:
    return selection(grid, k, candidates, seed, kind="video")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [6, 7, 11, 20])
@pytest.mark.parametrize("some", [False, True])
def test_evs(seed: int, k: int, some: bool) -> None:
    grid = Grid(4, 2, 3)
    drawn = torch.randperm(24, generator=torch.Generator().manual_seed(seed))[:16].sort().values
    seen = video(grid, k, drawn if some else None, seed)
    assert seen.tokens is not None
    cells = seen.candidates.tolist()
    novelty = []
    for i, cell in enumerate(cells):
        before = [j for j in range(i) if cells[j] % 6 == cell % 6]
        novelty.append(1 - slow_cosine(seen.tokens[i], seen.tokens[before[-1]]) if before else 2.0)
        if cell // 6 == cells[0] // 6:
            novelty[-1] = 3.0
    best = sorted(range(len(cells)), key=lambda i: -novelty[i])[:k]
    assert choice(selector("evs").select(seen)).keep.tolist() == sorted(cells[i] for i in best)


def test_evs_on_a_still_video_keeps_the_first_frame_then_the_earliest_cells() -> None:
    seen = video(Grid(3, 2, 2), 5)
    still = replace(seen, tokens=seen.tokens[:4].repeat(3, 1))  # type: ignore[index]
    kept = choice(selector("evs").select(still)).keep.tolist()
    assert kept[:4] == [0, 1, 2, 3]
    assert (choice(selector("evs").select(still)).relevance[4:] < 1e-6).all()  # type: ignore[index]


def test_evs_spreads_a_budget_below_one_frame_over_the_first() -> None:
    assert choice(selector("evs").select(video(Grid(3, 2, 4), 2))).keep.tolist() == [2, 6]


def test_evs_refuses_an_image() -> None:
    with pytest.raises(SelectorError, match="compares the frames of a video, got an image"):
        selector("evs").select(selection(Grid(1, 3, 3), 3))


@pytest.mark.parametrize("name", ["tome", "visionzip"])
def test_merged_tokens_replace_the_encoder_tokens(name: str) -> None:
    vlm = wrapped("qwen2_vl")
    prepared = vlm.prepare([picture()], "What?", budget=12, selector=name)
    plain = vlm.prepare([picture()], "What?", allocation=prepared.allocations[0])
    assert not prepared.allocations[0].fallback
    merged, own = (p["mm_encoder_outputs"]["image"].pooler_output[0] for p in (prepared, plain))
    assert merged.shape == own.shape
    assert not torch.equal(merged, own)


def test_depths_are_sorted_fractions() -> None:
    for method in (FastV(), SparseVLM(), DART()):
        assert all(0 < depth < 1 for depth in method.depths)
        assert list(method.depths) == sorted(method.depths)


def random_state(
    k: int | None, seed: int = 0, cells: torch.Tensor = CELLS, depth: float = 2 / 32
) -> tuple[LayerState, torch.Tensor]:
    """A row of text and image tokens, and its causal attention `[heads, T, T]`."""
    length = len(cells)
    scores = torch.randn(3, length, length, generator=torch.Generator().manual_seed(seed))
    ahead = torch.ones(length, length).triu(1).bool()
    attention = scores.masked_fill(ahead, -torch.inf).softmax(-1)
    return LayerState(depth, 2, torch.zeros(length, 4), cells, lambda queries: attention[:, queries], k), attention


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [0, 1, 5, 16, 20])
def test_fastv(seed: int, k: int) -> None:
    state, attention = random_state(k, seed)
    paid = {int(cell): float(attention[:, -1, place].mean()) for place, cell in enumerate(CELLS) if cell >= 0}
    assert choice(selector("fastv").at_layer(state)).keep.tolist() == sorted(
        sorted(paid, key=lambda cell: -paid[cell])[:k]
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [0, 1, 5, 16, 20])
@pytest.mark.parametrize("depth", [2 / 32, 6 / 32, 15 / 32])
def test_sparsevlm(seed: int, k: int, depth: float) -> None:
    state, attention = random_state(k, seed, depth=depth)
    heads = attention.mean(0).tolist()
    cells = {place: int(cell) for place, cell in enumerate(CELLS) if cell >= 0}
    after = [place for place in range(min(cells), len(CELLS)) if place not in cells]
    looking = {word: sum(heads[word][place] for place in cells) for word in after}
    raters = [word for word in after if looking[word] >= sum(looking.values()) / len(after)]
    paid = {cell: sum(heads[word][place] for word in raters) for place, cell in cells.items()}
    steps = {2 / 32: 3, 6 / 32: 2, 15 / 32: 1}[depth]
    count = round(16 * (min(k, 16) / 16) ** (1 / steps))
    assert choice(selector("sparsevlm").at_layer(state)).keep.tolist() == sorted(
        sorted(paid, key=lambda c: -paid[c])[:count]
    )


def test_sparsevlm_prunes_by_equal_factors() -> None:
    counts, cells = [], torch.cat([torch.arange(64), torch.tensor([-1, -1])])
    for depth in selector("sparsevlm").depths:
        kept = choice(selector("sparsevlm").at_layer(random_state(8, cells=cells, depth=depth)[0])).keep
        counts.append(len(kept))
        cells = torch.cat([kept, torch.tensor([-1, -1])])
    assert counts == [32, 16, 8]


def test_sparsevlm_without_text_after_the_image() -> None:
    state, _ = random_state(2, cells=torch.tensor([-1, 0, 1, 2, 3]), depth=15 / 32)
    assert len(choice(selector("sparsevlm").at_layer(state)).keep) == 2


@pytest.mark.parametrize("name", ["fastv", "sparsevlm"])
def test_pruning_methods_break_ties_by_order_and_refuse_auto(name: str) -> None:
    even = LayerState(
        15 / 32, 2, torch.zeros(22, 4), CELLS, lambda queries: torch.full((2, len(queries), 22), 1 / 22), 3
    )
    assert choice(selector(name).at_layer(even)).keep.tolist() == [0, 1, 2]
    with pytest.raises(SelectorError, match="give a count or a share"):
        selector(name).at_layer(random_state(None)[0])


def dart_state(k: int | None, seed: int, cells: torch.Tensor = CELLS) -> LayerState:
    dice = torch.Generator().manual_seed(seed)
    hidden, keys = (torch.randn(len(cells), size, generator=dice) for size in (8, 6))
    return LayerState(2 / 32, 2, hidden, cells, lambda queries: queries, k, project_keys=lambda: keys)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [0, 1, 4, 5, 11, 16, 20])
@pytest.mark.parametrize("pivots", [(4, 4), (2, 0), (1, 9)])
def test_dart(seed: int, k: int, pivots: tuple[int, int]) -> None:
    state = dart_state(k, seed)
    size = [float(row.abs().sum()) for row in state.keys]
    visual = [place for place, cell in enumerate(CELLS) if cell >= 0]
    words = [place for place in range(visual[0], len(CELLS)) if place not in visual]
    image = sorted(visual, key=lambda place: -size[place])[: min(pivots[0], k)]
    text = sorted(words, key=lambda place: -size[place])[: pivots[1]]
    chosen, rest = list(image), min(k, 16) - len(image)
    for number, pivot in enumerate([*image, *text]):
        share = rest // len(image + text) + (number < rest % len(image + text))
        free = [place for place in visual if place not in chosen]
        chosen += sorted(free, key=lambda place: slow_cosine(state.hidden[pivot], state.hidden[place]))[:share]
    assert choice(DART(*pivots).at_layer(state)).keep.tolist() == sorted(int(CELLS[place]) for place in chosen)


def test_dart_checks_its_pivots_and_refuses_auto_and_states_without_keys() -> None:
    with pytest.raises(SelectorError, match="expected at least one image pivot"):
        DART(image_pivots=0)
    with pytest.raises(SelectorError, match="give a count or a share"):
        DART().at_layer(dart_state(None, 0))
    with pytest.raises(SelectorError, match="needs the layer's keys"):
        DART().at_layer(random_state(3)[0])


@pytest.mark.parametrize("family", list(families.QWEN))
def test_dart_reads_the_models_own_keys(family: str) -> None:
    vlm = wrapped(family)
    made, seen = recording("dart")
    choose, found = made.at_layer, []

    def at_layer(state: LayerState) -> Choice:
        found.append(state.keys)
        return choice(choose(state))

    made.at_layer = at_layer
    answer = vlm.generate([picture()], "What is it?", budget=9, selector=made, **GREEDY)[0]
    assert answer.tokens["kept"] == 9
    assert not answer.fallback
    inputs = stock_inputs(vlm, "What is it?", [picture()])
    with torch.no_grad():
        dense = vlm.model(**inputs, use_cache=True)
    state, chosen = seen[0]
    keys = dense.past_key_values.layers[state.layer - 1].keys[0]  # [heads, T, d]
    assert torch.allclose(found[0], keys.transpose(0, 1).flatten(1), atol=1e-5)
    places = (inputs["input_ids"][0] == vlm.model.config.image_token_id).nonzero()[:, 0]
    dropped = places[~torch.isin(torch.arange(63), chosen)]
    assert answer.ids.tolist() == masked_from(vlm, inputs, {state.layer: dropped})


def flat_cells(grid: Grid, seed: int, colours: int = 3, size: int = 4, noise: float = 0.0) -> torch.Tensor:
    """An image `[3, H, W]` whose cells of `size` pixels have one of a few colours each."""
    dice = torch.Generator().manual_seed(seed)
    palette = torch.rand(colours, 3, generator=dice)
    cells = palette[torch.randint(colours, (grid.h, grid.w), generator=dice)]  # [h, w, 3]
    image = cells.permute(2, 0, 1).repeat_interleave(size, 1).repeat_interleave(size, 2)
    return (image + noise * torch.rand(image.shape, generator=dice)).clamp(0, 1)


def slow_predictive_coding(image: torch.Tensor, grid: Grid, size: int, threshold: float) -> dict[int, float]:
    """Each cell's prediction error; cells above `threshold` are kept."""

    def block(row: int, column: int) -> list[float]:
        part = image[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
        return [float(value) for value in part.flatten()]

    def differ(one: list[float], other: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(one, other, strict=True))

    errors, rebuilt = {0: float("inf")}, {(0, 0): block(0, 0)}
    for row in range(grid.h):
        for column in range(grid.w):
            if (row, column) == (0, 0):
                continue
            if row == 0:
                prediction = rebuilt[0, column - 1]
            elif column == 0:
                prediction = rebuilt[row - 1, 0]
            else:
                left, above, corner = rebuilt[row, column - 1], rebuilt[row - 1, column], rebuilt[row - 1, column - 1]
                vertical_edge = differ(corner, left) <= threshold and differ(corner, above) > threshold
                prediction = above if vertical_edge else left
            error = differ(block(row, column), prediction)
            errors[row * grid.w + column] = error
            rebuilt[row, column] = block(row, column) if error > threshold else prediction
    return errors


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("threshold", "noise"), [(0.0, 0.0), (0.1, 0.1), (0.2, 0.22)])
def test_pixelprune(seed: int, threshold: float, noise: float) -> None:
    grid = Grid(1, 5, 8)
    image = flat_cells(grid, seed, noise=noise)
    seen = selection(grid, None, seed=seed, pixels=image, tokens=None)
    errors = slow_predictive_coding(image, grid, 4, threshold)
    unique = [cell for cell, error in errors.items() if error > threshold]
    assert 1 < len(unique) < 40
    assert choice(PixelPrune(threshold).before_encoding(seen)).keep.tolist() == unique


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [0, 1, 7, 20, 40])
def test_pixelprune_raises_its_threshold_until_the_budget_holds(seed: int, k: int) -> None:
    grid = Grid(1, 5, 8)
    image = flat_cells(grid, seed, noise=0.4)
    chosen = choice(PixelPrune().before_encoding(selection(grid, k, seed=seed, pixels=image, tokens=None))).keep
    levels = [slow_predictive_coding(image, grid, 4, step / 255) for step in range(256)]
    counts = [sum(error > step / 255 for error in errors.values()) for step, errors in enumerate(levels)]
    assert counts[0] == 40
    assert len(chosen) == k
    if 1 <= k < 40:
        fitting = [step for step in range(256) if counts[step] <= k < counts[max(step - 1, 0)]]
        choices = [sorted(sorted(levels[step], key=lambda cell: -levels[step][cell])[:k]) for step in fitting]
        assert chosen.tolist() in choices


def test_pixelprune_keeps_less_than_its_budget_where_cells_repeat_and_is_lossless() -> None:
    grid = Grid(1, 6, 9)
    image = torch.ones(3, 24, 36)
    image[:, 8:16, 12:24] = 0.2  # a dark rectangle of two by three cells
    chosen = choice(PixelPrune().before_encoding(selection(grid, 30, pixels=image, tokens=None))).keep
    assert len(chosen) < 8  # corners and one edge
    rebuilt: dict[tuple[int, int], float] = {}
    for cell in range(grid.n):  # a decoder that gets the kept cells only
        row, column = divmod(cell, 9)
        if cell in chosen.tolist():
            rebuilt[row, column] = float(image[0, row * 4, column * 4])
            continue
        left, above, corner = (rebuilt.get(at) for at in ((row, column - 1), (row - 1, column), (row - 1, column - 1)))
        found = above if left is None or (corner is not None and corner == left != above) else left
        assert found is not None
        rebuilt[row, column] = found
    assert all(abs(rebuilt[r, c] - float(image[0, r * 4, c * 4])) < 1e-6 for r in range(6) for c in range(9))


def test_pixelprune_compares_every_pixel_of_a_cell() -> None:
    for size in (4, 7, 10):
        for height, width in ((size * 3, size * 3), (size * 3 + 1, size * 3 - 1)):
            grid, image = Grid(1, 3, 3), torch.ones(3, height, width)
            assert len(choice(PixelPrune().before_encoding(selection(grid, None, pixels=image, tokens=None))).keep) == 1
            for place in torch.randint(height * width, (12,), generator=torch.Generator().manual_seed(size)).tolist():
                spotted = image.clone()
                spotted[1, place // width, place % width] = 0.99
                seen = selection(grid, None, pixels=spotted, tokens=None)
                assert len(choice(PixelPrune().before_encoding(seen)).keep) > 1


def test_pixelprune_encodes_and_reads_what_is_left_through_a_model() -> None:
    vlm, image = wrapped("qwen2_vl"), picture()
    answer = vlm.ask(image, "What?", selector="pixelprune", **GREEDY)
    assert answer.tokens["encoded"] == answer.tokens["kept"] <= answer.tokens["all"]
    blank = vlm.ask(image.point(lambda value: 200), "What?", selector="pixelprune", **GREEDY)
    assert blank.tokens["encoded"] == blank.tokens["kept"] == 1
    both = vlm.ask(image, "What?", budget=9, glance=30, glance_selector="pixelprune", selector="divprune", **GREEDY)
    assert both.tokens == {"all": 63, "encoded": 30, "kept": 9}
    with pytest.raises(SelectorError, match="expected a threshold from 0 to 1, got 2"):
        PixelPrune(2)
    with pytest.raises(SelectorError, match="no scores to derive a mass from"):
        vlm.ask(image, "What?", selector="pixelprune", budget="mass 90%", **GREEDY)


def recording(name: str) -> tuple[Any, list[tuple[LayerState, torch.Tensor]]]:
    """The selector, and the states it received with the cells it kept."""
    made, seen = selector(name), []
    choose = made.at_layer

    def at_layer(state: LayerState) -> Choice:
        chosen = choice(choose(state))
        seen.append((state, chosen.keep))
        return chosen

    made.at_layer = at_layer  # type: ignore[method-assign]
    return made, seen


@pytest.mark.parametrize("family", list(families.QWEN))
@pytest.mark.parametrize("name", ["fastv", "sparsevlm"])
def test_pruning_methods_use_the_models_own_attention(family: str, name: str) -> None:
    vlm = wrapped(family, "eager")
    made, seen = recording(name)
    answer = vlm.generate([picture()], "What is it?", budget=9, selector=made, **GREEDY)[0]
    assert answer.tokens["kept"] == 9
    assert not answer.fallback
    inputs = stock_inputs(vlm, "What is it?", [picture()])
    with torch.no_grad():
        dense = vlm.model(**inputs, output_attentions=True)
    state, first = seen[0]
    attention = dense.attentions[state.layer - 1][0].mean(0)  # [T, T]
    places = (inputs["input_ids"][0] == vlm.model.config.image_token_id).nonzero()[:, 0]
    if name == "fastv":
        paid = attention[-1, places]
    else:
        words = [p for p in range(len(attention)) if p > int(places[0]) and p not in places.tolist()]
        looking = attention[words][:, places]
        paid = looking[looking.sum(1) >= looking.sum(1).mean()].mean(0)
    worth = answer.allocation.relevance
    assert worth is not None
    assert worth.argsort(descending=True)[:9].sort().values.tolist() == answer.allocation.keep.tolist()
    if name == "fastv":
        assert worth.argsort().tolist() == paid.argsort().tolist()
    assert first.tolist() == paid.argsort(descending=True)[: len(first)].sort().values.tolist()
    stages = {}
    for number, (state, kept) in enumerate(seen):
        assert number + 1 == len(seen) or len(kept) > 9
        stages[state.layer] = places[~torch.isin(torch.arange(63), kept)]
    assert answer.ids.tolist() == masked_from(vlm, inputs, stages)


def test_evs_refuses_an_image_through_a_model() -> None:
    with pytest.raises(SelectorError, match="compares the frames of a video"):
        wrapped("qwen2_vl").ask(picture(), "What?", budget=12, selector="evs", **GREEDY)
