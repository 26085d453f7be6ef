"""Drawn documents as a folder of pictures with `samples.jsonl`: training data for any model, without annotation."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.errors import DataError
from arr_coc.files import replacing
from arr_coc.training.documents.drawing import SCENES, DrawnQuestion, draw_any, fitting_size, mix
from arr_coc.training.documents.page import FontSet

MANIFEST, SAMPLES = "drawn.json", "samples.jsonl"
INVENTED = 0.3  # share of the drawings whose names are all invented, so that none can be known by heart


def draw_folder(
    folder: Path, count: int, fonts: FontSet, *, seed: int = 0, scenes: float = SCENES, held_out: bool = False,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Path:  # fmt: skip
    """Draw `count` pictures with questions into a folder, unless they are there already.

    `held_out`: other pictures than without it, asked about in phrasings that training never uses. Pictures come in few sizes,
    because a training step takes pictures of one grid. Only questions that have evidence are written. The folder is complete
    once `drawn.json` is there; a folder that another call began is drawn from the start.
    """
    if count < 1:
        raise DataError(f"expected 1 or more pictures to draw, got {count}")
    settings = {"count": count, "seed": seed, "scenes": scenes, "held_out": held_out}
    before = _manifest(folder)
    if before is not None:
        changed = [name for name, value in settings.items() if before.get(name) != value]
        if changed:
            raise DataError(
                f"{str(folder)!r} was drawn with another {' and '.join(changed)}: use the same, name another folder, or start "
                "again with --fresh"
            )
        return folder
    shares = mix(scenes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / SAMPLES) as temporary, temporary.open("w", encoding="utf-8") as file:
            for number in range(count):
                file.writelines(json.dumps(row) + "\n" for row in _draw(folder, number, fonts, shares, seed, held_out))
                tick(number + 1, count)
        with replacing(folder / MANIFEST) as temporary:
            names = [Path(path).name for path in fonts.paths]
            temporary.write_text(json.dumps(settings | {"fonts": names}, indent=2) + "\n")
    except OSError as error:
        raise DataError(f"cannot write drawings into {str(folder)!r}: {error.strerror or error}") from None
    return folder


def _draw(
    folder: Path, number: int, fonts: FontSet, shares: dict[str, float], seed: int, held_out: bool
) -> list[dict[str, Any]]:
    """Draw one picture, write it, and return its questions."""
    name = f"{'held_out' if held_out else 'drawn'}_{seed}_{number:05d}"
    rng = random.Random(name)
    (kind,) = rng.choices(list(shares), list(shares.values()))
    size, invented = fitting_size(rng, kind), rng.random() < INVENTED
    drawing = draw_any(name, [kind], fonts=fonts, size=size, held_out=held_out, invented=invented)
    Image.fromarray(drawing.image).save(folder / f"{name}.png", compress_level=1)
    return [_row(f"{name}.png", kind, question) for question in drawing.questions if question.evidence]


def _row(image: str, kind: str, question: DrawnQuestion) -> dict[str, Any]:
    evidence = [[[round(side, 1) for side in box] for box in group] for group in question.evidence or ()]
    return {
        "image": image, "question": question.text, "answer": question.answer, "kind": f"{kind}: {question.kind}",
        "evidence": evidence,
    }  # fmt: skip


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What a complete folder was drawn with; None for any other."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {str(folder / MANIFEST)!r} ({error}): start again with --fresh") from None
    return found if isinstance(found, dict) and (folder / SAMPLES).is_file() else None
