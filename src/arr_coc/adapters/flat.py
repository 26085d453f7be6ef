"""What families share whose tokens stand in one line: one position per token, visual tokens counted like words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Adapter, Inputs
from arr_coc.errors import ModelError, PromptError


@cache
def _one_tensor() -> type:
    """Features `[K, 1, D]` of rows with `counts` tokens each, which beam search can repeat row by row.

    Some versions of transformers repeat each entry instead, and hand back a list of entries in that wrong order.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    class OneTensor(BaseModelOutputWithPooling):
        counts: ClassVar[Sequence[int]] = ()

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "pooler_output" and isinstance(value, list) and self.counts:
                times = len(value) // sum(self.counts)
                whole: Any = self.pooler_output
                rows = whole.split(list(self.counts))
                value = [token for row in rows for _ in range(times) for token in row]
            super().__setattr__(name, value)

    return dataclass(OneTensor)


class Flat(Adapter):
    """Positions `[B, T]`, as the model's own `generate` counts them."""

    as_tensor: ClassVar[tuple[str, ...]] = ()  # kinds whose features the model wants as one tensor, not one per row

    def positions(self, inputs: Inputs) -> torch.Tensor:
        self._check_attention()
        mask = inputs["attention_mask"].long()
        return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)

    def encoder_outputs(
        self, kept: Mapping[str, list[tuple[torch.Tensor, tuple[torch.Tensor, ...]]]]
    ) -> dict[str, Any]:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        made: dict[str, Any] = {}
        for kind, rows in kept.items():
            tokens: Any = tuple(tokens for tokens, _ in rows)  # one tensor a row
            if kind not in self.as_tensor:
                made[kind] = BaseModelOutputWithPooling(pooler_output=tokens)
            elif any(len(part) for part in tokens):  # else no token is left to fill
                made[kind] = _one_tensor()(pooler_output=torch.cat(tokens)[:, None])  # [K, 1, D]
                made[kind].counts = [len(part) for part in tokens]
        return made

    def pixels(self, inputs: Inputs, key: str = "pixel_values") -> torch.Tensor:
        """The processor's pixels, on the model's device."""
        pixels = inputs.get(key)
        if pixels is None:
            raise PromptError(f"expected {key} beside the visual tokens of the prompt, got none: pass it on")
        return pixels.to(self.device)

    @property
    def width(self) -> int:
        return int(self.config.get_text_config().hidden_size)

    def nothing(self) -> torch.Tensor:
        """Features of no token: `[0, D]`."""
        return torch.zeros(0, self.width, device=self.device, dtype=self.model.dtype)

    def check(self) -> None:
        super().check()
        text = self.config.get_text_config()
        if not hasattr(self.text_model, "rotary_emb"):
            raise ModelError(
                f"expected a language model with rotary positions, got {text.model_type!r}: "
                "kept tokens could not stay at their own positions"
            )
        self._check_attention()

    def _check_attention(self) -> None:
        # Flash attention takes a jump in the positions of a single row for the start of another text.
        chosen = self.config.get_text_config()._attn_implementation
        if chosen and "flash" in chosen:
            raise ModelError(
                f"expected attn_implementation='sdpa' for {self.family}, got {chosen!r}, which reads a gap in the positions "
                "as the start of another text: load the model with attn_implementation='sdpa'"
            )
