"""Fine-tuning by last layers or LoRA: only the language model changes, and it is a stock model afterwards."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError, ModelError
from arr_coc.layer.identity import config_for
from arr_coc.layer.model import ArrCocLayer
from arr_coc.reader import WEIGHTS
from arr_coc.training import finetune as finetuning
from arr_coc.training.answer_loss import answer_logits, answer_loss
from arr_coc.training.distributed import World
from arr_coc.training.examples import load_examples, read_folder
from arr_coc.training.finetune import FinetuneConfig, MasterWeights, finetune, last_layers, lora, save_model, top_cells
from arr_coc.training.gates import hard_top
from arr_coc.vlm.confidence import Calibration
from recipes.reader import folder as folders
from recipes.reader.model import TINY, build
from tests.adapters.tiny_vlm import picture
from tests.training import squares

QUESTION, ANSWER = "Which?", "It is 4"
FAMILIES = ["qwen2_vl", "qwen3_vl", "llava", "internvl", "idefics3"]


def steps(vlm: Any, look: Any, parameters: Any, count: int = 6, rate: float = 3e-3) -> list[float]:
    """The losses of a few steps on one sample, read from 8 cells."""
    n = vlm.prepare(look=look, text=QUESTION, selector="all").allocations[0].n
    keep = hard_top(torch.randn(n, generator=torch.Generator().manual_seed(0)), 8)
    optimizer = torch.optim.Adam(parameters, lr=rate)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = answer_loss(vlm, look, QUESTION, ANSWER, keep=keep, frozen=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state(vlm: Any) -> dict[str, torch.Tensor]:
    return {name: weights.clone() for name, weights in vlm.model.state_dict().items()}


def untouched(vlm: Any) -> bool:
    return all(weights.requires_grad and weights.grad is None for weights in vlm.model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_last_layers_change(family: str) -> None:
    vlm = squares.model(family)
    look, before = vlm.look(picture(90, 40)), state(vlm)
    with last_layers(vlm, 2) as parameters:
        losses = steps(vlm, look, parameters)
    assert losses[-1] < losses[0]
    changed = {name for name, weights in vlm.model.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed
    assert all("layers.2." in name or "layers.3." in name for name in changed)
    assert not any("vision" in name or "visual" in name for name in changed)
    assert untouched(vlm)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_adapters_are_merged(family: str) -> None:
    vlm = squares.model(family)
    look, names = vlm.look(picture(90, 40)), list(vlm.model.state_dict())
    kinds = [type(module) for module in vlm.model.modules()]
    attributes = set(vars(vlm.model))
    with lora(vlm, rank=4) as parameters:
        assert 0 < sum(map(torch.numel, parameters)) < sum(map(torch.numel, vlm.model.parameters())) / 3
        losses = steps(vlm, look, parameters, rate=1e-2)
        adapted = answer_logits(vlm, look, QUESTION, ANSWER)[0].detach()
    assert losses[-1] < losses[0]
    assert torch.allclose(answer_logits(vlm, look, QUESTION, ANSWER)[0], adapted, atol=1e-5)
    assert list(vlm.model.state_dict()) == names
    assert [type(module) for module in vlm.model.modules()] == kinds
    assert set(vars(vlm.model)) == attributes
    assert untouched(vlm)
    assert not vlm.model.training


def test_lora_of_some_layers_leaves_the_others() -> None:
    vlm = squares.model("qwen2_vl")
    look, before = vlm.look(picture()), state(vlm)
    with lora(vlm, rank=2, layers=1) as parameters:
        steps(vlm, look, parameters, 2)
    changed = {name for name, weights in vlm.model.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed
    assert all(".language_model.layers.3." in name for name in changed)


def test_an_error_leaves_the_model_as_it_was() -> None:
    vlm = squares.model("qwen2_vl")
    look, before = vlm.look(picture()), state(vlm)

    def interrupted() -> None:
        with lora(vlm, rank=2) as parameters:
            steps(vlm, look, parameters, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    after = vlm.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert untouched(vlm)


def test_a_tuned_model_is_saved_as_a_stock_folder(tmp_path: Path) -> None:
    vlm = squares.model("qwen2_vl")
    with lora(vlm, rank=2) as parameters:
        steps(vlm, vlm.look(picture()), parameters, 3)
    vlm.model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("adapter*"))
    for file in WEIGHTS.iterdir():  # the tiny model has the reader's vocabulary
        if file.is_file() and file.name != "config.json" and file.suffix in (".json", ".jinja"):
            shutil.copy(file, tmp_path / file.name)
    loaded = arr_coc.load(tmp_path)
    for name, weights in vlm.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weights), name
    assert type(loaded.model) is type(vlm.model)


def test_bad_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model("qwen2_vl")
    for wrong in (0, 5, 1.5):
        with pytest.raises(ArrCocError, match=f"expected 1 to 4 layers, .* got {wrong}"), last_layers(vlm, wrong):
            pass
    with pytest.raises(ArrCocError, match="expected a rank of 1 or more, got 0"), lora(vlm, rank=0):
        pass
    there = builtins.__import__

    def without(name: str, *given: Any, **more: Any) -> Any:
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return there(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with (
        pytest.raises(ModelError, match=r"LoRA needs the extra 'training' .* pip install \"arr-coc\[training\]\""),
        lora(vlm),
    ):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return folders.write(build(TINY), tmp_path_factory.mktemp("model"), torch.float32)


def is_language(name: str) -> bool:
    return ".language_model.layers." in name


@pytest.mark.parametrize("what", ["layers:1", "lora:2"])
def test_the_loss_falls_and_the_folder_is_a_stock_one(
    what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetuning, "LEARNING_RATES", {"layers": 1e-2, "lora": 1e-2})
    vlm = arr_coc.load(folder)
    layer = ArrCocLayer(config_for(vlm.adapter, **squares.SHAPE)).eval()
    (example,) = load_examples(vlm, read_folder(squares.draw(tmp_path / "data", 1)), layer.config, by_answer=True)
    example.questions = example.questions[:1]
    before = {name: weights.clone() for name, weights in vlm.model.state_dict().items()}
    vlm.calibration = Calibration({}, 0.0)
    done = finetune(vlm, layer, [example], [example], FinetuneConfig.parse(what, 8))
    assert (done.steps, done.finished) == (8, True)
    assert vlm.calibration is None  # it was of other weights
    assert done.losses["after"] < 0.85 * done.losses["before"]
    changed = {name for name, weights in vlm.model.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed
    assert all(map(is_language, changed))
    layer.save_pretrained(tmp_path / "out")  # as an older version wrote it: replaced
    Calibration({}, 0.0).save(tmp_path / "out")  # of the weights that were here before
    save_model(vlm, folder, layer, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").glob("*.safetensors")] == ["model.safetensors"]
    again = arr_coc.load(tmp_path / "out")
    assert again.calibration is None
    assert again.layer is not None
    assert again.layer.config == layer.config
    for name, weights in vlm.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weights), name
    image = read_folder(tmp_path / "data").pictures[0].still
    mine, its = (one.ask(image, "red?", budget=8, max_new_tokens=3) for one in (arr_coc.wrap(vlm.model, vlm.processor, layer=layer), again))  # fmt: skip
    assert mine.text == its.text
    assert torch.equal(mine.allocations[0].keep, its.allocations[0].keep)


def test_top_cells_are_nested_and_depend_on_the_question(tmp_path: Path) -> None:
    vlm = squares.model()
    layer = squares.layer(vlm).eval()
    (example,) = squares.examples(vlm, tmp_path, 1)
    some, more = (top_cells(layer, example, example.questions[0], share) for share in (0.125, 0.5))
    assert some.sum() == 8
    assert more.sum() == 32
    assert bool((more | ~some).all())  # the larger set contains the smaller
    assert not torch.equal(some, top_cells(layer, example, example.questions[1], 0.125))


def test_small_updates_are_not_lost_in_half_precision() -> None:
    weights = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    masters = MasterWeights([weights])
    for _ in range(40):
        weights.grad = torch.ones_like(weights)
        masters.step(2e-4, World())  # bfloat16 has no number between 0.996 and 1
    assert weights.dtype == torch.bfloat16
    assert torch.allclose(weights.float(), torch.tensor(0.992), atol=4e-3)
    assert bool((weights < 1).all())


def test_a_stop_signal_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    examples = squares.examples(vlm, tmp_path, 1, by_answer=True)

    class Requested(finetuning.StopSignals):
        def __enter__(self) -> Any:
            self.requested = True
            return super().__enter__()

    monkeypatch.setattr(finetuning, "StopSignals", Requested)
    done = finetune(vlm, squares.layer(vlm), examples, [], FinetuneConfig.parse("lora:2", 5))
    assert (done.steps, done.finished, done.losses) == (0, False, {})


def test_bad_input(tmp_path: Path) -> None:
    for wrong in ("layers", "layers:0", "lora:x", "heads:2", "lora:-1", ""):
        with pytest.raises(ArrCocError, match=f"expected to adapt layers:N .* or lora:R .*, got '{wrong}'"):
            FinetuneConfig.parse(wrong)
    with pytest.raises(ArrCocError, match="expected steps of adapting from 1 on, got 0"):
        FinetuneConfig.parse("lora:2", 0)
    vlm = squares.model()
    examples = squares.examples(vlm, tmp_path, 1)
    with pytest.raises(ArrCocError, match="expected 1 to 4 layers"):
        finetune(vlm, squares.layer(vlm), examples, [], FinetuneConfig.parse("layers:9"))
    with pytest.raises(ArrCocError, match="expected questions with answers"):
        finetune(vlm, squares.layer(vlm), [], [], FinetuneConfig.parse("layers:1"))
    vlm.model.half()
    with pytest.raises(ModelError, match="expected a model in bfloat16 or float32 to adapt, got float16"):
        finetune(vlm, squares.layer(vlm), examples, [], FinetuneConfig.parse("layers:1"))
