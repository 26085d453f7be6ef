"""divprune, cdpruner, scope and mmr against their definitions, written out in loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.selectors import Question, SelectionInput, selector
from arr_coc.selectors.cdpruner import greedy_dpp
from arr_coc.selectors.mmr import MMR
from arr_coc.selectors.scope import Scope
from arr_coc.selectors.scoring import cosine_matrix, unit_vectors
from arr_coc.types.grid import Grid
from tests.selectors.selections import choice, selection, slow_cosine, tokens

SEEDS = range(6)
BUDGETS = (1, 3, 10, 14)
GRID = Grid(1, 5, 8)


def table(seen: SelectionInput) -> list[list[float]]:
    assert seen.tokens is not None
    return [[slow_cosine(a, b) for b in seen.tokens] for a in seen.tokens]


def relevance(seen: SelectionInput) -> list[float]:
    assert seen.tokens is not None
    mean = seen.question.embeddings.double().mean(0)
    raw = [slow_cosine(token, mean) for token in seen.tokens]
    return [(value - min(raw)) / (max(raw) - min(raw)) for value in raw]


def smooth(count: int, seed: int) -> torch.Tensor:
    """Tokens `[count, 128]` that are like their neighbours, as those of a picture are."""
    rough = torch.randn(1, 128, count // 5, generator=torch.Generator().manual_seed(seed))
    noise = torch.randn(count, 128, generator=torch.Generator().manual_seed(seed + 50))
    return torch.nn.functional.interpolate(rough, count, mode="linear")[0].T + 0.3 * noise


def spoken(seed: int) -> Question:
    said = torch.randn(5, 128, generator=torch.Generator().manual_seed(seed + 90))
    return Question("What?", torch.arange(5), lambda ids: said)


def kept(seen: SelectionInput, places: list[int]) -> list[int]:
    return sorted(seen.candidates[places].tolist())


def test_cosines_are_right_in_both_halves() -> None:
    for count in (0, 1, 7, 215, 216, 217, 500):
        made = tokens(count, 3)
        got = cosine_matrix(unit_vectors(made))
        assert torch.allclose(got.double(), unit_vectors(made).double() @ unit_vectors(made).double().T, atol=1e-6)
    assert (cosine_matrix(unit_vectors(torch.zeros(3, 4))) == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", BUDGETS)
@pytest.mark.parametrize("every", [1, 2])
def test_divprune(seed: int, k: int, every: int) -> None:
    seen = selection(GRID, k, torch.arange(0, 40, every), seed)
    cos = table(seen)
    everyone = range(len(cos))
    chosen = [max(everyone, key=lambda i: min(1 - cos[i][j] for j in everyone if j != i))]
    while len(chosen) < k:
        free = [i for i in everyone if i not in chosen]
        chosen.append(max(free, key=lambda i: min(1 - cos[i][j] for j in chosen)))
    assert choice(selector("divprune").select(seen)).keep.tolist() == kept(seen, chosen)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", BUDGETS)
def test_cdpruner(seed: int, k: int) -> None:
    seen = selection(GRID, k, None, seed)
    worth = relevance(seen)
    cos = torch.tensor(table(seen), dtype=torch.float64)
    kernel = cos * torch.outer(torch.tensor(worth), torch.tensor(worth))
    chosen: list[int] = []
    while len(chosen) < k:
        free = [i for i in range(40) if i not in chosen]

        def volume(i: int) -> float:
            some = torch.tensor([*chosen, i])
            return float(torch.linalg.det(kernel[some][:, some]))

        chosen.append(max(free, key=volume))
    assert choice(selector("cdpruner").select(seen)).keep.tolist() == kept(seen, chosen)


def test_cdpruner_goes_on_by_relevance_where_no_token_adds_volume() -> None:
    unit = unit_vectors(tokens(12, 0, "twins"))
    worth = torch.linspace(0.5, 1, 12)
    chosen = greedy_dpp(unit, worth, 5).tolist()
    assert sorted(place % 3 for place in chosen[:3]) == [0, 1, 2]  # one of each kind
    assert chosen[3:] == sorted(set(range(12)) - set(chosen[:3]), reverse=True)[:2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [*BUDGETS, 40])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])  # with 0, two tokens that are each other's nearest gain the same
def test_scope(seed: int, k: int, alpha: float) -> None:
    seen = selection(GRID, k, None, seed)
    cos = table(seen)
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
@pytest.mark.parametrize("k", BUDGETS)
@pytest.mark.parametrize("balance", [0.5, 0.2, 1.0])
def test_mmr(seed: int, k: int, balance: float) -> None:
    seen = selection(GRID, k, None, seed)
    cos, worth = table(seen), relevance(seen)
    chosen: list[int] = []
    while len(chosen) < k:
        free = [i for i in range(40) if i not in chosen]
        chosen.append(
            max(free, key=lambda i: balance * worth[i] - (1 - balance) * max((cos[i][j] for j in chosen), default=0))
        )
    assert choice(MMR(balance).select(seen)).keep.tolist() == kept(seen, chosen)


@pytest.mark.parametrize("k", [1, 33, 100, 299])
@pytest.mark.parametrize("seed", range(2))
def test_many_tokens_are_chosen_as_by_the_definition(seed: int, k: int) -> None:
    """Rows are made ahead and gains are bounds only; with 300 smooth tokens both matter."""
    grid = Grid(1, 15, 20)
    seen = selection(grid, k, None, seed, tokens=smooth(300, seed), question=spoken(seed))
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
        volumes = volumes - np.outer(volumes @ axis, axis)  # what is left beside the span of the chosen ones
    for name, places in taken.items():
        if name == "cdpruner" and k > 100:  # beyond the tokens' rank no volume is left
            continue
        assert choice(selector(name).select(seen)).keep.tolist() == kept(seen, places), name


def test_the_question_moves_what_reads_it_and_nothing_else() -> None:
    seen, other = selection(GRID, 10), selection(GRID, 10)
    embeddings = torch.randn(4, 16, generator=torch.Generator().manual_seed(77))
    other = replace(other, question=Question("Why?", torch.arange(4), lambda ids: embeddings))
    moved = {
        name: choice(selector(name).select(seen)).keep.tolist() != choice(selector(name).select(other)).keep.tolist()
        for name in ("cdpruner", "mmr", "divprune", "scope", "tome")
    }
    assert moved == {"cdpruner": True, "mmr": True, "divprune": False, "scope": False, "tome": False}
