"""Encode a smaller picture: the cheapest way to fewer tokens, and a strong one."""

from __future__ import annotations

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, Downscale, SelectionInput, Selector


class Resize(Selector):
    """Scale the picture down until it has about `k` cells, and keep them all.

    The baseline of "Are We Using the Right Benchmark: An Evaluation Framework for Visual Token Compression Methods"
    (2025), where it beats many that choose. Needs: the picture itself, an image.
    """

    name = "resize"
    early = True
    kinds = ("image",)

    def before_encoding(self, selection: SelectionInput) -> Downscale | Choice:
        if selection.kind != "image":
            raise SelectorError(f"selector 'resize' makes images smaller, not videos, got {selection.kind}")
        return Downscale(selection.count) if selection.count else Choice(selection.candidates[:0])
