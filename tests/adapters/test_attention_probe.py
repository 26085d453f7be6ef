"""The attention probe finds the model's own attention, before an answer and after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.adapters.attention_probe import locate_answer
from arr_coc.errors import PromptError, SelectorError
from arr_coc.selectors import SelectionInput, Selector
from recipes.reader import vocabulary
from tests.adapters.families import QWEN
from tests.adapters.tiny_vlm import FLAT, GREEDY, picture, wrapped

DEPTHS = (0.25, 0.75)

every_family = pytest.mark.parametrize("family", [*QWEN, *FLAT])


class Probing(Selector):
    """Probes every third cell and keeps the result."""

    name = "probing"

    def __init__(self, every: int = 3) -> None:
        self.every = every
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def select(self, selection: SelectionInput) -> torch.Tensor:
        cells = selection.candidates[:: self.every]
        self.found.append((cells, selection.probe_attention(cells, DEPTHS)))
        return cells[: selection.count]


def cell_columns(vlm: Any, prepared: Any) -> list[torch.Tensor]:
    """The tokens of each picture's kept cells in a prompt of one row, newline tokens left out."""
    tokens = (prepared["input_ids"][0] == vlm.adapter.token_id("image")).nonzero()[:, 0]
    found = []
    for allocation in prepared.allocations:
        cells = vlm.adapter.cell_tokens(allocation.grid)
        cells = torch.arange(allocation.n) if cells is None else cells
        kept = torch.ones(vlm.adapter.token_count(allocation.grid), dtype=torch.bool)
        kept[cells] = False
        kept[cells[allocation.keep]] = True
        mine, tokens = tokens[: int(kept.sum())], tokens[int(kept.sum()) :]
        found.append(mine[torch.isin(kept.nonzero()[:, 0], cells)])
    return found


@every_family
@pytest.mark.parametrize("every", [1, 3])
def test_a_probe_is_the_stock_model_s_attention(family: str, every: int) -> None:
    vlm, probe = wrapped(family, "eager"), Probing(every)
    vlm.prepare([picture()], "Which?", budget=5, selector=probe)
    cells, found = probe.found[0]
    pruned = vlm.prepare([picture()], "Which?", allocation=cells)
    with torch.no_grad():
        dense = vlm.model(**pruned, output_attentions=True)
    layers = [round(depth * len(dense.attentions)) for depth in DEPTHS]
    (columns,) = cell_columns(vlm, pruned)
    expected = torch.stack([dense.attentions[layer][0, :, -1].mean(0)[columns] for layer in layers]).mean(0)
    assert torch.allclose(found, expected, atol=1e-5)


def test_each_picture_is_probed_separately(vlm: Any) -> None:
    """As if the prompt's other pictures had been dropped, whichever row it is in."""
    both, alone = Probing(), Probing()
    vlm.prepare([[picture()], [picture(40, 64, 1), picture()]], ["One?", "Two?"], budget=5, selector=both)
    vlm.prepare([picture()], "One?", budget=5, selector=alone)
    cells = len(alone.found[0][0])
    assert [len(some) for some, _ in both.found] == [cells, len(both.found[1][0]), cells]
    assert torch.allclose(both.found[0][1], alone.found[0][1], atol=1e-6)
    nothing = torch.zeros(0, dtype=torch.long)
    kept = dict(vlm.prepare([picture(40, 64, 1), picture()], "Two?", allocation=[nothing, both.found[2][0]]))
    assert len(both.found[2][1]) == int((kept["input_ids"] == vocabulary.IMAGE).sum())


def test_later_layers_do_not_run_and_no_hook_stays(vlm: Any) -> None:
    ran: list[int] = []
    layers = list(vlm.adapter.text_model.layers)
    handles = [
        layer.register_forward_hook(lambda *given, number=number: ran.append(number)) for number, layer in enumerate(layers)
    ]  # fmt: skip
    try:
        vlm.prepare([picture()], "Which?", budget=5, selector=Probing())
    finally:
        for handle in handles:
            handle.remove()
    assert ran == list(range(round(max(DEPTHS) * len(layers))))
    assert not any(module._forward_pre_hooks for module in vlm.model.modules())
    answer = vlm.generate([picture()], "Which?", budget=5, selector=Probing(), **GREEDY)[0]
    share = round(max(DEPTHS) * len(layers)) / len(layers)
    assert answer.allocation.read == pytest.approx(5 + 21 * share)  # every third of 63 cells, up to the deepest layer
    assert answer.timings["probe"] > 0


def test_no_probe_before_encoding(vlm: Any) -> None:
    def glance(selection: SelectionInput) -> torch.Tensor:
        return selection.candidates[: len(selection.probe_attention(selection.candidates, DEPTHS))]

    with pytest.raises(SelectorError, match="needs encoded cells: none exist yet"):
        vlm.prepare([picture()], "Which?", budget=5, glance="50%", glance_selector=glance, selector="uniform")


@every_family
def test_an_answer_s_map_is_the_mean_of_the_model_s_attention(family: str) -> None:
    vlm = wrapped(family, "eager")
    prepared = vlm.prepare([picture(), picture(40, 64, 1)], "Which?", budget=["40%", "all"])
    answer = vlm.generate(prepared, **GREEDY)[0]
    maps = locate_answer(vlm.adapter, prepared, answer.ids, since=0.0)
    given = dict(prepared)
    steps = torch.arange(1, 13)
    with torch.no_grad():
        dense = vlm.model(
            input_ids=torch.cat([given["input_ids"], answer.ids[None]], 1),
            attention_mask=torch.ones(1, prepared.length + 12, dtype=torch.long),
            position_ids=torch.cat([given["position_ids"], given["position_ids"][..., -1:] + steps], -1),
            mm_encoder_outputs=given["mm_encoder_outputs"],
            output_attentions=True,
        )
    attention = torch.stack(dense.attentions)[:, 0, :, prepared.length - 1 : -1].mean((0, 1, 2))
    for allocation, found, columns in zip(prepared.allocations, maps, cell_columns(vlm, prepared), strict=True):
        expected = torch.zeros(allocation.n)
        expected[allocation.keep] = attention[columns]
        assert torch.allclose(found, expected / expected.max(), atol=1e-5)


def test_an_answer_without_visual_tokens_has_no_place(vlm: Any) -> None:
    prepared = vlm.prepare(None, "Hello")
    assert vlm.point(prepared, vlm.generate(prepared, **GREEDY)[0]) == []
    prepared = vlm.prepare([picture()], "What?", budget=0)
    assert vlm.point(prepared, vlm.generate(prepared, **GREEDY)[0])[0].tolist() == [0.0] * 63
    assert not any(module._forward_pre_hooks for module in vlm.model.modules())


def test_a_batch_is_refused(vlm: Any) -> None:
    prepared = vlm.prepare([[picture()], [picture()]], ["a", "b"])
    with pytest.raises(PromptError, match="one row, got 2"):
        vlm.point(prepared, vlm.generate(prepared, **GREEDY)[0])
