"""Training examples: what is read from a folder, what is refused, and the cache of looks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from arr_coc.errors import DataError
from arr_coc.evaluation.data import read_samples
from arr_coc.layer.identity import config_for
from arr_coc.training.examples import LookCache, load_examples, read_folder, split_data
from tests.training import squares


def test_an_example_has_all_questions_and_their_evidence_cells(tmp_path: Path) -> None:
    vlm = squares.model()
    found = squares.examples(vlm, tmp_path, 2)
    assert [example.name for example in found] == ["0.png", "1.png"]
    assert found[0].shape == ((1, 8, 8),)
    assert [one.sample.question for one in found[0].questions] == ["red?", "green?", "blue?", "white?"]
    assert all(len(one.groups) == 1 and len(one.groups[0]) == 4 for one in found[0].questions)  # 16 pixels, cells of 8
    again = squares.examples(vlm, tmp_path, 2, workers=1)
    for mine, its in zip(found, again, strict=True):
        assert torch.equal(mine.views[0].channels, its.views[0].channels)
        assert torch.equal(mine.views[0].tokens, its.views[0].tokens)  # type: ignore[arg-type]


def test_the_number_of_threads_does_not_change(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        squares.examples(squares.model(), tmp_path, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_shares_partition_the_pictures(tmp_path: Path) -> None:
    vlm = squares.model()
    names = [[one.name for one in squares.examples(vlm, tmp_path, 5, share=(rank, 3))] for rank in range(3)]
    assert sorted(name for some in names for name in some) == [f"{number}.png" for number in range(5)]
    assert squares.examples(vlm, tmp_path, 2, share=(2, 3)) == []


def test_unusable_pictures_are_reported(tmp_path: Path) -> None:
    vlm, folder = squares.model(), squares.draw(tmp_path, 2)
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    rows += [{"video": ["0.png", "1.png"], "question": "?", "evidence": [[[0, 0, 9, 9]]]}]
    rows += [{"image": "0.png", "question": "an answer?", "answer": "yes"}, {"image": "0.png", "question": "none?"}]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:60])  # only its size can be read
    problems: list[str] = []
    config = config_for(vlm.adapter, **squares.SHAPE)
    found = load_examples(vlm, read_folder(folder), config, report=problems.append)
    assert [(one.name, len(one.questions)) for one in found] == [("0.png", 4)]
    assert any("got a video" in why for why in problems)
    assert any(why.startswith("1.png: ") for why in problems)
    (answers,) = load_examples(vlm, read_folder(folder), config, by_box=False, by_answer=True)
    assert len(answers.questions) == 5
    with pytest.raises(DataError, match=r"expected a folder with pictures and samples.jsonl, got .*nowhere"):
        read_folder(tmp_path / "nowhere")


def test_one_picture_in_ten_is_for_validation(tmp_path: Path) -> None:
    data = read_samples(squares.draw(tmp_path, 30, side=16))
    training, validation = split_data(data)
    assert 1 <= len(validation.pictures) <= 8
    assert {one.name for one in training.pictures} | {one.name for one in validation.pictures} == {
        f"{n}.png" for n in range(30)
    }
    assert split_data(training)[1].pictures == ()


def test_the_least_recently_used_looks_are_dropped(tmp_path: Path) -> None:
    vlm = squares.model()
    images = [one.image for one in squares.examples(vlm, tmp_path, 3)]
    one = LookCache(vlm)
    one.at(images[0])
    looks = LookCache(vlm, max_bytes=round(2.5 * one.used))
    first = looks.at(images[0])
    assert looks.at(images[0]) is first
    looks.at(images[1])
    looks.at(images[0])
    looks.at(images[2])  # the second is the least recently used
    assert looks.at(images[0]) is first
    assert len(looks) == 2
    assert looks.used == 2 * one.used


def test_looks_of_examples_stay_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    looks = LookCache(vlm)
    found = squares.examples(vlm, tmp_path, 2, looks=looks)
    monkeypatch.setattr(vlm, "look", lambda image: pytest.fail("looked at again"))
    assert [looks.at(example.image).rows for example in found] == [1, 1]
