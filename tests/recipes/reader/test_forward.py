"""The training forward pass equals that of `transformers` for one question at a time, and so do decoded answers."""

import numpy as np
import pytest
import torch

from arr_coc.training.documents.page import PageQuestion
from recipes.reader import vocabulary
from recipes.reader.augment import without_augmentation
from recipes.reader.batches import pack
from recipes.reader.forward import ReaderForward, all_cells, answer, segment_mask, take_cells, to_patches

QUESTIONS = [
    PageQuestion("a", "What is it?", "a cat"),
    PageQuestion("b", "total amount?", "9.00"),
    PageQuestion("c", "?", "x"),
]


@pytest.mark.parametrize("grid", [(8, 9), (16, 5)])
@torch.no_grad()
def test_logits_equal_those_of_transformers(reader, chat, picture, grid):
    model, processor = reader
    columns, rows = grid
    image = picture(columns * 28, rows * 28)
    text, _, packed = pack(QUESTIONS, 90)
    tokens, _, segment, place = (torch.from_numpy(part)[None] for part in text)
    forward = ReaderForward(model)
    cells = all_cells(1, columns * rows, torch.device("cpu"))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    visual = forward.encode(to_patches(without_augmentation(pixels)), cells, columns)
    logits = forward.logits(visual, cells, grid, tokens, segment, place)[0]
    for number, question in enumerate(packed):
        inputs = chat(processor, image, question.text)
        assert inputs["image_grid_thw"].tolist() == [[1, rows * 2, columns * 2]]
        answer = torch.tensor([vocabulary.encode(question.answer)])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == vocabulary.IMAGE).int()
        expected = model(**inputs).logits[0, -answer.shape[1] - 1 :]
        mine = logits[segment[0] == number][-answer.shape[1] - 2 : -1]  # the last token is <|end|>
        torch.testing.assert_close(mine, expected, atol=2e-4, rtol=1e-3)


@torch.no_grad()
def test_a_dropped_cell_leaves_a_gap(reader):
    """The order of the kept cells does not matter, their positions do."""
    model, _ = reader
    forward = ReaderForward(model)
    patches = torch.randn(1, 12, 4, 588)
    kept = torch.tensor([[1, 4, 5, 11]])
    alone = forward.encode(take_cells(patches, kept), kept, 4)
    swapped = forward.encode(take_cells(patches, kept.flip(1)), kept.flip(1), 4).flip(1)
    torch.testing.assert_close(alone, swapped, atol=1e-4, rtol=1e-3)
    moved = forward.encode(take_cells(patches, kept), all_cells(1, 4, torch.device("cpu")), 4)
    assert not torch.allclose(alone, moved, atol=1e-3)


def test_answers_equal_those_of_generate(reader, chat, picture):
    model, processor = reader
    image = picture(224, 252)
    patches = to_patches(without_augmentation(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]))
    questions = ["What is it?", "total?", "A rather long question, longer than the others by far"]
    given = answer(ReaderForward(model), patches.repeat(2, 1, 1, 1), [questions, questions[::-1]], (8, 9), longest=12)
    assert given[0] == given[1][::-1]
    for question, mine in zip(questions, given[0], strict=True):
        inputs = chat(processor, image, question)
        theirs = model.generate(**inputs, max_new_tokens=12)[0, inputs["input_ids"].shape[1] :]
        assert mine == processor.tokenizer.decode(theirs, skip_special_tokens=True)


def test_questions_do_not_attend_to_each_other():
    mask = segment_mask(torch.tensor([[0, 0, 1, 1]]), prefix=2)[0, 0]
    assert mask.int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 1]]
