"""Lessons, steps and looks: what a layer learns from, drawn the same way by whoever comes to a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from arr_coc.errors import DataError
from arr_coc.evaluation.data import read_samples
from arr_coc.layer.identity import config_for
from arr_coc.training.examples import apart, lessons, read
from arr_coc.training.look_cache import Looks
from arr_coc.training.loop import standardise
from arr_coc.training.metrics import measured
from arr_coc.training.model_losses import attention
from arr_coc.training.settings import Settings
from arr_coc.training.steps import Draws, box_losses
from tests.training import squares

CPU = torch.device("cpu")


def test_a_lesson_has_every_question_and_the_cells_of_its_answer(tmp_path: Path) -> None:
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path, 2)
    assert [lesson.name for lesson in found] == ["0.png", "1.png"]
    assert found[0].shape == ((1, 8, 8),)
    assert [one.sample.question for one in found[0].asked] == ["red?", "green?", "blue?", "white?"]
    assert all(len(one.groups) == 1 and len(one.groups[0]) == 4 for one in found[0].asked)  # 16 pixels, cells of 8
    again = squares.taught(vlm, tmp_path, 2, workers=1)
    for mine, its in zip(found, again, strict=True):
        assert torch.equal(mine.views[0].channels, its.views[0].channels)
        assert torch.equal(mine.views[0].tokens, its.views[0].tokens)  # type: ignore[arg-type]


def test_threads_are_left_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        squares.taught(squares.model(), tmp_path, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_shares_are_all_pictures_and_none_twice(tmp_path: Path) -> None:
    vlm = squares.model()
    names = [[one.name for one in squares.taught(vlm, tmp_path, 5, share=(rank, 3))] for rank in range(3)]
    assert sorted(name for some in names for name in some) == [f"{number}.png" for number in range(5)]
    assert squares.taught(vlm, tmp_path, 2, share=(2, 3)) == []


def test_what_cannot_be_learned_from_is_said(tmp_path: Path) -> None:
    vlm, folder = squares.model(), squares.draw(tmp_path, 2)
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    rows += [{"video": ["0.png", "1.png"], "question": "?", "evidence": [[[0, 0, 9, 9]]]}]
    rows += [{"image": "0.png", "question": "an answer?", "answer": "yes"}, {"image": "0.png", "question": "none?"}]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:60])  # its size can be read, and nothing else
    said: list[str] = []
    config = config_for(vlm.adapter, **squares.SHAPE)
    found = lessons(vlm, read(folder), config, complain=said.append)
    assert [(one.name, len(one.asked)) for one in found] == [("0.png", 4)]
    assert any("got a video" in why for why in said)
    assert any(why.startswith("1.png: ") for why in said)
    (answers,) = lessons(vlm, read(folder), config, by_box=False, by_answer=True)
    assert len(answers.asked) == 5
    with pytest.raises(DataError, match=r"expected a folder with pictures and samples.jsonl, got .*nowhere"):
        read(tmp_path / "nowhere")


def test_one_in_ten_is_kept_back_by_its_name(tmp_path: Path) -> None:
    data = read_samples(squares.draw(tmp_path, 30, side=16))
    learn, back = apart(data)
    assert 1 <= len(back.pictures) <= 8
    assert {one.name for one in learn.pictures} | {one.name for one in back.pictures} == {f"{n}.png" for n in range(30)}
    assert apart(learn)[1].pictures == ()


def test_a_step_draws_the_same_whoever_comes_to_it(tmp_path: Path) -> None:
    found = squares.taught(squares.model(), tmp_path, 4)
    settings = Settings(pictures=2, questions=3)
    first, again, other = Draws(found, settings, 0), Draws(found, settings, 0), Draws(found, settings, 1)
    for step in range(3):
        first.at(step, CPU)
    mine, its, rank = first.at(7, CPU), again.at(7, CPU), other.at(7, CPU)
    assert [one.sample.question for one in mine.asked] == [one.sample.question for one in its.asked]
    assert mine.lessons == its.lessons
    for left, right in zip(mine.pictures, its.pictures, strict=True):
        assert [view.encoded is None for view in left] == [view.encoded is None for view in right]
        assert [view.tokens is None for view in left] == [view.tokens is None for view in right]
    assert [one.sample for one in rank.asked] != [one.sample for one in mine.asked]


def test_a_batch_without_evidence_has_no_loss(tmp_path: Path) -> None:
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path, 2, by_answer=True)
    for lesson in found:
        for one in lesson.asked:
            one.groups = ()
    drawn = Draws(found, Settings(), 0).at(0, CPU)
    layer = squares.layer(vlm)
    assert box_losses(drawn, drawn.judged(layer)) == {}
    assert measured(layer, found, CPU) == {}


def test_channels_are_standardised_over_all_lessons(tmp_path: Path) -> None:
    vlm = squares.model()
    found, layer = squares.taught(vlm, tmp_path, 3), squares.layer(vlm)
    standardise(layer, found)
    values = torch.cat([view.channels.double().transpose(0, 1).flatten(1) for one in found for view in one.views], 1)
    spread = values.std(1, unbiased=False)
    assert torch.allclose(layer.mean.flatten().double(), values.mean(1), atol=1e-5)
    assert torch.allclose(layer.spread.flatten().double(), torch.where(spread > 1e-4, spread, 1.0), atol=1e-4)


def test_the_looks_asked_for_longest_ago_make_room(tmp_path: Path) -> None:
    vlm = squares.model()
    images = [one.image for one in squares.taught(vlm, tmp_path, 3)]
    one = Looks(vlm)
    one.at(images[0])
    looks = Looks(vlm, room=round(2.5 * one.used))
    first = looks.at(images[0])
    assert looks.at(images[0]) is first
    looks.at(images[1])
    looks.at(images[0])
    looks.at(images[2])  # the second was asked for longest ago
    assert looks.at(images[0]) is first
    assert len(looks) == 2
    assert looks.used == 2 * one.used


def test_lessons_leave_their_looks_to_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    looks = Looks(vlm)
    found = squares.taught(vlm, tmp_path, 2, looks=looks)
    monkeypatch.setattr(vlm, "look", lambda image: pytest.fail("looked at again"))
    assert [looks.at(lesson.image).rows for lesson in found] == [1, 1]


def test_attention_is_learned_from_right_answers_only(tmp_path: Path) -> None:
    vlm = squares.model()
    found, looks = squares.taught(vlm, tmp_path, 1, by_answer=True), Looks(vlm)
    assert attention(looks, found[0], found[0].asked[0]) is None  # the model knows nothing
    assert found[0].asked[0].seen == (None,)
