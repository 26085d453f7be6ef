"""A model's own visual tokens as an image-text encoder: "vlm:NAME"."""

from __future__ import annotations

import torch

from arr_coc.adapters.base import Encoded
from arr_coc.adapters.wrapped import WeightsState, weights_state
from arr_coc.embedding.encoder import Encoder, Mode, fingerprint
from arr_coc.types.grid import Cells
from arr_coc.types.image import ImageLike
from arr_coc.types.question import subject
from arr_coc.vlm.api import load
from arr_coc.vlm.model import VLM

LATER = ("language_model.layers.", "lm_head.")  # do not affect tokens before the language model's first block


class VlmTokens(Encoder):
    """A wrapped model's own tokens as an image-text encoder.

    Cells are the visual tokens after the projector; a question is the mean of its words' input embeddings. Both lie in the
    language model's embedding space, but nothing trained them to be aligned: measure how much this finds for each model.

    The processor decides the resolution, so both modes are the same. Tiles and an overview are laid onto one even grid, where
    the finest view counts. Cells that the processor cut off are 0.
    """

    name = "vlm"

    def __init__(self, vlm: VLM) -> None:
        self.vlm = vlm
        self.device = vlm.device
        table = vlm.model.get_input_embeddings().weight
        self.dtype, self.width = table.dtype, int(table.shape[1])
        self._later = (vlm.adapter.text_model.layers, vlm.adapter.model.get_output_embeddings())
        self._identities: dict[WeightsState, str] = {}

    @property
    def identity(self) -> str:
        """A fingerprint of the weights as they are now, precision and active adapters included."""
        model = self.vlm.adapter.model
        state = weights_state(model, without=self._later)
        if state not in self._identities:
            weights = {name: w for name, w in model.state_dict().items() if not any(part in name for part in LATER)}
            seeing = getattr(self.vlm.processor, "image_processor", None)
            settings = (model.config.model_type, "" if seeing is None else seeing.to_json_string())
            adapters = (str(state.layers),) if state.adapters else ()
            self._identities = {**self._identities, state: f"vlm-{fingerprint(weights, (*settings, *adapters))}"}
        return self._identities[state]

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        encoded, grid = encode_image(self.vlm, pixels)
        return evenly(encoded.tokens, grid)

    def embed(self, questions: list[str]) -> torch.Tensor:
        adapter, prompter = self.vlm.adapter, self.vlm.prompter
        return torch.stack([adapter.embed(prompter.ids(subject(q))).float().mean(0) for q in questions])


def evenly(tokens: torch.Tensor, grid: Cells) -> torch.Tensor:
    """Cells' tokens `[N, D]` on an even grid over the whole image: `[D, h, w]`; 0 where there is no cell."""
    views, start = [], 0
    for view in grid.views:
        left, top, right, bottom = view.area
        shape = (view.h / (bottom - top), view.w / (right - left))  # rows and columns, were the whole picture like this
        views.append((shape[0] * shape[1], shape, view, start))
        start += view.n
    views.sort(key=lambda entry: entry[0])  # the finest last, over the coarser ones
    rows, columns = (max(1, round(count)) for count in views[-1][1])
    y, x = (torch.arange(rows).double() + 0.5) / rows, (torch.arange(columns).double() + 0.5) / columns
    at = torch.full((rows, columns), -1)
    for _, _, view, start in views:
        left, top, right, bottom = view.area
        down = ((y - top) / (bottom - top) * view.h).floor().long()[:, None]
        across = ((x - left) / (right - left) * view.w).floor().long()[None]
        inside = (down >= 0) & (down < view.h) & (across >= 0) & (across < view.w)
        at = torch.where(inside, start + down * view.w + across, at)
    places = at.flatten().to(tokens.device)
    picked = tokens[places.clamp_min(0)] * (places >= 0)[:, None]
    return picked.T.reshape(-1, rows, columns)


def encode_image(vlm: VLM, image: ImageLike) -> tuple[Encoded, Cells]:
    """All tokens of one image, without a prompt, and its grid."""
    prompter, look = vlm.prompter, vlm.look(image, straighten="off")
    inputs = prompter.tokenize([prompter.placeholders["image"]], look.vision) | look.vision.tensors
    visuals = vlm.adapter.visuals(inputs, look.sizes())
    with torch.no_grad():
        [encoded] = vlm.adapter.encode(inputs, visuals, None, ())
    return encoded, visuals[0].grid


def open_vlm_tokens(name: str, device: torch.device, dtype: torch.dtype) -> VlmTokens:
    """A model folder, a hub id or "reader" as an encoder: "vlm:NAME"."""
    vlm = load(name, dtype=dtype)
    vlm.model.to(device)
    return VlmTokens(vlm)
