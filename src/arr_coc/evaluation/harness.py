"""`arr_coc.evaluate`: the same questions with the same model, answered from the cells that each selector keeps."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arr_coc import selectors as known
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import ArrCocError, BudgetError, DataError, ImageError, SelectorError, whole_number
from arr_coc.evaluation import readers
from arr_coc.evaluation.contestants import DENSE, RANDOM, Contestant, contestants
from arr_coc.evaluation.data import Data, Picture
from arr_coc.evaluation.measuring import Rules, Setting, Surcharge, measure, surcharge
from arr_coc.evaluation.records import Records, fingerprint
from arr_coc.evaluation.report import Report, report
from arr_coc.layer import identity as fitting
from arr_coc.selectors import SelectorLike
from arr_coc.types.budget import Budget
from arr_coc.types.budget import limit as limit_of
from arr_coc.vlm.model import VLM

BUDGETS = ("25%", "12.5%", "6.25%")
SEEDS = 3  # of the random choice
TIMED = 12  # pictures on which one question is asked alone

Tick = Callable[[int, int, str], None]  # done, of how many, what comes now


class Interrupted(KeyboardInterrupt):
    """Stopped by the user; `done` of `total` pictures are kept in `folder` (None: nowhere)."""

    def __init__(self, done: int, total: int, folder: Path | None) -> None:
        self.done, self.total, self.folder = done, total, folder
        saved = (
            "nothing was kept"
            if folder is None or not done
            else f"they are kept in {str(folder)!r}, and the same run goes on"
        )
        super().__init__(f"interrupted after {done} of {total} pictures: {saved}")


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
    tick: Tick | None = None,
    then: Callable[[Report], None] | None = None,
) -> Report:
    """Answer every question of `data` from the cells that each selector keeps under each budget.

    `model`: a name, a folder or a wrapped model. `data`: a folder in a known `format`, or a `Data`. `selectors`: names,
    objects, functions of a sight, `"module:name"`; `"all"` is the dense model, asked once, as is the budget `"all"`.
    `glance` is the share of cells that is encoded at all, chosen by `glance_selector` or, without one, by each selector
    itself (evenly where it cannot). `limit`: so many pictures; `kinds`: only such questions. `seeds`: how often the
    random choice is drawn. `tokens`: the longest answer; `answers=False` generates none and looks at the cells alone.
    `embeddings`, or an encoder's name: for selectors that ask an image-text encoder (`coupling`), where the model was not
    wrapped with any. `layer`: a learned layer's folder, "auto" for the model's own, None to do without. `run`: a folder that keeps what is done, so that an interrupted run goes on there; `fresh` starts anew. `then` gets the
    report, to write it somewhere, before the folder forgets the run.
    """
    asked = check(
        data, selectors, budgets, glance=glance, glance_selector=glance_selector, format=format, limit=limit,
        kinds=kinds, seed=seed, seeds=seeds, tokens=tokens,
    )  # fmt: skip
    field = contestants(selectors)
    plan = settings(field, budgets, seed, seeds)
    rules = Rules(asked.metric, glance, glance_selector, tokens, answers, seed)
    if embeddings is None and getattr(model, "embeddings", None) is None:
        for one in field:
            if one.sample.asks_embeddings:
                raise SelectorError(
                    f"selector {one.name!r} asks an image-text encoder, and there is none: name one with embeddings= "
                    "(--embeddings labels)"
                )
    vlm, name = _model(model, device, embeddings, layer)
    folder = None if run is None else Path(run)
    settings_said = {
        "model": name, "weights": _weights(vlm), "data": _asked(asked), "rules": repr(rules), "device": str(vlm.device),
        "layer": "" if vlm.layer is None else fitting.mark(vlm.layer),
        "embeddings": "" if vlm.embeddings is None else vlm.embeddings.identity,
        "plan": [(one.contestant.name, one.contestant.settings, str(one.budget), one.seed) for one in plan],
    }  # fmt: skip
    mark = fingerprint(settings_said, [one.source for one in field])
    records = Records(folder, mark, fresh)
    try:
        unread = _measure_all(vlm, asked, plan, rules, records, tick or (lambda done, of, what: None))
        asked = _without(asked, unread) if unread else asked
        found = report(name, asked, records.done, rules, [one.name for one in field], resumed=records.resumed)
        if then is not None:
            then(found)
        records.forget()
    finally:
        records.close()
    return found


def check(
    data: str | Path | Data, selectors: Sequence[SelectorLike] | None = None, budgets: Sequence[Budget] = BUDGETS, *,
    glance: Budget = "all", glance_selector: SelectorLike | None = None, format: str = "samples",
    limit: int | None = None, kinds: Iterable[str] | None = None, seed: int = 0, seeds: int = SEEDS, tokens: int = 160,
    answers: bool = True,
) -> Data:  # fmt: skip
    """The questions that `evaluate` would ask; complains about everything that can be wrong before a model is there."""
    for name, value, least in (("limit", limit, 1), ("seeds", seeds, 1), ("tokens", tokens, 1), ("seed", seed, 0)):
        if value is not None and whole_number(value, least) is None:
            raise ArrCocError(f"expected {name} as a whole number of at least {least}, got {value!r}")
    field = contestants(selectors)
    settings(field, budgets, seed, seeds)
    limit_of(glance, 1000, "glance")
    if glance_selector is not None:
        known.selector(glance_selector)
    asked = data if isinstance(data, Data) else readers.read(data, format, limit)
    if isinstance(data, Data) and limit is not None:
        asked = replace(data, pictures=data.pictures[:limit])
    if kinds is not None:
        asked = asked.only(kinds)
    if not asked.pictures:
        raise DataError("expected at least one question about a picture")
    for one in field:
        other = next((picture for picture in asked.pictures if picture.kind not in one.sample.kinds), None)
        if other is not None:
            raise SelectorError(
                f"selector {one.name!r} chooses from {' and '.join(one.sample.kinds)}s only, and {other.name!r} is "
                f"{'a video' if other.kind == 'video' else 'a still picture'}: leave the selector out"
            )
    return asked


def settings(field: Sequence[Contestant], budgets: Sequence[Budget], seed: int, seeds: int) -> list[Setting]:
    """Everybody under every budget; the dense model once, the random choice several times."""
    if isinstance(budgets, str | int) or not len(budgets):
        raise BudgetError(f'expected a list of budgets such as ["25%", 64], got {budgets!r}')
    for budget in budgets:
        limit_of(budget, 1000)
    sparse = list(dict.fromkeys(str(b).strip().lower() for b in budgets if not _everything(b)))
    plan = []
    if len(sparse) < len(set(map(str, budgets))) or any(one.name == DENSE for one in field):
        plan.append(Setting(contestants([DENSE])[0], "all", seed))
    for budget in sparse:
        for one in field:
            if one.name != DENSE:
                draws = seeds if one.name == RANDOM else 1
                plan.extend(Setting(one, budget, seed + draw) for draw in range(draws))
    return plan


def _everything(budget: Budget) -> bool:
    text = str(budget).strip().lower()
    return text == "all" or (text.endswith("%") and float(text[:-1]) == 100)


def _measure_all(
    vlm: VLM, data: Data, plan: Sequence[Setting], rules: Rules, records: Records, tick: Tick
) -> dict[str, str]:  # fmt: skip
    """Fill the records; returns the pictures that could not be read after all, and why."""
    waiting = [picture for picture in data.pictures if picture.name not in records.done]
    total = len(data.pictures) * len(plan)
    done = total - len(waiting) * len(plan)
    unread: dict[str, str] = {}
    turns = timed(data)
    extra: Surcharge | None = None
    tick(done, total, "warming up" if waiting else "")
    try:
        for number, picture in enumerate(waiting, start=1):
            rows: list[dict[str, Any]] = []
            own = [_seeded(one, picture) for one in plan]
            try:
                extra = extra or surcharge(vlm, picture, plan, rules)
                found = measure(vlm, picture, own, rules, extra, turns.get(picture.name))
                for setting, some in zip(plan, found, strict=True):
                    rows.extend(row | {"seed": setting.seed} for row in some)
                    done += 1
                    tick(done, total, picture.name)
            except ImageError as error:  # its header was sound, its pixels are not
                unread[picture.name] = str(error)
                done = total - (len(waiting) - number) * len(plan)
                continue
            records.add(picture.name, rows)
    except KeyboardInterrupt:
        raise Interrupted(len(records.done), len(data.pictures), records.path and records.path.parent) from None
    return unread


def timed(data: Data) -> dict[str, int]:
    """The pictures on which one question is asked alone to be timed, and which one: each in turn.

    All of the pictures that are asked about once, and of the others `TIMED`, evenly spread.
    """
    several = [picture for picture in data.pictures if len(picture.samples) > 1]
    some = [several[number * len(several) // TIMED] for number in range(TIMED)] if len(several) > TIMED else several
    turns = {picture.name: number % len(picture.samples) for number, picture in enumerate(some)}
    return turns | {picture.name: 0 for picture in data.pictures if len(picture.samples) == 1}


def _without(data: Data, unread: dict[str, str]) -> Data:
    """The data without some pictures, whose questions become problems."""
    lost = [picture for picture in data.pictures if picture.name in unread]
    if len(lost) == len(data.pictures):
        raise DataError(f"expected pictures that can be read in {data.name!r} ({unread[lost[0].name]})")
    said = [f"{data.where} {sample.line}: {unread[one.name]}" for one in lost for sample in one.samples]
    left = tuple(picture for picture in data.pictures if picture.name not in unread)
    return replace(data, pictures=left, problems=(*data.problems, *said))


def _seeded(setting: Setting, picture: Picture) -> Setting:
    """Each picture draws lots of its own: one lucky draw for a whole data set would say little."""
    return Setting(setting.contestant, setting.budget, zlib.crc32(f"{setting.seed} {picture.name}".encode()))


def _model(
    model: str | Path | VLM,
    device: str | torch.device | None,
    embeddings: Embeddings | str | None,
    layer: str | Path | None,
) -> tuple[VLM, str]:
    if isinstance(model, VLM):
        if layer != "auto":
            raise ArrCocError("this model is wrapped already: pass layer= to arr_coc.wrap or arr_coc.load instead")
        if embeddings is not None:
            raise ArrCocError("this model is wrapped already: pass embeddings= to arr_coc.wrap or arr_coc.load instead")
        vlm, name = model, str(getattr(model.model.config, "name_or_path", "") or type(model.model).__name__)
    else:
        from arr_coc.vlm.api import load

        vlm, name = load(model, embeddings=embeddings, layer=layer), str(model)
    if device is not None:
        vlm.model.to(device)
    return vlm, name


def _weights(vlm: VLM) -> list[Any]:
    """Enough to tell two models apart: shapes' total, and sums over some of the parameters."""
    parameters = list(vlm.model.parameters())
    some = parameters[:: max(1, len(parameters) // 16)]
    return [sum(p.numel() for p in parameters), *(float(p.detach().double().sum()) for p in some)]


def _asked(data: Data) -> str:
    """The questions, and which pictures they are about, as one number."""
    digest = 0
    for picture in data.pictures:
        files = [(one.stat().st_size, one.stat().st_mtime_ns) for one in picture.frames if isinstance(one, Path)]
        told: list[Any] = [picture.name, picture.size, picture.fps, files]
        told += [[s.question, s.answers, s.kind, s.evidence] for s in picture.samples]
        digest = zlib.crc32(json.dumps(told).encode(), digest)
    return f"{data.name} {len(data.pictures)} {digest}"
