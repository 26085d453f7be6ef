"""Losses of cells and colours, and which cells are dropped."""

import torch

from recipes.reader.batches import SLOTS
from recipes.reader.losses import cell_loss, choose_cells, colour_loss


def test_either_case_is_right_where_the_printed_case_is_unknown():
    targets = torch.zeros(1, 1, SLOTS, dtype=torch.long)
    targets[0, 0, 0] = ord("A")
    logits = torch.full((1, 1, SLOTS, 128), -20.0)
    logits[0, 0, 0, ord("a")] = 20.0
    logits[0, 0, 1:, 0] = 20.0
    assert cell_loss(logits, targets, torch.tensor([True])) < 0.01
    assert cell_loss(logits, targets, torch.tensor([False])) > 1


def test_only_cells_with_a_named_colour_have_a_colour_loss():
    logits = torch.zeros(1, 3, 12)
    logits[0, 1, 3] = 20.0
    assert colour_loss(logits, torch.tensor([[0, 3, 0]])) < 0.01
    assert colour_loss(logits, torch.zeros(1, 3)) == 0


def test_evidence_is_never_dropped():
    evidence = torch.zeros(4, 24, dtype=torch.bool)
    evidence[:, [3, 17]] = True
    cells = choose_cells(torch.rand(4, 3, 4 * 28, 6 * 28), evidence, 8)
    assert cells.shape == (4, 8)
    assert (cells.diff(dim=1) > 0).all()
    assert all({3, 17} <= set(row) for row in cells.tolist())
