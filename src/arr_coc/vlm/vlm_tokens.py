"""A vision-language model's own tokens as an encoder: no further weights, and what the language model will read anyway.

A picture's cells are its visual tokens after the projector, a question is the mean of its words' input embeddings; both live
in the language model's embedding space. That is one space, but no joint one: nothing ever trained a picture of a dog to lie
near the word "dog" there. How much it finds is to be measured for each model, not assumed.

Notable:
- how finely a picture is looked at is the model's own processor's business, so both modes are the same;
- tiles and an overview are laid onto one even grid, the finest view that saw a place counting;
- what the processor cut off was not seen: those cells are zero.
"""

from __future__ import annotations

from functools import cached_property

import torch

from arr_coc.embedding.encoder import Encoder, Mode, fingerprint, register_encoder, subject
from arr_coc.types.grid import Cells
from arr_coc.vlm.api import load
from arr_coc.vlm.model import VLM

# Neither changes a token before the language model's first block, and they are most of the weights.
LATER = ("language_model.layers.", "lm_head.")


class VlmTokens(Encoder):
    """A wrapped model (`arr_coc.load`, `arr_coc.wrap`) as an encoder."""

    name = "vlm"

    def __init__(self, vlm: VLM) -> None:
        self.vlm = vlm
        self.device = vlm.device
        table = vlm.model.get_input_embeddings().weight
        self.dtype, self.width = table.dtype, int(table.shape[1])

    @cached_property
    def identity(self) -> str:
        """Over the weights as they are loaded: this model is not opened here, so its precision is part of it."""
        model = self.vlm.model
        weights = {name: w for name, w in model.state_dict().items() if not any(part in name for part in LATER)}
        seeing = getattr(self.vlm.processor, "image_processor", None)
        settings = (model.config.model_type, "" if seeing is None else seeing.to_json_string())
        return f"vlm-{fingerprint(weights, settings)}"

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        adapter, prompter = self.vlm.adapter, self.vlm.prompter
        seen = self.vlm.look(pixels)
        inputs = prompter.tokenize([prompter.placeholders["image"]], seen.vision) | seen.vision.tensors
        visuals = adapter.visuals(inputs, seen.sizes())
        [encoded] = adapter.encode(inputs, visuals, None, ())
        return evenly(encoded.tokens, visuals[0].grid)

    def embed(self, questions: list[str]) -> torch.Tensor:
        adapter, prompter = self.vlm.adapter, self.vlm.prompter
        return torch.stack([adapter.embed(prompter.ids(subject(q))).float().mean(0) for q in questions])


def evenly(tokens: torch.Tensor, grid: Cells) -> torch.Tensor:
    """Cells' tokens `[N, D]` on an even grid over the whole picture: `[D, h, w]`, zero where no cell lies."""
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


def open_vlm_tokens(name: str, device: torch.device, dtype: torch.dtype) -> VlmTokens:
    """A model folder or hub id, or "reader", as an encoder."""
    vlm = load(name, dtype=dtype)
    vlm.model.to(device)
    return VlmTokens(vlm)


register_encoder("vlm", open_vlm_tokens)
