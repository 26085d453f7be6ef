"""`arr-coc tour`: answers about the bundled receipt, the tokens they took, and pictures that explain them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli.console import progress, save_image
from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from PIL import Image

QUESTIONS = {"total": "What is the total amount?", "company": "What is the name of the company?"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "tour",
        help="answers about a bundled receipt, with pictures",
        description=(
            "Ask the bundled reader about the bundled receipt, once with all visual tokens and once with those that the "
            "question needs. Write pictures of the kept cells, of the reasons, of the answer's place and of the channels."
        ),
        epilog="example: arr-coc tour -o out",
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, default=Path("out"), metavar="FOLDER", help="folder for the pictures (out)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArrCocError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.draw import samples as pictures
    from arr_coc.relevance import explanation as why
    from arr_coc.texture import TextureArray

    keep_quiet()
    receipt, scene = pictures.receipt(), pictures.scene()
    images: dict[str, Image.Image] = {"receipt": receipt, "scene": scene}
    lines = []
    with progress() as bar:
        task = bar.add_task("loading the reader", total=2 + len(QUESTIONS))
        vlm = arr_coc.load("reader")
        vlm.ask(
            receipt, "?", budget="all", glance="all", max_new_tokens=1
        )  # warm up: the first call of a process is slower than the others
        for name, question in QUESTIONS.items():
            bar.update(task, advance=1, description=question)
            dense, sparse = vlm.ask(receipt, question, budget="all", glance="all"), vlm.ask(receipt, question)
            images[f"why_{name}"] = why.sheet(sparse.allocation, receipt, question, sparse.text)
            lines.append(question)
            for answer, which in ((dense, "all"), (sparse, "those that matter")):
                tokens, milliseconds = answer.tokens, sum(answer.timings.values())
                counts = f"{tokens['kept']:4} of {tokens['all']} tokens read ({which}), {tokens['encoded']} encoded"
                lines.append(f"  {answer.text:24}{counts}, {milliseconds:.0f} ms")
            if name == "total":
                prepared = vlm.prepare(receipt, question, budget="all", glance="all")
                heat = vlm.point(prepared, vlm.generate(prepared)[0])[0]
                images["receipt_answer"] = dense.allocation.heat(receipt, heat)
                images["receipt_kept"] = sparse.allocation.overlay(receipt)
        bar.update(task, advance=1, description="drawing")
        images["receipt_channels"] = TextureArray.from_image(receipt).sheet(title="The bundled receipt")
        images["scene_channels"] = TextureArray.from_image(scene).sheet(title="The bundled scene")
        for name, image in images.items():
            save_image(image, folder / f"{name}.png")
        bar.advance(task)
    print("\n".join(lines))
    print(f"Reasons: {', '.join(str(folder / f'why_{name}.png') for name in QUESTIONS)}")
    print(f"Place of the answer: {folder / 'receipt_answer.png'}; kept cells: {folder / 'receipt_kept.png'}")
    print(f"Channels: {folder / 'receipt_channels.png'}, {folder / 'scene_channels.png'}")
    return 0
