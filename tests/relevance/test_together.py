"""Several pictures in one pass: the same cells as one by one, and no wait for the device before everything is launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from arr_coc import TextureArray
from arr_coc.devices import Stopwatch
from arr_coc.draw import samples
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.batching import pad_views
from arr_coc.layer.inference import CellFeatures, LayerPredictor
from arr_coc.layer.model import LayerConfig
from arr_coc.layer.universal import shipped_layer
from arr_coc.relevance import selector as chooser
from arr_coc.relevance import together
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors.base import ImageSource, SelectionInput
from arr_coc.texture.kernels import used, using
from arr_coc.types.grid import Grid
from tests.precision import full_precision
from tests.selectors.selections import selection, words

CPU = torch.device("cpu")
WIDTH = 12
QUESTIONS = ("What is the total amount?", "Which company is it?", "What is the date?")


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU one pass costs more than it saves, so nothing would be tested."""
    monkeypatch.setattr(chooser, "pays_together", lambda device: True)


@cache
def pictures() -> list[Image.Image]:
    """Pages, a photo and an empty picture, all of different shapes."""
    receipt = samples.receipt()
    return [
        receipt.resize((240, 420)),
        receipt.crop((0, 0, 473, 400)),
        receipt.resize((420, 240)),
        Image.new("RGB", (300, 300), "white"),
        Image.effect_noise((260, 380), 60).convert("RGB"),
    ]


def selections(layer: ArrCocLayer | None = None, encoded: bool = False) -> list[SelectionInput]:
    """One for each of the pictures, with the universal layer or with `layer`; `encoded`: with tokens of some cells."""
    found = []
    for number, picture in enumerate(pictures()):
        grid = Grid(1, max(1, picture.height // 28), max(1, picture.width // 28))
        predictor = LayerPredictor(layer, CPU)
        question = replace(words(), text=QUESTIONS[number % len(QUESTIONS)], ids=torch.arange(3 + number))
        if layer is not None:
            made = torch.randn(3 + number, WIDTH, generator=torch.Generator().manual_seed(number))
            question = replace(question, embed=lambda ids, made=made: made)
        given: dict[str, Any] = {"tokens": None, "source": ImageSource(picture, picture.size), "question": question}
        given["universal" if layer is None else "layer"] = predictor
        if encoded:
            given["candidates"] = torch.arange(0, grid.n, 1 + number % 2)
            given["tokens"] = torch.randn(
                len(given["candidates"]), WIDTH, generator=torch.Generator().manual_seed(9 + number)
            )
        found.append(selection(grid, grid.n // 4, **given))
    return found


def own_layer() -> ArrCocLayer:
    torch.manual_seed(0)
    made = ArrCocLayer(LayerConfig("some", token_width=WIDTH, word_width=WIDTH, width=16, heads=2)).eval()
    for weights in made.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    torch.nn.init.constant_(made.coupling.own.bias, 6.0)  # sure, so that it decides
    made.unusual.zero_()
    return made


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_the_same_cells_as_one_by_one(own: bool, encoded: bool) -> None:
    layer = own_layer() if own else None
    selector = ArrCoc()
    call = selector.select if encoded else selector.before_encoding
    alone = [call(one) for one in selections(layer, encoded)]
    ready = selector.prepare(selections(layer, encoded))
    batched = [call(one) for one in ready]
    for one, other in zip(alone, batched, strict=True):
        assert torch.equal(one.keep, other.keep)
        assert one.rule == other.rule
        assert one.relevance is not None
        assert other.relevance is not None
        assert torch.allclose(one.relevance, other.relevance, atol=1e-4)
    assert len({one.rule for one in alone}) > 1  # pictures of different kinds


def test_each_picture_is_judged_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    selector, calls = ArrCoc(), []
    layer = own_layer()
    score = layer.score

    def counted(*given: Any) -> Any:
        calls.append(len(given[1]))
        return score(*given)

    monkeypatch.setattr(layer, "score", counted)
    for one in selector.prepare(selections(layer)):
        selector.before_encoding(one)
    assert calls == [len(pictures())]


def test_under_auto_only_familiar_pictures_are_judged() -> None:
    automatic = [replace(one, k=None) for one in selections()]
    selector = ArrCoc()
    alone = [selector.before_encoding(replace(one, k=None)) for one in selections()]
    batched = [selector.before_encoding(one) for one in selector.prepare(automatic)]
    assert [one.rule for one in alone] == [one.rule for one in batched]
    for one, other in zip(alone, batched, strict=True):
        assert torch.equal(one.keep, other.keep)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("universal", [False, True])
@torch.no_grad()
def test_padding_changes_no_other_cell(universal: bool, multiple: int) -> None:
    layer = shipped_layer(CPU) if universal else own_layer()
    pixels, channels = 3 * layer.config.pixels**2, len(layer.config.channels)
    views = [
        CellFeatures(torch.rand(1, channels, h, w), torch.rand(1, pixels, h, w)) for h, w in ((3, 9), (7, 2), (1, 1))
    ]
    question = layer.words(torch.rand(1, 6, 1 if universal else WIDTH).mul(90), torch.ones(1, 6, dtype=torch.bool))
    mask = torch.ones(3, 6, dtype=torch.bool)
    together_, valid = pad_views(views, multiple)
    assert valid is not None
    batch = layer.encode_view(together_.channels, together_.pixels, valid=valid)
    found = layer.score(batch, question.expand(3, -1, -1), mask)
    blind = layer.score(layer.encode_view(together_.channels, together_.pixels), question.expand(3, -1, -1), mask)
    for number, view in enumerate(views):
        _, h, w = view.shape
        plain = layer.score(layer.encode_view(view.channels, view.pixels), question, mask[:1])
        here = found.relevance[number].view(valid.shape[1:])[:h, :w].flatten()
        assert torch.allclose(here, plain.relevance[0], atol=1e-3), number
        assert torch.allclose(found.weights[number], plain.weights[0], atol=1e-4)
        unmasked = blind.relevance[number].view(valid.shape[1:])[:h, :w].flatten()
        assert not torch.allclose(unmasked, plain.relevance[0], atol=1e-3)  # the mask is what does it
    if universal:
        inside = valid.flatten(1)
        doubts = layer.doubt_logits(question.expand(3, -1, -1), mask, found, inside)  # type: ignore[operator]
        for number, view in enumerate(views):
            plain = layer.score(layer.encode_view(view.channels, view.pixels), question, mask[:1])
            assert torch.allclose(doubts[number], layer.doubt_logits(question, mask[:1], plain)[0], atol=1e-3)  # type: ignore[operator]


class Reads(TorchDispatchMode):
    """Counts what would make the host wait for a device: a tensor's value as a number, and results of unknown size."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in self.WAITING or (
            name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1])
        ):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


def test_the_device_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels (here in Triton's interpreter), as on a GPU: nothing is read before all is launched, then all at once."""
    pytest.importorskip("triton")
    from arr_coc.texture.kernels import saliency

    given, device = [], torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layer, watch = LayerPredictor(own_layer(), device), Stopwatch(device)
    for one, picture in zip(selections(own_layer()), pictures()[:2], strict=False):
        grid, small = Grid(1, 3, 4), picture.resize((48, 36))
        changes: dict[str, Any] = {"source": ImageSource(small, small.size), "layer": layer, "watch": watch}
        given.append(replace(one, grid=grid, k=5, candidates=torch.arange(grid.n), **changes))
    monkeypatch.setattr(saliency, "RANGE_BLOCKS", 2)  # programs, which are slow in the interpreter
    reads, before = Reads(), []
    fetch = together.fetch

    def once(found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        before.append(list(reads.found))
        return fetch(found)

    monkeypatch.setattr(together, "fetch", once)
    with using("triton"):
        for one in given:
            assert one.textures  # reading the pictures is the host's work
        with reads:
            together.prepare(given)
        assert used()["pointwise channels"] == "triton"
    assert before == [[]]
    for one in given:  # what the kernels wrote for both is what torch computes for each
        with using("torch"):
            plain = TextureArray.from_image(one.source.picture)  # type: ignore[union-attr]
            for name in ("edges", "edges_inverted", "highpass", "lowpass", "distance", "saliency"):
                assert float(((one.texture[name].cpu() - plain[name]).abs() > 1e-5).float().mean()) < 0.01, name


def test_the_count_of_reads_counts() -> None:
    with Reads() as reads:
        assert float(torch.ones(3).sum()) == 3
        torch.ones(3)[torch.ones(3) > 0]
    assert reads.found == ["_local_scalar_dense", "index"]


def test_a_failure_is_left_to_the_picture_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(together, "write_together", fails)
    from arr_coc.selectors.registry import call_prepare

    given = selections()
    assert call_prepare(ArrCoc(), given) is given


def test_on_a_cpu_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    given = selections()[:2]
    assert ArrCoc().prepare(given) is given


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("same", [False, True])
def test_on_a_gpu_the_same_cells_recorded_or_not(same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third batch of a size on, textures and layer run as graphs."""
    monkeypatch.undo()
    device, selector = torch.device("cuda"), ArrCoc()

    def shown() -> list[SelectionInput]:
        predictor, watch = LayerPredictor(None, device), Stopwatch(device)
        given = [replace(one, universal=predictor, watch=watch) for one in selections()]
        return [replace(given[0], source=ImageSource(pictures()[0])) for _ in given] if same else given

    with full_precision():  # convolutions of one picture and of five round differently in TF32
        alone = [selector.before_encoding(one) for one in shown()]
        for _ in range(5):
            batched = [selector.before_encoding(one) for one in selector.prepare(shown())]
            assert [one.keep.tolist() for one in batched] == [one.keep.tolist() for one in alone]
