"""The tab Find: images of an indexed folder by what is in them, with boxes and a heat map of the cells' scores."""

from __future__ import annotations

import json
from collections.abc import Iterator

from arr_coc.demo import markup, snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.demo.markup import macros
from arr_coc.errors import DataError, ImageError
from arr_coc.find.index import Found
from arr_coc.find.sheet import boxed
from arr_coc.types.question import check_question

SHOWN, SIDE = 12, 360  # images, and pixels of their longer side


def run(request: PageRequest) -> Iterator[Output]:
    state, index = request.state, request.app.index
    if index is None:
        raise DataError("there are no images to search: start the page with arr-coc demo --find FOLDER")
    query = check_question(state.find.strip(), request.app.limits.letters)
    found = index.find(query, SHOWN)
    tiles = [_tile(one, state.find_heat) for one in found]
    searched = (
        f"The {len(found)} nearest of {len(index)} images. They are shown also where none fits: compare the scores."
    )
    yield {
        "find_images": macros.message(searched) + macros.found(tiles),
        "find_python": snippets.find(str(index.folder), query, SHOWN),
        "find_json": json.dumps(
            {"query": query, "found": [one.to_dict() | {"image": one.path.name} for one in found]}, indent=1
        ),
        "find_link": state.to_query(),
    }


def _tile(one: Found, heat: bool) -> tuple[str, str, str]:
    """The address of the picture, the name and the score; the address is empty where the file cannot be read any more."""
    name, score = one.path.name, f"{one.score:.2f}"
    try:
        image = one.heat(SIDE) if heat else one.image(SIDE)
    except ImageError:
        return "", f"{name} (gone since it was indexed)", score
    return markup.data_url(boxed(one, image, SIDE)), name, score
