"""Dense targets and packed questions."""

import random

import numpy as np
import torch

from arr_coc.training.documents.page import PageQuestion
from recipes.reader import vocabulary
from recipes.reader.batches import NO_TARGET, SLOTS, cell_colours, cell_targets, pack
from recipes.reader.data import Library, TrainingBatches
from recipes.reader.recipe import TINY_STEP_KINDS


def test_a_cell_holds_its_characters_in_reading_order():
    codes = np.frombuffer(b"AB CX", np.uint8).astype(np.int64)
    points = np.array([[0.2, 0.5], [0.7, 0.5], [0.9, 0.5], [1.1, 0.5], [9.0, 0.5]])
    targets = cell_targets(codes, points, rows=1, columns=2)
    assert [bytes(row[row > 0]) for row in targets] == [b"AB", b"C"]
    assert targets.shape == (2, SLOTS)


def test_only_answers_are_targets():
    text, weights, packed = pack(
        [PageQuestion("a", "hi?", "yo"), PageQuestion("b", "long" * 99, "no room"), PageQuestion("c", "x", "y")], 12
    )
    assert [question.kind for question in packed] == ["a", "c"]
    assert vocabulary.decode([code for code in text[1] if code not in (NO_TARGET, vocabulary.END)]) == "yoy"
    assert (weights > 0).tolist() == (text[1] != NO_TARGET).tolist()
    assert text[3].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 0]


def test_batches_depend_on_the_seed_alone(fonts):
    batches = TrainingBatches(Library(fonts), TINY_STEP_KINDS, seed=0)
    first, second = (batches.make(random.Random("1"), 0.5) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.tokens, second.tokens)
    assert first.cells.shape == (6, 24, SLOTS)


def test_a_cell_has_the_colour_of_its_characters():
    points = np.array([[0.2, 0.5], [1.7, 0.5], [1.9, 0.5], [9.0, 0.5]])
    assert cell_colours(np.array([0, 3, 3, 2]), points, rows=1, columns=3).tolist() == [0, 3, 0]
