"""The second phase: the model gets used to few cells, and is a stock model with its layer beside it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError, ModelError
from arr_coc.layer.identity import config_for
from arr_coc.layer.model import ArrCocLayer
from arr_coc.reader import folder as folders
from arr_coc.reader.model import TINY, build
from arr_coc.training import finetune as accustoming
from arr_coc.training.distributed import Team
from arr_coc.training.examples import lessons, read
from arr_coc.training.finetune import Adaptation, Masters, accustom, best, write
from tests.training import squares


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return folders.write(build(TINY), tmp_path_factory.mktemp("model"), torch.float32)


def language(name: str) -> bool:
    return ".language_model.layers." in name


@pytest.mark.parametrize("said", ["layers:1", "lora:2"])
def test_answers_get_better_and_the_folder_is_a_stock_one(
    said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accustoming, "KINDS", {"layers": 1e-2, "lora": 1e-2})
    vlm = arr_coc.load(folder)
    layer = ArrCocLayer(config_for(vlm.adapter, **squares.SHAPE)).eval()
    (lesson,) = lessons(vlm, read(squares.draw(tmp_path / "data", 1)), layer.config, by_answer=True)
    lesson.asked = lesson.asked[:1]
    before = {name: weights.clone() for name, weights in vlm.model.state_dict().items()}
    done = accustom(vlm, layer, [lesson], [lesson], Adaptation.of(said, 8))
    assert (done.steps, done.finished) == (8, True)
    assert done.losses["after"] < 0.85 * done.losses["before"]
    changed = {name for name, weights in vlm.model.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed
    assert all(map(language, changed))
    write(vlm, folder, layer, tmp_path / "out")
    assert not list((tmp_path / "out").glob("adapter*"))
    again = arr_coc.load(tmp_path / "out")
    assert again.layer is not None
    assert again.layer.config == layer.config
    for name, weights in vlm.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weights), name
    image = read(tmp_path / "data").pictures[0].still
    mine, its = (one.ask(image, "red?", budget=8, max_new_tokens=3) for one in (arr_coc.wrap(vlm.model, vlm.processor, layer=layer), again))  # fmt: skip
    assert mine.text == its.text
    assert torch.equal(mine.allocations[0].keep, its.allocations[0].keep)


def test_the_best_cells_are_the_layers(tmp_path: Path) -> None:
    vlm = squares.model()
    layer = squares.layer(vlm).eval()
    (lesson,) = squares.taught(vlm, tmp_path, 1)
    some, more = (best(layer, lesson, lesson.asked[0], share) for share in (0.125, 0.5))
    assert some.sum() == 8
    assert more.sum() == 32
    assert bool((more | ~some).all())  # more cells are the same and others
    assert not torch.equal(some, best(layer, lesson, lesson.asked[1], 0.125))


def test_small_steps_are_not_lost_in_half_precision() -> None:
    weights = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    masters = Masters([weights])
    for _ in range(40):
        weights.grad = torch.ones_like(weights)
        masters.step(2e-4, Team())  # the next number below 1 is 0.004 away
    assert weights.dtype == torch.bfloat16
    assert torch.allclose(weights.float(), torch.tensor(0.992), atol=4e-3)
    assert bool((weights < 1).all())


def test_an_interruption_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path, 1, by_answer=True)

    class Asked(accustoming.Stopping):
        def __enter__(self) -> Any:
            self.asked = True
            return super().__enter__()

    monkeypatch.setattr(accustoming, "Stopping", Asked)
    done = accustom(vlm, squares.layer(vlm), found, [], Adaptation.of("lora:2", 5))
    assert (done.steps, done.finished, done.losses) == (0, False, {})


def test_bad_input(tmp_path: Path) -> None:
    for wrong in ("layers", "layers:0", "lora:x", "heads:2", "lora:-1", ""):
        with pytest.raises(ArrCocError, match=f"expected to adapt layers:N .* or lora:R .*, got '{wrong}'"):
            Adaptation.of(wrong)
    with pytest.raises(ArrCocError, match="expected steps of adapting from 1 on, got 0"):
        Adaptation.of("lora:2", 0)
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path, 1)
    with pytest.raises(ArrCocError, match="expected 1 to 4 layers"):
        accustom(vlm, squares.layer(vlm), found, [], Adaptation.of("layers:9"))
    with pytest.raises(ArrCocError, match="expected questions with answers"):
        accustom(vlm, squares.layer(vlm), [], [], Adaptation.of("layers:1"))
    vlm.model.half()
    with pytest.raises(ModelError, match="expected a model in bfloat16 or float32 to adapt, got float16"):
        accustom(vlm, squares.layer(vlm), found, [], Adaptation.of("layers:1"))
