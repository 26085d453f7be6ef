"""What a scout finds is the model's own attention, over just the cells it was sent to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import Selector, Sight
from tests.adapters import tiny
from tests.adapters.tiny_vlm import GREEDY, picture, wrapped

DEPTHS = (0.25, 0.75)


class Scouting(Selector):
    """Sends a scout to every third cell and keeps what it is told."""

    name = "scouting"

    def __init__(self, every: int = 3) -> None:
        self.every = every
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def select(self, sight: Sight) -> torch.Tensor:
        cells = sight.candidates[:: self.every]
        self.found.append((cells, sight.scout(cells, DEPTHS)))
        return cells[: sight.count]


@pytest.mark.parametrize("family", list(tiny.CONFIGS))
@pytest.mark.parametrize("every", [1, 3])
def test_it_is_the_stock_model_s_attention(family: str, every: int) -> None:
    vlm = wrapped(family, "eager")
    scout = Scouting(every)
    vlm.prepare([picture()], "Which?", budget=5, selector=scout)
    cells, found = scout.found[0]
    pruned = dict(vlm.prepare([picture()], "Which?", allocation=cells))
    with torch.no_grad():
        dense = vlm.model(**pruned, output_attentions=True)
    layers = [round(depth * len(dense.attentions)) for depth in DEPTHS]
    columns = (pruned["input_ids"][0] == tiny.IMAGE).nonzero()[:, 0]
    expected = torch.stack([dense.attentions[layer][0, :, -1].mean(0)[columns] for layer in layers]).mean(0)
    assert torch.allclose(found, expected, atol=1e-5)


def test_each_picture_is_scouted_by_itself(vlm: Any) -> None:
    """As if the prompt's other pictures had not been kept, whichever row it stands in."""
    both, alone = Scouting(), Scouting()
    vlm.prepare([[picture()], [picture(40, 64, 1), picture()]], ["One?", "Two?"], budget=5, selector=both)
    vlm.prepare([picture()], "One?", budget=5, selector=alone)
    assert [len(cells) for cells, _ in both.found] == [
        len(alone.found[0][0]),
        len(both.found[1][0]),
        len(alone.found[0][0]),
    ]
    assert torch.allclose(both.found[0][1], alone.found[0][1], atol=1e-6)
    nothing = torch.zeros(0, dtype=torch.long)
    kept = dict(
        vlm.prepare([picture(40, 64, 1), picture()], "Two?", allocation=[nothing, both.found[2][0]])
    )  # the second picture where it stands, the first one gone
    assert len(both.found[2][1]) == int((kept["input_ids"] == tiny.IMAGE).sum())


def test_later_layers_do_not_run_and_nothing_stays(vlm: Any) -> None:
    ran: list[int] = []
    layers = list(vlm.adapter.text_model.layers)
    handles = [
        layer.register_forward_hook(lambda *given, number=number: ran.append(number)) for number, layer in enumerate(layers)
    ]  # fmt: skip
    try:
        vlm.prepare([picture()], "Which?", budget=5, selector=Scouting())
    finally:
        for handle in handles:
            handle.remove()
    assert ran == list(range(round(max(DEPTHS) * len(layers))))
    assert not any(module._forward_pre_hooks for module in vlm.model.modules())
    answer = vlm.generate([picture()], "Which?", budget=5, selector=Scouting(), **GREEDY)[0]
    share = round(max(DEPTHS) * len(layers)) / len(layers)
    assert answer.allocation.read == pytest.approx(5 + 21 * share)  # every third of 63 cells, as far as it went
    assert answer.timings["scout"] > 0


def test_there_is_no_scout_before_encoding(vlm: Any) -> None:
    def glance(sight: Sight) -> torch.Tensor:
        return sight.candidates[: len(sight.scout(sight.candidates, DEPTHS))]

    with pytest.raises(SelectorError, match="nothing is encoded yet"):
        vlm.prepare([picture()], "Which?", budget=5, glance="50%", glance_selector=glance, selector="uniform")
