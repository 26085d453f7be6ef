"""`arr-coc show`: draw which cells of an image a question needs, and why."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from arr_coc.cli import console


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "show",
        help="see which cells matter for a question, and why",
        description=(
            "Select the cells of an image for a question, without an answer, and draw the reasons: the kept cells, the "
            "relevance, each score that it is made of, and the decision in words. With --model none only the pixels count."
        ),
        epilog='example: arr-coc show receipt.jpg "What is the total amount?" --budget 12.5% -o why.png',
    )
    add = parser.add_argument
    console.add_question(parser, "model folder, hub id or none")
    add("-o", "--output", type=Path, default=Path("why.png"), metavar="FILE", help="picture to write (why.png)")
    add("--budget", default="auto", help='cells to keep: 128, 12.5%%, "mass 90%%" of the relevance, auto or all (auto)')
    add(
        "--salience",
        default="texture",
        metavar="SOURCE",
        help="what stands out: texture, archetypes or encoder (texture)",
    )
    console.add_gaze(parser)
    add("--json", action="store_true", help="print the cells, strategy and tensions as JSON")
    console.add_model_options(parser.add_argument_group("more options"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    console.start_fast()
    import arr_coc
    from arr_coc.relevance import explanation as why

    console.check_image_file(arguments.output, inputs=[arguments.image])
    console.check_request(arguments)
    with console.progress() as bar:
        task = bar.add_task("loading the model", total=2)
        using: Any = arguments.embeddings if arguments.model == "none" else console.load_model(arguments)
        bar.update(task, advance=1, description="selecting cells")
        allocation = arr_coc.realize(
            arguments.image,
            arguments.question,
            budget=arguments.budget,
            using=using,
            gaze=arguments.gaze,
            salience=arguments.salience,
        )
    if arguments.json:
        console.print_json(allocation.to_dict())
    else:
        print(f"{allocation.k} of {allocation.n} cells kept")
        for sentence in why.describe(allocation):
            print(sentence)
    sys.stdout.flush()  # before the picture: a full disk loses no result
    console.save_image(why.sheet(allocation, arguments.image, arguments.question), arguments.output)
    if not arguments.json:
        print(f"picture written to {arguments.output}")
    return 0
