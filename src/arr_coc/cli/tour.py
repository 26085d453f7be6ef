"""`arr-coc tour`: real answers about the bundled receipt, the tokens they took, and pictures of where and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.cli.output import progress, save_image
from arr_coc.draw import samples as pictures
from arr_coc.errors import ArrCocError
from arr_coc.texture import TextureArray

QUESTIONS = {"total": "What is the total amount?", "company": "What is the name of the company?"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "tour",
        help="answers about the bundled receipt, and pictures of where they stand",
        description=(
            "Ask the reader that ships with the package about the bundled receipt: from all visual tokens, and from those that "
            "matter for the question. Writes pictures of what was kept and why, of where an answer stands, and of the texture's "
            "channels."
        ),
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("out"), metavar="FOLDER", help="where to write (out)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArrCocError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.relevance import explanation as why

    keep_quiet()
    receipt, scene = pictures.receipt(), pictures.scene()
    shown: dict[str, Image.Image] = {"receipt": receipt, "scene": scene}
    lines = []
    with progress() as bar:
        task = bar.add_task("loading the reader", total=2 + len(QUESTIONS))
        vlm = arr_coc.load("reader")
        vlm.ask(receipt, "?", max_new_tokens=1)  # the first call of a process is slower than all others
        for name, question in QUESTIONS.items():
            bar.update(task, advance=1, description=question)
            dense, sparse = vlm.ask(receipt, question), vlm.ask(receipt, question, budget="auto", glance="auto")
            shown[f"why_{name}"] = why.sheet(sparse.allocation, receipt, question, sparse.text)
            lines.append(question)
            for answer, what in ((dense, "all"), (sparse, "those that matter")):
                tokens, spent = answer.tokens, sum(answer.timings.values())
                read = f"{tokens['kept']:4} of {tokens['all']} tokens read ({what}), {tokens['encoded']} encoded"
                lines.append(f"  {answer.text:24}{read}, {spent:.0f} ms")
            if name == "total":
                prepared = vlm.prepare(receipt, question)
                where = vlm.point(prepared, vlm.generate(prepared)[0])[0]
                shown["receipt_answer"] = dense.allocation.heat(receipt, where)
                shown["receipt_kept"] = sparse.allocation.overlay(receipt)
        bar.update(task, advance=1, description="drawing")
        shown["receipt_channels"] = TextureArray.from_image(receipt).sheet(title="The bundled receipt")
        shown["scene_channels"] = TextureArray.from_image(scene).sheet(title="The bundled scene")
        _save(folder, shown)
        bar.advance(task)
    print("\n".join(lines))
    print(f"Why these: {', '.join(str(folder / f'why_{name}.png') for name in QUESTIONS)};")
    print(f"where the answer stands: {folder / 'receipt_answer.png'}; the cells kept: {folder / 'receipt_kept.png'};")
    print(f"what the texture array sees: {folder / 'receipt_channels.png'}, {folder / 'scene_channels.png'}")
    return 0


def _save(folder: Path, images: dict[str, Image.Image]) -> None:
    for name, image in images.items():
        save_image(image, folder / f"{name}.png")
