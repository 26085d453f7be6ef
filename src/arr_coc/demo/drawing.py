"""Pictures, tables and bars as HTML that needs no file: a visitor's pictures travel inside the answer, not as addresses."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from PIL import Image

from arr_coc.draw import overlay as view
from arr_coc.types.allocation import Allocation
from arr_coc.types.image import read_picture

SIDE = 900  # pixels of a shown picture's longer side
QUALITY = 82


def text(words: object) -> str:
    """Words inside HTML. Braces and dollars are written out, because the page's templates would take them for theirs.

    >>> text("<b> {{1}} ${2}")
    '&lt;b&gt; &#123;&#123;1&#125;&#125; &#36;&#123;2&#125;'
    """
    safe = html.escape(str(words))
    return safe.replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


def shrunk(image: Image.Image, side: int = SIDE) -> Image.Image:
    """A picture no larger than it is shown."""
    scale = side / max(image.size)
    if scale >= 1:
        return image
    return image.resize(
        (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.LANCZOS
    )


def address(image: Image.Image) -> str:
    """A picture as a `data:` address: JPEG, or PNG where it has transparency or hardly any pixels."""
    data = io.BytesIO()
    if image.mode == "RGBA" or image.width * image.height < 4096:
        image.save(data, "PNG")
        kind = "png"
    else:
        image.convert("RGB").save(data, "JPEG", quality=QUALITY)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"


def picture(image: Image.Image, alt: str, *, over: Image.Image | None = None) -> str:
    """A picture, and perhaps another laid over it, as strong as the page's slider says."""
    top = "" if over is None else f"<img class='over' src='{address(over)}' alt='' aria-hidden='true'>"
    return f"<div class='stack'><img src='{address(shrunk(image))}' alt='{text(alt)}'>{top}</div>"


def figure(inner: str, title: str, said: str = "") -> str:
    below = f"<span>{text(said)}</span>" if said else ""
    return f"<figure><figcaption><b>{text(title)}</b>{below}</figcaption>{inner}</figure>"


def row(figures: Iterable[str]) -> str:
    return f"<div class='pictures'>{''.join(figures)}</div>"


def heat(allocation: Allocation, values: torch.Tensor, size: tuple[int, int]) -> Image.Image:
    """Values `[N]` from 0 to 1 as a warm layer to lay over the picture of `size`; where nothing is, it is clear."""
    width, height = shrunk_size(size)
    plane = view.plane(allocation.pieces(values.detach().float().cpu().clamp(0, 1)), (height, width))
    colours = view.colourise(plane, "ember", 0.0, 1.15)
    alpha = (plane.clamp(0, 1).sqrt() * 255).round().byte().numpy()
    return Image.fromarray(np.concatenate([colours, alpha[..., None]], axis=-1), "RGBA")


def shrunk_size(size: tuple[int, int], side: int = SIDE) -> tuple[int, int]:
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def lit(allocation: Allocation, image: Image.Image, values: torch.Tensor) -> Image.Image:
    """The picture, each cell as bright as its value `[N]`: print stays readable where it counts."""
    shown = values.detach().float().cpu().clamp(0, 1)
    return view.lit(read_picture(shrunk(image)).pixels, allocation.pieces(0.12 + 0.88 * shown))


def table(rows: Sequence[Sequence[object]], head: Sequence[object] = ()) -> str:
    top = f"<tr>{''.join(f'<th scope=col>{text(cell)}</th>' for cell in head)}</tr>" if head else ""
    body = "".join(
        f"<tr><th scope=row>{text(cells[0])}</th>{''.join(f'<td>{text(cell)}</td>' for cell in cells[1:])}</tr>"
        for cells in rows
    )
    return f"<div class='scroll'><table class='facts'>{top}{body}</table></div>"


def bars(values: Mapping[str, float], meanings: Mapping[str, str] | None = None) -> str:
    """Numbers from 0 to 1 as bars."""
    lines = "".join(
        f"<div class='bar' title='{text((meanings or {}).get(name, ''))}'><span>{text(name)}</span>"
        f"<span class='track'><i style='width:{100 * min(1.0, max(0.0, value)):.1f}%'></i></span><span>{value:.2f}</span></div>"
        for name, value in values.items()
    )
    return f"<div class='bars'>{lines}</div>"


def sentences(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f"<ul class='said'>{items}</ul>" if items else ""


def told(words: str, kind: str = "status") -> str:
    """A sentence for the visitor: `status` is read out when there is time, `alert` at once."""
    return f"<p class='told {kind}' role='{kind}'>{text(words)}</p>" if words else ""
