"""HTML for the page. Images are part of the HTML, as `data:` addresses: no user can fetch another's image."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from PIL import Image

from arr_coc.draw import overlay
from arr_coc.types.allocation import Allocation
from arr_coc.types.image import read_picture

SIDE = 900  # pixels of a shown image's longer side
JPEG_QUALITY = 82


def escape(text: object) -> str:
    """Text for HTML. Braces and dollars are escaped, too, because gradio's templates would evaluate them.

    >>> escape("<b> {{1}} ${2}")
    '&lt;b&gt; &#123;&#123;1&#125;&#125; &#36;&#123;2&#125;'
    """
    return html.escape(str(text)).replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


def fit_size(size: tuple[int, int], side: int = SIDE) -> tuple[int, int]:
    """A size (width, height) scaled down so that its longer side is at most `side`."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def shrink(image: Image.Image, side: int = SIDE) -> Image.Image:
    """The image, no larger than it is shown."""
    size = fit_size(image.size, side)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def data_url(image: Image.Image) -> str:
    """JPEG, or PNG for images with transparency or few pixels."""
    data = io.BytesIO()
    if image.mode == "RGBA" or image.width * image.height < 4096:
        image.save(data, "PNG")
        kind = "png"
    else:
        image.convert("RGB").save(data, "JPEG", quality=JPEG_QUALITY)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"


def picture(image: Image.Image, alt: str, *, over: Image.Image | None = None) -> str:
    """An image, with an optional overlay whose opacity the page's slider sets."""
    top = "" if over is None else f"<img class='over' src='{data_url(over)}' alt='' aria-hidden='true'>"
    return f"<div class='stack'><img src='{data_url(shrink(image))}' alt='{escape(alt)}'>{top}</div>"


def figure(inner: str, title: str, caption: str = "") -> str:
    below = f"<span>{escape(caption)}</span>" if caption else ""
    return f"<figure><figcaption><b>{escape(title)}</b>{below}</figcaption>{inner}</figure>"


def row(figures: Iterable[str]) -> str:
    return f"<div class='pictures'>{''.join(figures)}</div>"


def heat_layer(allocation: Allocation, values: torch.Tensor, size: tuple[int, int]) -> Image.Image:
    """Values `[N]` from 0 to 1 as a warm RGBA overlay for an image of `size`; transparent where they are 0."""
    width, height = fit_size(size)
    plane = overlay.plane(allocation.pieces(values.detach().float().cpu().clamp(0, 1)), (height, width))
    colours = overlay.colourise(plane, "ember", 0.0, 1.15)
    alpha = (plane.clamp(0, 1).sqrt() * 255).round().byte().numpy()
    return Image.fromarray(np.concatenate([colours, alpha[..., None]], axis=-1), "RGBA")


def dim_by_value(allocation: Allocation, image: Image.Image, values: torch.Tensor) -> Image.Image:
    """The image with each cell as bright as its value `[N]`: text stays readable where the value is high."""
    brightness = 0.12 + 0.88 * values.detach().float().cpu().clamp(0, 1)
    return overlay.lit(read_picture(shrink(image)).pixels, allocation.pieces(brightness))


def table(rows: Sequence[Sequence[object]], head: Sequence[object] = ()) -> str:
    top = f"<tr>{''.join(f'<th scope=col>{escape(cell)}</th>' for cell in head)}</tr>" if head else ""
    body = "".join(
        f"<tr><th scope=row>{escape(cells[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells[1:])}</tr>"
        for cells in rows
    )
    return f"<div class='scroll'><table class='facts'>{top}{body}</table></div>"


def bars(values: Mapping[str, float], meanings: Mapping[str, str]) -> str:
    """Numbers from 0 to 1 as bars, with their meanings as tooltips."""
    lines = "".join(
        f"<div class='bar' title='{escape(meanings.get(name, ''))}'><span>{escape(name)}</span>"
        f"<span class='track'><i style='width:{100 * min(1.0, max(0.0, value)):.1f}%'></i></span><span>{value:.2f}</span></div>"
        for name, value in values.items()
    )
    return f"<div class='bars'>{lines}</div>"


def bullets(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul class='bullets'>{items}</ul>" if items else ""


def message(text: str, role: str = "status") -> str:
    """A sentence for the user. Screen readers read a `status` when they are idle and an `alert` at once."""
    return f"<p class='message {role}' role='{role}'>{escape(text)}</p>" if text else ""


def alert(text: str) -> str:
    """An error as a sentence: with a capital letter and a full stop."""
    return message(text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else "."), "alert")


def box_editor(image: Image.Image, boxes: Iterable[Sequence[float]]) -> str:
    """The image to draw a box on, with the present boxes (x0, y0, x1, y1 in pixels)."""
    width, height = image.size
    frames = ""
    for left, top, right, bottom, *_ in boxes:
        place = f"left:{100 * left / width:.2f}%;top:{100 * top / height:.2f}%"
        size = f"width:{100 * (right - left) / width:.2f}%;height:{100 * (bottom - top) / height:.2f}%"
        frames += f"<i class='drawn' style='{place};{size}'></i>"
    shown = f"<img src='{data_url(shrink(image, 700))}' alt='the image, to draw a box on' draggable='false'>"
    return f"<div class='board box' data-width='{width}' data-height='{height}'>{shown}{frames}</div>"
