"""What the page shows as Python: the exact call, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arr_coc.demo.visit import Visit
from arr_coc.evaluation.data import Evidence


def ask(visit: Visit) -> str:
    view = visit.view
    options = _options(budget=view.budget, glance=view.glance, selector=view.selector, max_new_tokens=_tokens(visit))
    lines = [
        *_opening(visit),
        f"answer = vlm.ask(picture, {visit.question!r}, {options})",
        "print(answer.text, answer.tokens, answer.timings)",
        'answer.allocation.overlay(picture).save("kept.png")',
    ]
    if view.dense:
        lines.append(
            f"print(vlm.ask(picture, {visit.question!r}, max_new_tokens={_tokens(visit)}).text)  # from all tokens"
        )
    return _joined(lines)


def compare(visit: Visit, budgets: Mapping[str, str | int], evidence: Evidence) -> str:
    chosen = [
        f"({f'arr_coc.selectors.Oracle({_boxes(evidence)})' if name == 'oracle' else repr(name)}, {budget!r})"
        for name, budget in budgets.items()
    ]
    asked = f"vlm.ask(look, {visit.question!r}, budget=budget, selector=selector, max_new_tokens={_tokens(visit)})"
    lines = [
        *_opening(visit, "from arr_coc.evaluation.metrics import evidence_cells, recall" if evidence else ""),
        "look = vlm.look(picture)  # encoded once, asked often",
        f"for selector, budget in [{', '.join(chosen)}]:",
        f"    answer = {asked}",
    ]
    if evidence:
        lines += [
            f"    cells = evidence_cells({_boxes(evidence)}, answer.allocation.grid, {visit.subject.image.size})",
            "    print(selector, answer.text, answer.tokens, recall(answer.allocation.keep, cells))",
        ]
    else:
        lines.append("    print(selector, answer.text, answer.tokens)")
    return _joined(lines)


def channels(visit: Visit, point: Sequence[float]) -> str:
    view = visit.view
    lines = [
        "import arr_coc",
        "",
        f"texture = arr_coc.TextureArray.from_image({visit.subject.code})",
        f"plane = texture.level({view.channel!r}, {view.level})  # [H, W]",
        "print(plane.shape, plane.min(), plane.max())",
    ]
    if point:
        lines += [
            f"values = texture.sample([({point[0]:g}, {point[1]:g})], level={float(view.level)})  # [1, C]",
            "print(dict(zip(texture.names, values[0].tolist())))",
        ]
    return _joined([*lines, 'texture.sheet().save("channels.png")'])


def knowing(visit: Visit) -> str:
    view = visit.view
    options = _options(
        budget=view.budget,
        learned=None if view.learned else False,
        exploit=view.exploit,
        weights=view.weighed() or None,
    )
    return _joined(
        [
            *_opening(visit, "from arr_coc import why"),
            f"found = arr_coc.realize(picture, {visit.question!r}, using=vlm, {options})",
            "print(found.strategy, found.tensions)",
            f'why.sheet(found, picture, {visit.question!r}).save("why.png")',
        ]
    )


def report(folder: str, against: str = "") -> str:
    if not against:
        return _joined(
            [
                "from arr_coc.evaluation.written import read",
                "",
                f"found = read({folder!r})",
                'for record in found.numbers["records"]:',
                '    print(record["selector"], record["budget"], record["accuracy"], record["evidence_recall"])',
            ]
        )
    return _joined(
        [
            "from arr_coc.evaluation.written import beside, read",
            "",
            f"for change in beside(read({folder!r}), read({against!r})):",
            "    print(change.selector, change.budget, change.first, change.second, change.difference, change.ci, change.p)",
        ]
    )


def _opening(visit: Visit, more: str = "") -> list[str]:
    view, shelf = visit.view, visit.house.shelf
    name = view.model or shelf.names[0]
    options = {"embeddings": shelf.embeddings}
    if view.layer not in ("", "auto"):
        options["layer"] = None if view.layer == "none" else str(visit.house.root / view.layer)
    told = "".join(f", {key}={value!r}" for key, value in options.items() if value is not None or key == "layer")
    code = visit.subject.code
    opened = [f"picture = {code}"] if code.startswith("arr_coc.") else [f"picture = Image.open({code})"]
    imports = ["import arr_coc", *([more] if more else [])]
    if not code.startswith("arr_coc."):
        imports = ["from PIL import Image", "", *imports]
    return [*imports, "", f"vlm = arr_coc.load({name!r}{told})", *opened]


def _options(**options: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)


def _boxes(evidence: Evidence) -> str:
    return repr([[tuple(round(side, 1) for side in box) for box in group] for group in evidence])


def _tokens(visit: Visit) -> int:
    return visit.house.limits.tokens


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
