"""The values of every cell, packed for the page's viewer (`page/viewer.js`), which draws layers and shows cells."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.demo.app import PageRequest
from arr_coc.demo.glossary import explain
from arr_coc.draw import overlay
from arr_coc.relevance.salience import archetype_maps
from arr_coc.texture import TextureArray
from arr_coc.types.allocation import NOT_ENCODED, NOT_KEPT, Allocation
from arr_coc.types.grid import Cells, Grid
from arr_coc.types.pyramid import Pyramid

STEPS = 65535  # a value is sent as its place between the layer's lowest and highest, in 16 bits
RAMP = "ember"


def pack(values: torch.Tensor) -> dict[str, Any]:
    """Values `[N]` as 16-bit numbers between their extremes, in base64."""
    found = values.detach().double().cpu().nan_to_num()
    low, high = (float(bound) for bound in torch.aminmax(found))
    span = high - low or 1.0
    numbers = ((found - low) / span * STEPS).round().numpy().astype("<u2")
    return {"low": low, "high": high, "data": base64.b64encode(numbers.tobytes()).decode()}


def unpack(layer: Mapping[str, Any]) -> torch.Tensor:
    """The inverse of `pack`, as the viewer does it."""
    numbers = np.frombuffer(base64.b64decode(layer["data"]), "<u2").astype(np.float64)
    return torch.from_numpy(layer["low"] + numbers / STEPS * ((layer["high"] - layer["low"]) or 1.0))


def states(allocation: Allocation) -> str:
    """Of each cell, 0: not encoded, 1: encoded, 2: read; bytes in base64."""
    numbers = torch.zeros(allocation.n, dtype=torch.uint8)
    numbers[allocation.encoded] = 1
    numbers[allocation.keep] = 2
    return base64.b64encode(numbers.numpy().tobytes()).decode()


def key(request: PageRequest, allocation: Allocation) -> str:
    """What the viewer shows: the image, or a view of it. Cells of another view are not drawn on it."""
    return request.image.key if allocation.view is None else f"{request.image.key}: {allocation.view}"


def shown(request: PageRequest, allocation: Allocation) -> Image.Image:
    """The image as the model saw it: its cells are upright there."""
    view, image = allocation.view, request.image.image
    return image if view is None else Pyramid(image).crop(view.region, view.size)


def live_data(request: PageRequest, allocation: Allocation) -> str:
    """What changes with the budget: the states of the cells, and their relevance."""
    return json.dumps(
        {
            "key": key(request, allocation),
            "states": states(allocation),
            "layers": {} if allocation.relevance is None else {"relevance": pack(allocation.relevance)},
        }
    )


def viewer_data(request: PageRequest, allocation: Allocation, channels: bool = True) -> str:
    """Everything that the viewer needs for an image. `channels`: also the texture's channels in each cell."""
    layers: dict[str, Any] = {}
    for name, values in _maps(allocation).items():
        layers[name] = {"title": name, "kind": "score", "about": explain(name), **pack(values.clamp(0, 1))}
        layers[name]["bounds"] = [0, 1]
    if channels:
        plain = allocation.view is None
        texture = request.image.texture() if plain else TextureArray.from_image(shown(request, allocation))
        names = [name for name in texture.names if name not in texture.absent]
        known = {channel.name: channel for channel in texture.channels}
        for name, values in zip(names, channel_values(texture, allocation.grid, names), strict=True):
            low, high = known[name].range
            layers[f"channel {name}"] = {"title": name, "kind": "channel", "about": known[name].meaning, **pack(values)}
            layers[f"channel {name}"]["bounds"] = [low, float(values.max()) if math.isinf(high) else high]
        if all(view.t == 1 for view in allocation.grid.views):
            for name, values in archetype_maps(texture, allocation.grid).items():
                about = f"how far a cell resembles what questions about such pictures are about: {name}"
                layers[f"like {name}"] = {"title": f"like {name}", "kind": "channel", "about": about, **pack(values)}
                layers[f"like {name}"]["bounds"] = [0, 1]
    ramp = overlay.colourise(torch.linspace(0, 1, 256)[None], RAMP, 0.0, 1.15)[0]  # [256, 3]
    return json.dumps(
        {
            "key": key(request, allocation),
            "views": [[*view.area, view.h, view.w] for view in allocation.grid.views],
            "states": states(allocation),
            "light": [NOT_ENCODED, NOT_KEPT, 1.0],
            "layers": layers,
            "ramp": base64.b64encode(ramp.tobytes()).decode(),
        }
    )


def _maps(allocation: Allocation) -> dict[str, torch.Tensor]:
    relevance = {} if allocation.relevance is None else {"relevance": allocation.relevance}
    return {**relevance, **allocation.scores}


def channel_values(texture: TextureArray, grid: Cells, names: Sequence[str]) -> torch.Tensor:
    """Channels `[C, N]` in each cell: pooled over a plain grid's cells, read at the middle of a tile's cells."""
    if isinstance(grid, Grid) and grid.t == 1 and grid.area == (0.0, 0.0, 1.0, 1.0):
        return texture.grid(grid.h, grid.w, names).detach().float().cpu().flatten(1)
    boxes = grid.boxes(torch.arange(grid.n), (1, 1)).double()  # [N, 4] as fractions
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    size = texture.size[1] * (boxes[:, 2] - boxes[:, 0]), texture.size[0] * (boxes[:, 3] - boxes[:, 1])  # pixels
    level = (torch.maximum(*size) / 4).clamp(min=1).log2()  # pooled over the middle of the cell
    return texture.sample(middle, level, names).detach().float().cpu().T
