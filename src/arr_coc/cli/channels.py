"""`arr-coc channels`: the channels of an image as a contact sheet, a table or JSON; without an image, the list of channels."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli.console import check_image_file, print_json, progress, save_image, use_one_thread
from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from arr_coc.texture import TextureArray


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "channels",
        help="see the channels of an image, or list all channels",
        description="Compute the channels of an image and draw them on a labelled sheet. Without IMAGE, list all channels.",
        epilog="example: arr-coc channels receipt.jpg -o sheet.png --layout mvp13",
    )
    add = parser.add_argument
    add("image", nargs="?", metavar="IMAGE", help="an image file")
    add("-o", "--output", type=Path, metavar="SHEET", help="contact sheet to write (.png, .jpg)")
    add("--layout", help="full40, mvp13, or channel names with commas such as edges,text (full40)")
    add("--text", default="strokes", help="text detector: strokes (fast) or rapidocr (extra 'ocr')")
    add("--max-side", type=int, default=1024, metavar="PX", help="scale larger images to this side (1024)")
    add("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.texture import TextureArray

    if arguments.output:
        check_image_file(arguments.output, inputs=[arguments.image] if arguments.image else [])
    layout = _parse_layout(arguments.layout)
    if arguments.image is None:
        return _list_channels(arguments, layout)
    use_one_thread()
    texture = TextureArray.from_image(
        arguments.image, layout="full40" if layout is None else layout, max_side=arguments.max_side, text=arguments.text
    )
    records = _compute(texture)
    if arguments.output:
        save_image(texture.sheet(title=Path(arguments.image).name), arguments.output)
    if arguments.json:
        print_json(
            {
                "image": arguments.image,
                "original_size": {"width": texture.original_size[1], "height": texture.original_size[0]},
                "size": {"width": texture.size[1], "height": texture.size[0]},
                "notes": list(texture.notes),
                "absent": list(texture.absent),
                "sheet": str(arguments.output) if arguments.output else None,
                "channels": records,
            }
        )
        return 0
    _print_table(texture, records)
    if arguments.output:
        print(f"sheet written to {arguments.output}")
    return 0


def _parse_layout(given: str | None) -> str | list[str] | None:
    """The name of a layout as it is; one channel name, or several with commas, as a list."""
    from arr_coc.texture.layout import LAYOUTS, all_channels, resolve_layout

    if given is None or given in LAYOUTS:
        return given
    if "," in given or given in {c.name for c in all_channels()}:
        return [name.strip() for name in given.split(",") if name.strip()]
    resolve_layout(given)  # raises, with a hint
    return given


def _compute(texture: TextureArray) -> list[dict[str, object]]:
    """Each channel's description, values and milliseconds; work that channels share counts for the first of them."""
    records = []
    with progress() as bar:
        task = bar.add_task("channels", total=len(texture.names))
        for channel in texture.channels:
            bar.update(task, description=f"channel {channel.name}")
            start = time.perf_counter()
            plane = texture[channel.name]
            milliseconds = (time.perf_counter() - start) * 1e3
            values = {"min": float(plane.min()), "max": float(plane.max()), "mean": float(plane.float().mean())}
            records.append({**channel.describe(), "values": values, "ms": round(milliseconds, 3)})
            bar.advance(task)
    return records


def _list_channels(arguments: argparse.Namespace, layout: str | list[str] | None) -> int:
    from rich.console import Console
    from rich.table import Column, Table

    from arr_coc.texture.layout import LAYOUTS, all_channels, find_channel, resolve_layout

    if arguments.output:
        raise ArrCocError("a sheet needs an image: arr-coc channels IMAGE -o sheet.png")
    known = all_channels() if layout is None else [find_channel(name) for name in resolve_layout(layout)]
    if arguments.json:
        layouts = {name: list(names) for name, names in LAYOUTS.items()}
        print_json({"layouts": layouts, "channels": [c.describe() for c in known]})
        return 0
    headings = ("channel", "family", "range", "pooled", "cost", "meaning")
    table = Table(*(Column(heading, overflow="fold") for heading in headings), box=None, header_style="bold")
    embeddings = [c.name for c in known if c.family == "embedding"]
    for c in known:
        name, meaning = c.name, c.meaning
        if len(embeddings) > 1 and name in embeddings:  # one line for all sixteen dimensions
            if name != embeddings[0]:
                continue
            name, meaning = f"{name} .. {embeddings[-1][-2:]}", "the joint image-text space in 16 dimensions"
        table.add_row(name, c.family, f"{c.range[0]:.3g} .. {c.range[1]:.3g}", c.pool, c.cost, meaning)
    Console().print(table)
    return 0


def _print_table(texture: TextureArray, records: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    numbers = [Column(heading, justify="right") for heading in ("min", "mean", "max", "ms")]
    table = Table("channel", "family", *numbers, Column("meaning", overflow="fold"), box=None, header_style="bold")
    for record in records:
        if record["name"] not in texture.absent:
            values = [f"{record['values'][key]:.3f}" for key in ("min", "mean", "max")]
            table.add_row(record["name"], record["family"], *values, f"{record['ms']:.1f}", record["meaning"])
    Console().print(table)
    original, size = texture.original_size, texture.size
    print(f"image {original[1]}x{original[0]}, texture {size[1]}x{size[0]} pixels")
    for note in texture.notes:
        print(f"note: {note}")
    if texture.absent:
        print(f"{len(texture.absent)} channels are zero because their input was not supplied; --json names them")
