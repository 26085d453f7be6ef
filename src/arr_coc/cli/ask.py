"""`arr-coc ask`: a question about an image, answered from the cells that were kept."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arr_coc.cli.output import check_writable, print_json, progress, save_image
from arr_coc.errors import ArrCocError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "ask",
        help="ask a model about an image",
        description=(
            "Ask a vision-language model about an image and let it read only some of the visual tokens. A budget is a count "
            '(128), a share ("12.5%%"), "mass 90%%" (as few cells as hold that share of the relevance above its median) or '
            '"auto", both where the selector scores every cell, or "all".'
        ),
        epilog='example: arr-coc ask receipt.jpg "What is the total amount?" --why why.png --where where.png',
    )
    parser.add_argument("image", help="the image's file")
    parser.add_argument("question", help="the question")
    parser.add_argument("--model", default="reader", metavar="FOLDER", help="a model folder or hub id (reader: ours)")
    parser.add_argument("--budget", default="auto", help="visual tokens that the language model reads (auto)")
    parser.add_argument("--glance", default="auto", help="cells that the vision encoder sees at all (auto)")
    parser.add_argument("--selector", default="arr-coc", help="who chooses (arr-coc)")
    parser.add_argument(
        "--embeddings", metavar="NAME", help="an image-text encoder for selectors that ask one (labels)"
    )
    parser.add_argument(
        "--layer",
        default="auto",
        metavar="DIR",
        help="what arr-coc train learned for the model, or none (the model's own)",
    )
    parser.add_argument("--tokens", type=int, default=160, metavar="N", help="longest answer in tokens (160)")
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--seed", type=int, default=0, help="for selectors that draw lots (0)")
    parser.add_argument("--why", type=Path, metavar="FILE", help="write what was kept, and why, as a picture")
    parser.add_argument("--where", type=Path, metavar="FILE", help="write the image with where the answer stands")
    parser.add_argument("--json", action="store_true", help="print answer, tokens, times and kept cells as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import arr_coc
    from arr_coc.devices import check_device
    from arr_coc.relevance import explanation as why
    from arr_coc.types.budget import limit
    from arr_coc.types.image import read_picture

    for path in (arguments.why, arguments.where):
        if path is not None:
            check_writable(path)
    if arguments.tokens < 1:
        raise ArrCocError(f"expected --tokens of at least 1, got {arguments.tokens}")
    # What can be wrong is looked at before a model is loaded.
    for what in ("budget", "glance"):
        limit(getattr(arguments, what), 1000, what)
    arr_coc.selectors.selector(arguments.selector)
    check_device(arguments.device)
    read_picture(arguments.image)
    with progress() as bar:
        task = bar.add_task("loading the model", total=2)
        vlm = _load(arguments.model, arguments.device, arguments.embeddings, arguments.layer)
        bar.update(task, advance=1, description="reading the image")
        prepared = vlm.prepare(
            arguments.image, arguments.question, budget=arguments.budget, glance=arguments.glance,
            selector=arguments.selector, seed=arguments.seed,
        )  # fmt: skip
        answer = vlm.generate(prepared, max_new_tokens=arguments.tokens)[0]
    if arguments.why is not None:
        save_image(why.sheet(answer.allocation, arguments.image, arguments.question, answer.text), arguments.why)
    if arguments.where is not None:
        found = vlm.point(prepared, answer)[0]
        save_image(answer.allocation.heat(arguments.image, found), arguments.where)
    if arguments.json:
        print_json(answer.to_dict())
        return 0
    print(answer.text)
    tokens = answer.tokens
    spent = sum(answer.timings.values())
    notes = [*answer.allocation.notes, *([f"fell back: {answer.fallback}"] if answer.fallback else [])]
    print(
        f"({tokens['kept']} of {tokens['all']} visual tokens read, {tokens['encoded']} encoded, {spent:.0f} ms"
        f"{''.join(f'; {note}' for note in notes)})"
    )
    return 0


def _load(name: str, device: str, embeddings: str | None, layer: str) -> Any:
    """The model on its device, loaded without a word."""
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet

    keep_quiet()
    vlm = arr_coc.load(name, embeddings=embeddings, layer=None if layer == "none" else layer)
    vlm.model.to(device)
    return vlm
