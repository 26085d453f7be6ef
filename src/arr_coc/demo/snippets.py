"""The Python code that the page shows: the call behind a tab's result, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arr_coc.demo.app import PageRequest
from arr_coc.evaluation.data import Evidence


def ask(request: PageRequest) -> str:
    state, tokens = request.state, request.app.limits.tokens
    options = _arguments(budget=state.budget, glance=state.glance, selector=state.selector, max_new_tokens=tokens)
    lines = [
        *_load(request),
        f"answer = vlm.ask(picture, {request.question!r}, {options})",
        "print(answer.text, answer.tokens, answer.timings)",
        'answer.allocation.overlay(picture).save("kept.png")',
    ]
    if state.dense:
        dense = f"vlm.ask(picture, {request.question!r}, max_new_tokens={tokens})"
        lines.append(f"print({dense}.text)  # from all tokens")
    return _join(lines)


def compare(request: PageRequest, budgets: Mapping[str, str | int], evidence: Evidence) -> str:
    boxes = repr([[tuple(round(side, 1) for side in box) for box in group] for group in evidence])
    names = {name: f"arr_coc.selectors.Oracle({boxes})" if name == "oracle" else repr(name) for name in budgets}
    pairs = ", ".join(f"({names[name]}, {budget!r})" for name, budget in budgets.items())
    options = f"budget=budget, selector=selector, max_new_tokens={request.app.limits.tokens}"
    lines = [
        *_load(request, "from arr_coc.evaluation.metrics import evidence_cells, recall" if evidence else ""),
        "look = vlm.look(picture)  # encoded once, used for every question",
        f"for selector, budget in [{pairs}]:",
        f"    answer = vlm.ask(look, {request.question!r}, {options})",
    ]
    printed = "selector, answer.text, answer.tokens"
    if evidence:
        size = request.image.image.size
        lines.append(f"    cells = evidence_cells({boxes}, answer.allocation.grid, {size})")
        printed += ", recall(answer.allocation.keep, cells)"
    return _join([*lines, f"    print({printed})"])


def channels(request: PageRequest, point: Sequence[float]) -> str:
    state = request.state
    lines = [
        "import arr_coc",
        "",
        f"texture = arr_coc.TextureArray.from_image({request.image.code})",
        f"plane = texture.level({state.channel!r}, {state.level})  # [H, W]",
        "print(plane.shape, plane.min(), plane.max())",
    ]
    if point:
        lines += [
            f"values = texture.sample([({point[0]:g}, {point[1]:g})], level={float(state.level)})  # [1, C]",
            "print(dict(zip(texture.names, values[0].tolist())))",
        ]
    return _join([*lines, 'texture.sheet().save("channels.png")'])


def knowing(request: PageRequest) -> str:
    state = request.state
    options = _arguments(
        budget=state.budget,
        learned=None if state.learned else False,
        exploit=state.exploit,
        weights=state.parse_weights() or None,
    )
    return _join(
        [
            *_load(request, "from arr_coc.relevance import explanation"),
            f"allocation = arr_coc.realize(picture, {request.question!r}, using=vlm, {options})",
            "print(allocation.strategy, allocation.tensions)",
            f'explanation.sheet(allocation, picture, {request.question!r}).save("why.png")',
        ]
    )


def report(folder: str, against: str = "") -> str:
    if not against:
        return _join(
            [
                "from arr_coc.evaluation.export import read_report",
                "",
                f"report = read_report({folder!r})",
                'for record in report.numbers["records"]:',
                '    print(record["selector"], record["budget"], record["accuracy"], record["evidence_recall"])',
            ]
        )
    fields = ("selector", "budget", "first", "second", "difference", "ci", "p")
    return _join(
        [
            "from arr_coc.evaluation.export import compare_reports, read_report",
            "",
            f"for change in compare_reports(read_report({folder!r}), read_report({against!r})):",
            f"    print({', '.join(f'change.{name}' for name in fields)})",
        ]
    )


def _load(request: PageRequest, extra_import: str = "") -> list[str]:
    """The lines that load the model and the picture."""
    state, models, code = request.state, request.app.models, request.image.code
    options: dict[str, Any] = {} if models.embeddings is None else {"embeddings": models.embeddings}
    if state.layer not in ("", "auto"):
        options["layer"] = None if state.layer == "none" else str(request.app.root / state.layer)
    arguments = ", ".join(
        [repr(state.model or models.names[0]), *(f"{key}={value!r}" for key, value in options.items())]
    )
    bundled = code.startswith("arr_coc.")
    return [
        *([] if bundled else ["from PIL import Image", ""]),
        "import arr_coc",
        *([extra_import] if extra_import else []),
        "",
        f"vlm = arr_coc.load({arguments})",
        f"picture = {code}" if bundled else f"picture = Image.open({code})",
    ]


def _arguments(**options: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)


def _join(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
