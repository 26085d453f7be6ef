"""Dense targets, packed questions and missing cells."""

import random

import numpy as np
import torch

from arr_coc.reader import vocabulary
from arr_coc.training.documents.page import PageQuestion
from recipes.reader.augment import augment
from recipes.reader.batches import NO_TARGET, pack
from recipes.reader.cells import SLOTS, cell_colours, cell_loss, cell_targets, colour_loss
from recipes.reader.forward import segment_mask
from recipes.reader.missing import choose_cells
from recipes.reader.recipe import TINY_STEP_KINDS
from recipes.reader.source import Library, TrainingBatches
from recipes.reader.warp import random_warp, warp_images, warp_points


def test_a_cell_holds_its_characters_in_reading_order():
    codes = np.frombuffer(b"AB CX", np.uint8).astype(np.int64)
    points = np.array([[0.2, 0.5], [0.7, 0.5], [0.9, 0.5], [1.1, 0.5], [9.0, 0.5]])
    targets = cell_targets(codes, points, rows=1, columns=2)
    assert [bytes(row[row > 0]) for row in targets] == [b"AB", b"C"]
    assert targets.shape == (2, SLOTS)


def test_either_case_is_right_where_the_printed_case_is_unknown():
    targets = torch.zeros(1, 1, SLOTS, dtype=torch.long)
    targets[0, 0, 0] = ord("A")
    logits = torch.full((1, 1, SLOTS, 128), -20.0)
    logits[0, 0, 0, ord("a")] = 20.0
    logits[0, 0, 1:, 0] = 20.0
    assert cell_loss(logits, targets, torch.tensor([True])) < 0.01
    assert cell_loss(logits, targets, torch.tensor([False])) > 1


def test_only_cells_with_a_named_colour_are_asked_for_it():
    points = np.array([[0.2, 0.5], [1.7, 0.5], [1.9, 0.5], [9.0, 0.5]])
    targets = torch.from_numpy(cell_colours(np.array([0, 3, 3, 2]), points, rows=1, columns=3))
    assert targets.tolist() == [0, 3, 0]
    logits = torch.zeros(1, 3, 12)
    logits[0, 1, 3] = 20.0
    assert colour_loss(logits, targets[None]) < 0.01
    assert colour_loss(logits, torch.zeros(1, 3)) == 0


def test_coloured_pictures_keep_their_colours():
    torch.manual_seed(0)
    images = torch.full((64, 3, 28, 28), 250, dtype=torch.uint8)
    images[:, 1:] = 20  # red
    shown = augment(images, torch.eye(2, 3).expand(64, -1, -1)).mean((2, 3))
    assert (shown[:, 0] > shown[:, 1:].amax(1) + 0.2).all()


def test_only_answers_are_targets():
    text, weights, packed = pack(
        [PageQuestion("a", "hi?", "yo"), PageQuestion("b", "long" * 99, "no room"), PageQuestion("c", "x", "y")], 12
    )
    assert [question.kind for question in packed] == ["a", "c"]
    assert vocabulary.decode([code for code in text[1] if code not in (NO_TARGET, vocabulary.END)]) == "yoy"
    assert (weights > 0).tolist() == (text[1] != NO_TARGET).tolist()
    assert text[3].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 0]


def test_questions_do_not_see_each_other():
    mask = segment_mask(torch.tensor([[0, 0, 1, 1]]), prefix=2)[0, 0]
    assert mask.int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 1]]


def test_evidence_is_never_missing():
    evidence = torch.zeros(4, 24, dtype=torch.bool)
    evidence[:, [3, 17]] = True
    cells = choose_cells(torch.rand(4, 3, 4 * 28, 6 * 28), evidence, 8)
    assert cells.shape == (4, 8)
    assert (cells.diff(dim=1) > 0).all()
    assert all({3, 17} <= set(row) for row in cells.tolist())


def test_pixels_and_points_are_warped_alike():
    warp = random_warp(random.Random(1), 200, 100)
    image = torch.zeros(1, 1, 100, 200)
    image[0, 0, 30:33, 150:153] = 1
    shown = warp_images(image, torch.from_numpy(warp)[None])[0, 0]
    row, column = divmod(int(shown.argmax()), 200)
    x, y = warp_points(warp, np.array([[151.5, 31.5]]))[0]
    assert abs(column + 0.5 - x) < 1.5
    assert abs(row + 0.5 - y) < 1.5


def test_batches_depend_on_the_seed_alone(fonts):
    batches = TrainingBatches(Library(fonts), TINY_STEP_KINDS, seed=0)
    first, second = (batches.make(random.Random("1"), 0.5) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.tokens, second.tokens)
    assert first.cells.shape == (6, 24, SLOTS)
