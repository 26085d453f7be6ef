"""Training to read from few dimensions: what each stage trains, a whole run, and resuming it."""

import functools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch._dynamo.utils import counters

import arr_coc
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.errors import ArrCocError
from arr_coc.training.documents.page import FontSet, PageQuestion
from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader import folder, vocabulary
from recipes.reader.augment import without_augmentation
from recipes.reader.batches import Batch, pack
from recipes.reader.data import Library, TrainingBatches
from recipes.reader.forward import ReaderForward, all_cells, to_patches
from recipes.reader.losses import show
from recipes.reader.model import TINY, build
from recipes.reader.recipe import TINY_STEP_KINDS, Settings
from recipes.reader.validation import Sheet, ValidationAnswer, rendered_sheets
from recipes.texture_vlm import __main__ as command
from recipes.texture_vlm import experiment as experiments
from recipes.texture_vlm import results
from recipes.texture_vlm.branch import (
    KINDS,
    LANGUAGE,
    LIFT,
    Branch,
    TextureForward,
    TextureSettings,
    adapted_parameters,
)
from recipes.texture_vlm.experiment import Experiment, load_reader, token_moments
from recipes.texture_vlm.model import Lift, TextureEmbeddingVLM, encoder_identity
from tests.adapters import families
from tests.cli.conftest import without_progress

COMMON = Settings(seconds=500, warmup_steps=3, steps=12, workers=0, device="cpu", compiled=False)
SETTINGS = TextureSettings(
    common=COMMON, dims=(4, 12), hidden=32, lift_lr=1e-2, language_lr=1e-2, pictures=30, cells=16
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small reader from its folder, frozen. Its weights are large enough that what it sees matters."""
    torch.manual_seed(0)
    model = build(TINY)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(3)
    path = folder.write(model, tmp_path_factory.mktemp("tiny reader"), dtype=torch.float32)
    return load_reader(path, "cpu"), path


@pytest.fixture(scope="module")
def library(fonts: FontSet) -> Library:
    return Library(fonts)


@pytest.fixture(scope="module")
def sheets(library: Library) -> list[Sheet]:
    """One notice as it is, and one that counts as a receipt."""
    [sheet] = rendered_sheets(library, 1)[-1:]
    sheet = replace(sheet, questions=tuple(asked[:3] for asked in sheet.questions))
    return [replace(sheet, name="receipts"), sheet]


@pytest.fixture(scope="module")
def batch(library: Library) -> Batch:
    return TrainingBatches(library, TINY_STEP_KINDS, 0).make(random.Random(0), 1.0, TINY_STEP_KINDS[0])


@pytest.fixture(scope="module")
def moments(tiny: Any, library: Library) -> Moments:
    torch.manual_seed(0)
    batches = TrainingBatches(library, TINY_STEP_KINDS[:1], 1)
    return sum(
        (token_moments(ReaderForward(tiny[0]), batches.make(random.Random(n), 1.0), 24) for n in range(4)),
        start=Moments.empty(TINY.width),
    )


@pytest.fixture
def branch(tiny: Any, moments: Moments) -> Callable[..., Branch]:
    def make(dims: int = 8, **changes: Any) -> Branch:
        projection = fit_projection(moments, dims=dims, encoder=encoder_identity(tiny[0], tiny[0].model.language_model))
        return Branch(tiny[0], projection, float(moments.covariance.trace()), replace(SETTINGS, **changes))

    return make


def tokens(reader: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    shown = show(batch)
    with torch.no_grad():
        return shown.kept_tokens(ReaderForward(reader).encode(shown.patches, shown.cells, batch.grid[0]))


# The forward pass


def trained_a_little(lift: Lift) -> Lift:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in lift.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return lift


@torch.no_grad()
def test_the_batched_pass_is_that_of_the_model_for_users(reader: Any, picture: Any) -> None:
    """Both read the same picture from eight dimensions through the same lift: logit by logit."""
    model, processor = reader
    image, grid = picture(224, 252), (8, 9)
    vlm = arr_coc.wrap(model, processor)
    users = TextureEmbeddingVLM.fit(vlm, [picture(224, 252), picture(336, 280)], 8, hidden=16)
    trained_a_little(users.lift)
    forward = TextureForward(model, users.projection, users.lift)
    question = PageQuestion("a", "What is it?", "a cat")
    text, _, _ = pack([question], 40)
    asked, _, segment, place = (torch.from_numpy(part)[None] for part in text)
    cells = all_cells(1, 72, torch.device("cpu"))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    visual = forward.encode(to_patches(without_augmentation(pixels)), cells, grid[0])
    mine = forward.logits(visual, cells, grid, asked, segment, place)[0]
    theirs = model(**users.vlm.prepare(image, question.text)).logits[0, -1]
    last = len(vocabulary.encode(question.text))  # the assistant's mark behind the question
    torch.testing.assert_close(mine[last], theirs, atol=2e-4, rtol=1e-3)
    dense = model(**vlm.prepare(image, question.text)).logits[0, -1]
    assert (theirs - dense).abs().max() > 0.05


@torch.no_grad()
def test_untrained_branches_read_reconstructed_tokens(tiny: Any, branch: Callable[..., Branch], batch: Batch) -> None:
    one = branch(6)
    visual, cells = tokens(tiny[0], batch)
    projection, rows = one.projection, visual.flatten(0, 1)
    truth = projection.reconstruct(projection.transform(rows)).view(visual.shape)
    restored = one.forward.restore(visual)
    torch.testing.assert_close(restored, truth, atol=1e-5, rtol=1e-4)
    text = (batch.tokens, batch.segment, batch.place)
    expected = ReaderForward(tiny[0]).logits(truth, cells, batch.grid, *text)
    torch.testing.assert_close(one.forward.logits(restored, cells, batch.grid, *text), expected, atol=1e-4, rtol=1e-3)
    assert (expected - ReaderForward(tiny[0]).logits(visual, cells, batch.grid, *text)).abs().max() > 1e-2


# What is trained


def gradients(parts: Any) -> dict[str, bool]:
    return {name: p.grad is not None and bool(p.grad.abs().max() > 0) for name, p in parts}


@pytest.mark.parametrize("layers", [None, 1])
def test_each_stage_trains_exactly_its_parameters(
    tiny: Any, branch: Callable[..., Branch], batch: Batch, layers: int | None
) -> None:
    one = branch(8, layers=layers)
    visual, cells = tokens(tiny[0], batch)
    one.start_stage(LIFT)
    one.backward(LIFT, visual, cells, batch)
    lift, rest = gradients(one.lift.named_parameters()), gradients(one.model.named_parameters())
    assert all(lift.values())
    assert not any(rest.values())
    assert len(lift) == 2 + 4 + 4  # a linear map, and two networks of two layers
    one.start_stage(LANGUAGE)
    one.backward(LANGUAGE, visual, cells, batch)
    lift, rest = gradients(one.lift.named_parameters()), gradients(one.model.named_parameters())
    adapted = {name for name, _ in adapted_parameters(one.model, layers)}
    assert all(lift.values())
    assert {name for name, reached in rest.items() if reached} == adapted
    first = "model.language_model.layers.0.mlp.down_proj.weight"
    assert (first in adapted) == (layers is None)
    assert {"model.language_model.norm.weight", "model.language_model.layers.1.mlp.down_proj.weight"} <= adapted
    assert not any("visual" in name or "embed_tokens" in name for name in adapted)
    assert not any(p.requires_grad for p in tiny[0].parameters())


def test_trained_weights_belong_to_the_branch_and_the_rest_is_shared(
    tiny: Any, branch: Callable[..., Branch], batch: Batch
) -> None:
    one, before = branch(8), {name: p.clone() for name, p in tiny[0].named_parameters()}
    own = {name for name, _ in adapted_parameters(tiny[0], None)}
    shared = dict(tiny[0].named_parameters())
    for name, parameter in one.model.named_parameters():
        assert (parameter is shared[name]) == (name not in own), name
    one.start_stage(LANGUAGE)
    one.backward(LANGUAGE, *tokens(tiny[0], batch), batch)
    one.update(0.01)
    assert all(torch.equal(before[name], p) for name, p in tiny[0].named_parameters())
    assert all(not torch.equal(before[name], p) for name, p in adapted_parameters(one.model, None) if p.ndim > 1)


def test_too_many_layers_are_refused(tiny: Any) -> None:
    with pytest.raises(ArrCocError, match="at most the 2 layers that the language model has, got 3"):
        adapted_parameters(tiny[0], 3)


def test_the_initial_unexplained_share_is_the_variance_outside_the_components(
    tiny: Any, branch: Callable[..., Branch], batch: Batch
) -> None:
    visual, cells = tokens(tiny[0], batch)
    own = Moments.of(visual.flatten(0, 1))
    projection = fit_projection(own, dims=5, encoder="these very tokens")
    one = Branch(tiny[0], projection, float(own.covariance.trace()), SETTINGS)
    one.start_stage(LIFT)
    missing = one.backward(LIFT, visual, cells, batch).unexplained.item()
    assert missing == pytest.approx(1 - float(projection.variance.sum()), abs=1e-5)
    assert missing > 0.01


# A whole run


def experiment(
    tiny: Any, library: Library, sheets: list[Sheet], out: Path, settings: TextureSettings = SETTINGS
) -> Experiment:
    return Experiment(settings, tiny[0], library, sheets, out, kinds=TINY_STEP_KINDS)


def loss(branch: Branch, reader: Any, library: Library) -> float:
    """Over some batches that no training sees."""
    found = []
    for number in range(3):
        kind = TINY_STEP_KINDS[0]
        batch = TrainingBatches(library, TINY_STEP_KINDS, 77).make(random.Random(number), 1.0, kind)
        visual, cells = tokens(reader, batch)
        found.append(branch.backward(LIFT, visual, cells, batch).answer.item())
    return sum(found) / len(found)


def test_a_run_trains_both_stages_measures_and_writes_the_table(
    tiny: Any, library: Library, sheets: list[Sheet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(SETTINGS, common=replace(COMMON, steps=25))
    run = experiment(tiny, library, sheets, tmp_path, settings)
    losses: dict[str, list[float]] = {}
    measured = run._measure

    def watched(name: str) -> bool:
        losses[name] = [loss(branch, tiny[0], library) for branch in run.branches]
        return measured(name)

    run._measure = watched  # type: ignore[method-assign]
    state = run.run()
    assert [entry["steps"] for entry in state.history] == [25, 25]
    assert state.images == 50 * 6
    for pca, lift, language in zip(losses["pca"], losses["lift"], losses["language"], strict=True):
        assert lift < pca - 0.02
        assert language < lift - 0.5
    found = json.loads((tmp_path / "table.json").read_text())
    assert set(found["results"]) == {"dense", *(f"{k} {name}" for k in (4, 12) for name in results.CASES)}
    assert 0 < found["variance"]["4"] < found["variance"]["12"] < 1
    for report in found["results"].values():
        row = report["receipts: all"]
        assert (
            row["count"]
            == sum(r["count"] for kind, r in report.items() if kind.startswith("receipts: ")) - row["count"]
        )
        assert row["interval"][0] <= row["exact"] <= row["interval"][1]
    table = (tmp_path / "table.md").read_text()
    assert table.count("language model adapted") == 2 + 2
    assert "12 dimensions, " in table
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["case"] for line in log if "case" in line] == list(found["results"])
    # What it wrote is what a user reads, and it is what was trained.
    vlm = arr_coc.load(tiny[1])
    for branch in run.branches:
        read = TextureEmbeddingVLM.from_pretrained(tmp_path / f"texture{branch.dims}", vlm)
        for name, parameter in branch.lift.state_dict().items():
            assert torch.equal(read.lift.state_dict()[name], parameter)
        for name, parameter in adapted_parameters(read.vlm.model, None):
            wanted = branch.model.get_parameter(name)
            torch.testing.assert_close(parameter, wanted, atol=1e-2, rtol=1e-2)
            assert wanted.ndim == 1 or not torch.equal(parameter, tiny[0].get_parameter(name))
    # Called again it finds everything done.
    again = experiment(tiny, library, sheets, tmp_path, settings)
    assert again.run().history == state.history
    assert "everything is done" in capsys.readouterr().out
    assert (tmp_path / "table.md").read_text() == table


def test_a_branch_does_not_depend_on_the_other_branches(
    tiny: Any, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, common=replace(COMMON, steps=3))
    # The learning rate follows the clock, which two runs do not share.
    monkeypatch.setattr(Settings, "rate", lambda settings, step, progress: settings.lr)
    pair = experiment(tiny, library, [], tmp_path / "pair", settings)
    pair.run()
    alone = experiment(tiny, library, [], tmp_path / "alone", replace(settings, dims=(12,)))
    alone.run()
    paired, alone_branch = pair.branches[1], alone.branches[0]
    assert paired.dims == alone_branch.dims == 12
    for one, other in zip(paired.lift.parameters(), alone_branch.lift.parameters(), strict=True):
        assert torch.equal(one, other)
    for (name, one), (_, other) in zip(
        adapted_parameters(paired.model, None), adapted_parameters(alone_branch.model, None), strict=True
    ):
        assert torch.equal(one, other), name


def test_a_stopped_call_is_resumed(
    tiny: Any, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = experiment(tiny, library, [], tmp_path)
    steps = first.step

    def until_the_fifth(progress: float) -> int:
        if first.state.stage == LANGUAGE and first.state.step == 4:
            first.stop.requested = True
        return steps(progress)

    first.step = until_the_fifth  # type: ignore[method-assign]
    state = first.run()
    assert (state.stage, state.step, state.trained) == (LANGUAGE, 5, False)
    images = state.images
    monkeypatch.setattr(experiments, "gather_moments", None)  # the components are saved
    second = experiment(tiny, library, [], tmp_path)
    resumed: list[int] = []
    inner = second.step

    def watched(progress: float) -> int:
        if not resumed:
            for mine, theirs in zip(second.branches, first.branches, strict=True):
                torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
        resumed.append(second.state.step)
        return inner(progress)

    second.step = watched  # type: ignore[method-assign]
    state = second.run()
    assert resumed == list(range(5, 12))
    assert [entry["steps"] for entry in state.history] == [12, 12]
    assert state.images == images + 7 * 6
    with pytest.raises(ArrCocError, match=r"is of a run with dims \[4, 12\], this call has \[4\]"):
        experiment(tiny, library, [], tmp_path, replace(SETTINGS, dims=(4,))).run()
    with pytest.raises(ArrCocError, match="of another reader's encoder"):
        Experiment(
            SETTINGS, build(TINY).eval().requires_grad_(False), library, [], tmp_path, kinds=TINY_STEP_KINDS
        ).run()


def test_time_is_divided_between_the_stages_and_measuring(tiny: Any, library: Library, tmp_path: Path) -> None:
    run = experiment(tiny, library, [], tmp_path)
    run.state.measuring = 50.0
    first = run._stage_end()
    assert first == pytest.approx(0.4 * (500 - 2 * 50 * 1.2 - 4), abs=2)
    run.state.seconds = 100.0  # trained by an earlier call
    assert run._stage_end() == pytest.approx(0.4 * (376 + 100) - 100, abs=2)
    run.state.stage = LANGUAGE
    assert run._stage_end() == pytest.approx(500 - 50 * 1.2 - 4, abs=2)
    run.state.measuring = 500.0
    with pytest.raises(ArrCocError, match="500 s leave no time to train: 604 s go to"):
        run._stage_end()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own doing
def test_nothing_is_compiled_while_the_clock_runs(
    tiny: Any, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of step is compiled once for each stage, whatever the number of branches."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    common = replace(COMMON, steps=2, compiled=True)
    run = Experiment(replace(SETTINGS, common=common), tiny[0], library, [], tmp_path, kinds=TINY_STEP_KINDS[1:2])
    graphs: list[int] = []
    inner = run.step

    def watched(progress: float) -> int:
        graphs.append(counters["stats"]["unique_graphs"])
        return inner(progress)

    run.step = watched  # type: ignore[method-assign]
    torch._dynamo.reset()
    counters.clear()
    run.run()
    assert graphs == [3] * 4  # the encoder's block, the language layer frozen and trained
    assert counters["stats"]["unique_graphs"] == 3


# The table


def test_the_report_counts_pictures_and_kinds() -> None:
    def answered(sheet: str, picture: int, kind: str, right: bool) -> ValidationAnswer:
        return ValidationAnswer(sheet, picture, PageQuestion(kind, "?", "9.00"), "9.00" if right else "8.00")

    found = results.report(
        [answered("receipts", n, kind, n % 2 == 0) for n in range(8) for kind in ("total", "date")]
        + [answered("rendered form", 10 + n, "field", True) for n in range(4)]
        + [ValidationAnswer("rendered form", 10, PageQuestion("field", "?", NOT_FOUND), "9.00")]
    )
    assert list(found) == [
        "receipts: all", "receipts: date", "receipts: total", "drawings: all", "rendered form: field",
        f"rendered form: {NOT_FOUND}",
    ]  # fmt: skip
    assert found["receipts: all"]["exact"] == 0.5
    assert found["receipts: all"]["count"] == 16
    assert found["drawings: all"]["exact"] == 0.8
    # Both questions about a picture are right or wrong together: as sure as 8, not as 16.
    assert found["receipts: all"]["interval"] == found["receipts: total"]["interval"]


# The command


def test_the_command_runs_from_folders(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    receipts = tmp_path / "receipts"
    receipts.mkdir()
    Image.new("L", (400, 900), 255).save(receipts / "a.jpg")
    record = {"fields": {"total": "9.00"}, "lines": [["TOTAL 9.00", [40, 60, 200, 84]]]}
    (receipts / "recs.json").write_text(json.dumps({"a": record}))
    monkeypatch.setattr(command, "Experiment", functools.partial(Experiment, kinds=TINY_STEP_KINDS))
    monkeypatch.setattr(command, "receipt_sheets", lambda receipts: [])
    monkeypatch.setattr(command, "rendered_sheets", lambda library, count: [])
    fonts = str(Path(matplotlib.get_data_path(), "fonts", "ttf"))
    given = ["--fonts", fonts, "--receipts", str(receipts), "--reader", str(tiny[1]), "--out", str(tmp_path / "run")]
    given += ["--device", "cpu", "--eager", "--workers", "0", "--dims", "4", "--hidden", "8", "--pictures", "12"]
    command.main([*given, "--seconds", "9"])
    assert not without_progress(capsys.readouterr().err)
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "table.md",
        "table.json",
        "texture4",
        "checkpoint.pt",
    }
    for wrong, sentence in (
        (["--dims", "4", "4"], "all different"),
        (["--first-share", "1"], "between 0 and 1"),
        (["--device", "nowhere"], "there is no device"),
        (["--reader", "/nowhere"], "/nowhere"),
    ):
        with pytest.raises(SystemExit, match="2"):
            command.main([*given, *wrong])
        assert sentence in capsys.readouterr().err


def test_the_steps_leave_out_what_needs_more_compiling() -> None:
    assert {kind.name for kind in KINDS} >= {"small", "medium", "page", "page, half encoded"}
    assert len({(kind.kept, kind.text) for kind in KINDS}) == 3


def test_other_models_are_no_readers(tmp_path: Path) -> None:
    families.model("qwen2_vl").save_pretrained(tmp_path)
    loaded = load_reader(tmp_path, "cpu")  # these have the reader's alphabet
    assert not any(p.requires_grad for p in loaded.parameters())
    config = families.qwen2_vl()
    config.text_config.vocab_size = 200
    transformers.Qwen2VLForConditionalGeneration._from_config(config).save_pretrained(tmp_path / "b")
    with pytest.raises(ArrCocError, match="expected a reader, with 128 words, got a model with 200"):
        load_reader(tmp_path / "b", "cpu")
