"""`arr_coc.evaluate`: the same questions with the same model, answered from the cells that each selector keeps."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from arr_coc import selectors as registry
from arr_coc.adapters.loading import keep_quiet
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import ArrCocError, BudgetError, DataError, ImageError, PromptError, SelectorError, whole_number
from arr_coc.evaluation.data import Data, PictureQuestions
from arr_coc.evaluation.entries import DENSE, RANDOM, Entry, make_entries
from arr_coc.evaluation.measure import AttentionCost, EvalConfig, PictureRun, Trial, measure_attention_cost
from arr_coc.evaluation.readers import read_data
from arr_coc.evaluation.records import Records, fingerprint
from arr_coc.evaluation.report import Report, make_report
from arr_coc.layer.inference import layer_fingerprint
from arr_coc.selectors import SelectorLike
from arr_coc.types.budget import Budget
from arr_coc.types.budget import limit as limit_of
from arr_coc.types.workers import WorkerMap
from arr_coc.vlm.model import VLM

BUDGETS = ("25%", "12.5%", "6.25%")
SEEDS = 3  # of the random selector
TIMED = 12  # pictures on which one question is asked alone

Tick = Callable[[int, int, str], None]  # steps done, steps in all, what is measured now


class Interrupted(KeyboardInterrupt):
    """Stopped by the user; `done` of `total` pictures are kept in `folder` (None: nowhere)."""

    def __init__(self, done: int, total: int, folder: Path | None) -> None:
        self.done, self.total, self.folder = done, total, folder
        kept = f"they are kept in {str(folder)!r}, and the same run goes on"
        super().__init__(
            f"interrupted after {done} of {total} pictures: {kept if folder and done else 'nothing was kept'}"
        )


def evaluate(
    model: str | Path | VLM,
    data: str | Path | Data,
    selectors: Sequence[SelectorLike] | None = None,
    budgets: Sequence[Budget] = BUDGETS,
    *,
    glance: Budget = "all",
    glance_selector: SelectorLike | None = None,
    format: str = "samples",
    limit: int | None = None,
    kinds: Iterable[str] | None = None,
    seed: int = 0,
    seeds: int = SEEDS,
    tokens: int = 160,
    answers: bool = True,
    device: str | torch.device | None = None,
    embeddings: Embeddings | str | None = None,
    layer: str | Path | None = "auto",
    run: str | Path | None = None,
    fresh: bool = False,
    workers: WorkerMap | None = None,
    tick: Tick | None = None,
    then: Callable[[Report], None] | None = None,
) -> Report:
    """Answer every question of `data` from the cells that each selector keeps under each budget.

    `evaluate("reader", "data/receipts", selectors=["divprune", "random"], budgets=["25%", "6.25%"])`

    All input is checked before a model is loaded.

    Args:
        model: A model folder, a hub id, `"reader"`, or a wrapped model.
        data: A folder in a known `format`, or a `Data`.
        selectors: Names, objects, functions of a selector's input, or `"module:name"`. `"all"` is the dense model, which runs
            once. None: the default selectors.
        budgets: Counts, shares or `"mass 90%"`. `"all"` keeps every encoded cell, so selectors differ there only by a `glance`.
        glance: The share of cells that is encoded at all.
        glance_selector: Chooses those cells. None: each selector itself, or evenly spaced cells where it cannot.
        format: The layout of the folder: samples, vqav2, gqa, textvqa, docvqa, vizwiz, sroie, refcoco or pope.
        limit: Only the first pictures.
        kinds: Only questions of these kinds.
        seed: For everything that is random.
        seeds: How often the random selector runs, with different seeds.
        tokens: The longest answer, in tokens.
        answers: False judges the kept cells and generates nothing, which is much faster.
        device: Moves the model there. None: it stays where it is.
        embeddings: An image-text encoder, or its name, for selectors that need one (`coupling`).
        layer: The folder of a learned layer, "auto" for the one in the model's folder, "universal" for the one that ships and
            depends on no model, None for none.
        run: A folder for finished pictures; an interrupted run continues from there.
        fresh: Start again, even if `run` has finished pictures.
        workers: Measures pictures in other processes, such as `arr_coc.ray.Workers(2)`, which load the model by its name.
            Answers and cells are the same; times are those of busy processes.
        tick: Called with progress.
        then: Called with the report before the finished pictures in `run` are deleted, to save it.
    """
    for name, value, least in (("limit", limit, 1), ("seeds", seeds, 1), ("tokens", tokens, 1), ("seed", seed, 0)):
        if value is not None and whole_number(value, least) is None:
            raise ArrCocError(f"expected {name} as a whole number of at least {least}, got {value!r}")
    limit_of(glance, 1000, "glance")
    if glance_selector is not None:
        registry.selector(glance_selector)
    entries = make_entries(selectors)
    config = EvalConfig("exact", glance, glance_selector, tokens, answers, seed)
    trials, notes = make_trials(entries, budgets, config, seeds)
    asked = _load_data(data, format, limit, kinds)
    asked = replace(asked, notes=(*asked.notes, *notes))
    config = replace(config, metric=asked.metric)
    _check_entries(entries, asked, embeddings is not None or getattr(model, "embeddings", None) is not None)
    if workers is not None and (isinstance(model, VLM) or isinstance(embeddings, Embeddings)):
        raise ArrCocError(
            "expected the names of model and embeddings for several workers, got objects: they load their own"
        )
    opened = (model, device, embeddings, layer)
    vlm, name = _load_model(*opened)
    settings = {
        "model": name,
        "weights": _weights_digest(vlm),
        "data": _data_digest(asked),
        "rules": repr(config),
        "device": str(vlm.device),
        "layer": "" if vlm.layer is None else layer_fingerprint(vlm.layer),
        "universal": "" if vlm.universal is None else vlm.universal.fingerprint,
        "embeddings": "" if vlm.embeddings is None else vlm.embeddings.identity,
        "plan": [(one.entry.name, one.entry.settings, str(one.budget), one.seed) for one in trials],
    }
    mark = fingerprint(settings, [entry.source for entry in entries])
    records = Records(None if run is None else Path(run), mark, fresh)
    try:
        elsewhere = None if workers is None else partial(workers, partial(_open_model, *opened), measure_picture)
        unreadable = _measure_all(
            vlm, asked, trials, config, records, tick or (lambda done, total, what: None), elsewhere
        )
        asked = _leave_out(asked, unreadable) if unreadable else asked
        names = [entry.name for entry in (*entries, *(trial.entry for trial in trials))]
        report = make_report(name, asked, records.done, config, names, resumed=records.resumed)
        if then is not None:
            then(report)
        records.forget()
    finally:
        records.close()
    return report


def make_trials(
    entries: Sequence[Entry], budgets: Sequence[Budget], config: EvalConfig, seeds: int
) -> tuple[list[Trial], list[str]]:
    """Every selector at every budget, and a note for each one that is left out.

    The dense model runs once, the random selector with several seeds. At budget "all" selectors differ only in what
    they let the encoder see, so only those run that can choose that.
    """
    if isinstance(budgets, str | int) or not len(budgets):
        raise BudgetError(f'expected a list of budgets such as ["25%", 64], got {budgets!r}')
    for budget in budgets:
        limit_of(budget, 1000)
    known = list(dict.fromkeys(str(budget).strip().lower() for budget in budgets))
    partial = [budget for budget in known if not _is_everything(budget)]
    sparse = [entry for entry in entries if entry.name != DENSE]
    trials, notes = [], []
    if len(partial) < len(known) or len(sparse) < len(entries):
        trials.append(Trial(make_entries([DENSE])[0], "all", config.seed))
    by_budget = dict.fromkeys(partial, sparse)
    if len(partial) < len(known) and sparse:
        glancers, note = _entries_at_all(sparse, config)
        by_budget = {"all": glancers} | by_budget
        if note and (config.glancing or not partial):
            notes.append(f"budget all: {note}")
    for budget, some in by_budget.items():
        for entry in some:
            count = seeds if entry.name == RANDOM else 1
            trials.extend(Trial(entry, budget, config.seed + number) for number in range(count))
    return trials, notes


def _entries_at_all(entries: Sequence[Entry], config: EvalConfig) -> tuple[list[Entry], str]:
    """The entries that differ from the dense model when every encoded cell is kept, and why the others do not run."""
    if not config.glancing:
        names = ", ".join(entry.name for entry in entries)
        return (
            [],
            f"{names} would keep every cell, as the dense model does; left out: give a smaller budget or a glance",
        )
    if config.glance_selector is not None:
        (chosen,) = make_entries([config.glance_selector])
        return [chosen], f"every selector reads the cells that {chosen.name} chose, so only {chosen.name} runs"
    glancers = [entry for entry in entries if entry.glances and not entry.selector.early]
    others = ", ".join(entry.name for entry in entries if entry not in glancers)
    return glancers, f"left out because they cannot glance (select before encoding): {others}" if others else ""


def _is_everything(budget: str) -> bool:
    return budget == "all" or (budget.endswith("%") and not budget.startswith("mass") and float(budget[:-1]) == 100)


def _load_data(data: str | Path | Data, format: str, limit: int | None, kinds: Iterable[str] | None) -> Data:
    if isinstance(data, Data):
        found = data if limit is None else replace(data, pictures=data.pictures[:limit])
    else:
        found = read_data(data, format, limit)
    if kinds is not None:
        found = found.only(kinds)
    if not found.pictures:
        raise DataError("expected at least one question about a picture")
    return found


def _check_entries(entries: Sequence[Entry], data: Data, has_embeddings: bool) -> None:
    for entry in entries:
        kinds = entry.selector.kinds
        other = next((picture for picture in data.pictures if picture.kind not in kinds), None)
        if other is not None:
            raise SelectorError(
                f"selector {entry.name!r} chooses from {' and '.join(kinds)}s only, and {other.name!r} is "
                f"{'a video' if other.kind == 'video' else 'a still picture'}: leave the selector out"
            )
        if entry.selector.asks_embeddings and not has_embeddings:
            raise SelectorError(
                f"selector {entry.name!r} asks an image-text encoder, and there is none: name one with embeddings= "
                "(--embeddings labels)"
            )


@dataclass(frozen=True, eq=False)
class PictureTask:
    """One picture with all trials: what a worker measures."""

    picture: PictureQuestions
    trials: Sequence[Trial]
    config: EvalConfig
    cost: AttentionCost
    timed: int | None


def measure_picture(
    vlm: VLM, task: PictureTask, step: Callable[[str], None] = lambda name: None
) -> list[dict[str, Any]] | ImageError:
    """The rows of one picture, or why it cannot be decoded. `step` is called after each trial."""
    name = task.picture.name
    # Each picture has its own seed: one lucky draw must not decide a whole data set.
    seeded = [replace(t, seed=zlib.crc32(f"{t.seed} {name}".encode())) for t in task.trials]
    rows: list[dict[str, Any]] = []
    try:
        measured = PictureRun(vlm, task.picture, seeded, task.config, task.cost, task.timed)
        for trial, some in zip(task.trials, measured.rows(), strict=True):
            rows.extend(row | {"seed": trial.seed} for row in some)
            step(name)
    except ImageError as error:  # its header was valid, its pixels are not
        return error
    except PromptError as error:  # a question is longer than this model reads
        return ImageError(str(error))
    return rows


def _measure_all(
    vlm: VLM,
    data: Data,
    trials: Sequence[Trial],
    config: EvalConfig,
    records: Records,
    tick: Tick,
    elsewhere: Callable[[Sequence[PictureTask]], Iterator[list[dict[str, Any]] | ImageError]] | None,
) -> dict[str, str]:
    """Fill the records, here or in other processes; returns the pictures that could not be decoded, and why."""
    waiting = [picture for picture in data.pictures if picture.name not in records.done]
    total = len(data.pictures) * len(trials)
    done = total - len(waiting) * len(trials)
    unreadable: dict[str, str] = {}
    timed = timed_questions(data)
    tick(done, total, "warming up" if waiting else "")

    def step(name: str) -> None:
        nonlocal done
        done += 1
        tick(done, total, name)

    try:
        cost = _first_attention_cost(vlm, waiting, trials, config)
        tasks = [PictureTask(picture, trials, config, cost, timed.get(picture.name)) for picture in waiting]
        found = (measure_picture(vlm, task, step) for task in tasks) if elsewhere is None else elsewhere(tasks)
        for number, (picture, rows) in enumerate(zip(waiting, found, strict=True), start=1):
            done = total - (len(waiting) - number) * len(trials)
            if elsewhere is not None:
                tick(done, total, picture.name)
            if isinstance(rows, ImageError):
                unreadable[picture.name] = str(rows)
            else:
                records.add(picture.name, rows)
    except KeyboardInterrupt:
        raise Interrupted(len(records.done), len(data.pictures), records.path and records.path.parent) from None
    return unreadable


def _first_attention_cost(
    vlm: VLM, pictures: Sequence[PictureQuestions], trials: Sequence[Trial], config: EvalConfig
) -> AttentionCost:
    """Measured on the first picture that can be read."""
    for picture in pictures:
        try:
            return measure_attention_cost(vlm, picture, trials, config)
        except ImageError:  # `measure_picture` will say so
            continue
    return {}


def timed_questions(data: Data) -> dict[str, int]:
    """For each picture on which one question is asked alone and timed, the number of that question.

    These are all pictures with a single question, and `TIMED` of the others, evenly spread; questions take turns.
    """
    several = [picture for picture in data.pictures if len(picture.samples) > 1]
    some = [several[number * len(several) // TIMED] for number in range(TIMED)] if len(several) > TIMED else several
    turns = {picture.name: number % len(picture.samples) for number, picture in enumerate(some)}
    return turns | {picture.name: 0 for picture in data.pictures if len(picture.samples) == 1}


def _leave_out(data: Data, unreadable: dict[str, str]) -> Data:
    """The data without some pictures, whose questions become problems."""
    lost = [picture for picture in data.pictures if picture.name in unreadable]
    if len(lost) == len(data.pictures):
        raise DataError(f"expected pictures that can be read in {data.name!r} ({unreadable[lost[0].name]})")
    problems = [f"{data.where} {sample.line}: {unreadable[one.name]}" for one in lost for sample in one.samples]
    rest = tuple(picture for picture in data.pictures if picture.name not in unreadable)
    return replace(data, pictures=rest, problems=(*data.problems, *problems))


def _load_model(
    model: str | Path | VLM,
    device: str | torch.device | None,
    embeddings: Embeddings | str | None,
    layer: str | Path | None,
) -> tuple[VLM, str]:
    if isinstance(model, VLM):
        for name, given in (("layer", layer != "auto"), ("embeddings", embeddings is not None)):
            if given:
                raise ArrCocError(
                    f"this model is wrapped already: pass {name}= to arr_coc.wrap or arr_coc.load instead"
                )
        vlm, name = model, str(getattr(model.model.config, "name_or_path", "") or type(model.model).__name__)
    else:
        from arr_coc.vlm.api import load

        vlm, name = load(model, embeddings=embeddings, layer=layer), str(model)
    if device is not None:
        vlm.model.to(device)
    return vlm, name


def _open_model(*opened: Any) -> VLM:
    """The model in a worker process."""
    keep_quiet()
    return _load_model(*opened)[0]


def _weights_digest(vlm: VLM) -> list[Any]:
    """Enough to tell two models apart: the number of parameters, and the sums of some of them."""
    parameters = list(vlm.model.parameters())
    some = parameters[:: max(1, len(parameters) // 16)]
    return [sum(p.numel() for p in parameters), *(float(p.detach().double().sum()) for p in some)]


def _data_digest(data: Data) -> str:
    """A checksum of the questions, and of sizes and times of the picture files."""
    digest = 0
    for picture in data.pictures:
        files = [(one.stat().st_size, one.stat().st_mtime_ns) for one in picture.frames if isinstance(one, Path)]
        content: list[Any] = [picture.name, picture.size, picture.fps, files]
        content += [[s.question, s.answers, s.kind, s.evidence] for s in picture.samples]
        digest = zlib.crc32(json.dumps(content).encode(), digest)
    return f"{data.name} {len(data.pictures)} {digest}"
