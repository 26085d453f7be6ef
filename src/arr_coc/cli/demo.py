"""`arr-coc demo`: real answers about the bundled receipt, the tokens they took, and pictures of where and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc import pictures
from arr_coc.cli.output import progress, save_image
from arr_coc.errors import ArrCocError
from arr_coc.texture import TextureArray

QUESTION = "What is the total amount?"
QUESTIONS = (QUESTION, "What is the date?", "What is the name of the company?", "How much is the Oat croissant?")
BUDGET = "50%"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="answers about the bundled receipt, and pictures of where they stand",
        description=(
            "Ask the reader that ships with the package about the bundled receipt: from all visual tokens and from half of "
            "them. Writes the pictures of where the answer stands, of the kept cells and of the texture's channels."
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

    keep_quiet()
    receipt, scene = pictures.receipt(), pictures.scene()
    with progress() as bar:
        task = bar.add_task("loading the reader", total=4)
        vlm = arr_coc.load("reader")
        bar.update(task, advance=1, description="reading the receipt")
        look = vlm.look(receipt)
        answers = vlm.ask(look, list(QUESTIONS))
        bar.update(task, advance=1, description="reading half of it")
        prepared = vlm.prepare(look=look, text=QUESTION)
        where = vlm.point(prepared, vlm.generate(prepared)[0])[0]
        half = vlm.ask(receipt, QUESTION, budget=BUDGET)
        bar.update(task, advance=1, description="drawing")
        _save(folder, {
            "receipt": receipt,
            "receipt_answer": answers[0].allocation.heat(receipt, where),
            "receipt_kept": half.allocation.overlay(receipt),
            "receipt_channels": TextureArray.from_image(receipt).sheet(title="The bundled receipt"),
            "scene": scene,
            "scene_channels": TextureArray.from_image(scene).sheet(title="The bundled scene"),
        })  # fmt: skip
        bar.advance(task)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"{question:34}{answer.text}")
    tokens = half.tokens
    print(f"{QUESTION:34}{half.text}   (from {tokens['kept']} of {tokens['all']} visual tokens, evenly spaced)")
    print(f"Where the answer stands: {folder / 'receipt_answer.png'}; the cells kept: {folder / 'receipt_kept.png'};")
    print(f"what the texture array sees: {folder / 'receipt_channels.png'}, {folder / 'scene_channels.png'}")
    return 0


def _save(folder: Path, images: dict[str, Image.Image]) -> None:
    for name, image in images.items():
        save_image(image, folder / f"{name}.png")
