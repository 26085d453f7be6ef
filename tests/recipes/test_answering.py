"""Batched answers equal those of `generate` in transformers."""

import numpy as np
import torch

from recipes.reader.answering import answer
from recipes.reader.augment import plain
from recipes.reader.forward import ReaderForward, to_patches


def test_answers_equal_those_of_generate(reader, chat, picture):
    model, processor = reader
    image = picture(224, 252)
    patches = to_patches(plain(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]))
    questions = ["What is it?", "total?", "A rather long question, longer than the others by far"]
    said = answer(ReaderForward(model), patches.repeat(2, 1, 1, 1), [questions, questions[::-1]], (8, 9), longest=12)
    assert said[0] == said[1][::-1]
    for question, mine in zip(questions, said[0], strict=True):
        inputs = chat(processor, image, question)
        theirs = model.generate(**inputs, max_new_tokens=12)[0, inputs["input_ids"].shape[1] :]
        assert mine == processor.tokenizer.decode(theirs, skip_special_tokens=True)
