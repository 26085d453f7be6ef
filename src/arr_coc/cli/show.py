"""`arr-coc show`: which cells of an image matter for a question, and why, as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arr_coc.cli.output import check_writable, print_json, progress, save_image


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "show",
        help="see which cells matter for a question, and why",
        description=(
            "Choose cells of an image for a question, answer nothing, and draw why: the kept cells, the relevance, each way of "
            "knowing by itself, and the decision in words. With --model none only the pixels are looked at."
        ),
        epilog='example: arr-coc show receipt.jpg "What is the total amount?" --budget 12.5%% -o why.png',
    )
    parser.add_argument("image", help="the image's file")
    parser.add_argument("question", help="the question")
    parser.add_argument("-o", "--output", type=Path, default=Path("why.png"), metavar="FILE", help="where to (why.png)")
    parser.add_argument(
        "--model", default="reader", metavar="FOLDER", help="a model folder or hub id, or none (reader)"
    )
    parser.add_argument(
        "--budget",
        default="auto",
        help='cells to keep: a count, a share (12.5%%), a share of the relevance ("mass 90%%"), auto or all (auto)',
    )
    parser.add_argument("--embeddings", metavar="NAME", help="an image-text encoder (labels)")
    parser.add_argument(
        "--layer",
        default="auto",
        metavar="DIR",
        help="what arr-coc train learned for the model, or none (the model's own)",
    )
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--json", action="store_true", help="print cells, strategy and tensions as JSON, too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.relevance import explanation as why
    from arr_coc.types.budget import limit
    from arr_coc.types.image import read_picture

    check_writable(arguments.output)
    limit(arguments.budget, 1000)
    check_device(arguments.device)
    read_picture(arguments.image)
    keep_quiet()
    with progress() as bar:
        task = bar.add_task("loading the model", total=2)
        using: Any = arguments.embeddings
        if arguments.model != "none":
            layer = None if arguments.layer == "none" else arguments.layer
            using = arr_coc.load(arguments.model, embeddings=arguments.embeddings, layer=layer)
            using.model.to(arguments.device)
        bar.update(task, advance=1, description="looking")
        found = arr_coc.realize(arguments.image, arguments.question, budget=arguments.budget, using=using)
    save_image(why.sheet(found, arguments.image, arguments.question), arguments.output)
    if arguments.json:
        print_json(found.to_dict())
        return 0
    print(f"{found.k} of {found.n} cells kept: {arguments.output}")
    for sentence in why.said(found):
        print(sentence)
    return 0
