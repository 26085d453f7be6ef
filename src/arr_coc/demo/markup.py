"""HTML for the page, by the macros of `page/components.html`, and images as `data:` addresses.

Images are part of the HTML, so no user can fetch another's image.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from PIL import Image

from arr_coc.demo.glossary import explain, split_terms

SIDE = 900  # pixels of a shown image's longer side
JPEG_QUALITY = 82


def escape(text: object) -> str:
    """Text for HTML. Braces and dollars are escaped, too, because gradio's templates would evaluate them.

    >>> escape("<b> {{1}} ${2}")
    '&lt;b&gt; &#123;&#123;1&#125;&#125; &#36;&#123;2&#125;'
    """
    return html.escape(str(text)).replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


_environment = Environment(
    autoescape=True,
    finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(value)),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals |= {"explain": explain, "split_terms": split_terms}
_source = files("arr_coc.demo.page").joinpath("components.html").read_text(encoding="utf-8")
macros: Any = _environment.from_string(_source).module  # each escapes its arguments and returns `Markup`


def fit_size(size: tuple[int, int], side: int = SIDE) -> tuple[int, int]:
    """A size (width, height) scaled down so that its longer side is at most `side`."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def shrink(image: Image.Image, side: int = SIDE) -> Image.Image:
    """The image, no larger than it is shown."""
    size = fit_size(image.size, side)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def data_url(image: Image.Image) -> Markup:
    """JPEG, or PNG for images with transparency or few pixels."""
    data = io.BytesIO()
    if image.mode == "RGBA" or image.width * image.height < 4096:
        image.save(data, "PNG")
        kind = "png"
    else:
        image.convert("RGB").save(data, "JPEG", quality=JPEG_QUALITY)
        kind = "jpeg"
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}")


def viewer(image: Image.Image, data: str, panels: Sequence[tuple[str, str, str]], choose: bool = False) -> Markup:
    """An image with layers of cell values: `data` of `cells.viewer_data`, and the layer, title, caption of each panel."""
    small = shrink(image)
    return macros.viewer(data_url(small), small.size, data, panels, choose)


def alert(text: str) -> Markup:
    """An error as a sentence: with a capital letter and a full stop."""
    return macros.message(text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else "."), "alert")


def box_editor(image: Image.Image, boxes: Iterable[Sequence[float]]) -> Markup:
    """The image to draw a box on, with the present boxes (x0, y0, x1, y1 in pixels)."""
    width, height = image.size
    styles = [
        f"left:{100 * left / width:.2f}%;top:{100 * top / height:.2f}%;"
        f"width:{100 * (right - left) / width:.2f}%;height:{100 * (bottom - top) / height:.2f}%"
        for left, top, right, bottom, *_ in boxes
    ]
    url = data_url(shrink(image, 700))
    return macros.board("box", image.size, url, "the image, to draw a box on", "drawn", styles)
