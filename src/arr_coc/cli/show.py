"""`arr-coc show`: draw which cells of an image a question needs, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arr_coc.cli.console import add_model_options, check_image_file, load_model, print_json, progress, save_image


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
    parser.add_argument("image", metavar="IMAGE", help="an image file")
    parser.add_argument("question", metavar="QUESTION", help="a question in quotes")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("why.png"), metavar="FILE", help="picture to write (why.png)"
    )
    parser.add_argument(
        "--model", default="reader", metavar="FOLDER", help="model folder, hub id or none (the bundled reader)"
    )
    parser.add_argument(
        "--budget", default="auto", help='cells to keep: 128, 12.5%%, "mass 90%%" of the relevance, auto or all (auto)'
    )
    parser.add_argument("--json", action="store_true", help="print the cells, strategy and tensions as JSON")
    add_model_options(parser.add_argument_group("more options"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import arr_coc
    from arr_coc.devices import check_device
    from arr_coc.relevance import explanation as why
    from arr_coc.types.budget import limit
    from arr_coc.types.image import read_picture

    check_image_file(arguments.output)
    limit(arguments.budget, 1000)
    check_device(arguments.device)
    read_picture(arguments.image)
    with progress() as bar:
        task = bar.add_task("loading the model", total=2)
        using: Any = arguments.embeddings if arguments.model == "none" else load_model(arguments)
        bar.update(task, advance=1, description="selecting cells")
        allocation = arr_coc.realize(arguments.image, arguments.question, budget=arguments.budget, using=using)
    save_image(why.sheet(allocation, arguments.image, arguments.question), arguments.output)
    if arguments.json:
        print_json(allocation.to_dict())
        return 0
    print(f"{allocation.k} of {allocation.n} cells kept: {arguments.output}")
    for sentence in why.describe(allocation):
        print(sentence)
    return 0
