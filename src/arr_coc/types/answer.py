"""`Answer`, and the prepared prompt it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from arr_coc.types.allocation import Allocation


@dataclass(frozen=True, eq=False)
class Shown:
    """What a conversation is about, kept so that a follow-up can choose cells again."""

    look: Any  # the pictures after preprocessing, with their encodings
    request: Any  # how cells were chosen: what a follow-up leaves out is taken from here
    ids: torch.Tensor  # [1, T] the dense conversation: every visual token, and all text so far
    read: tuple[Any, ...]  # of each picture: the features of the cells that the language model has read
    about: str = ""  # the last question that named something
    turns: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class Prepared(Mapping[str, Any]):
    """Keyword arguments for the model's own `generate`: `model.generate(**prepared)`.

    `generate` returns the pruned prompt followed by the answer: slice at `prepared.length`. The arguments are rebuilt for
    each call, because beam search modifies them in place.
    """

    make: Callable[[], dict[str, Any]]
    length: int  # of the pruned prompt
    allocations: tuple[Allocation, ...]
    source: torch.Tensor  # [B, L] position of each token in the dense prompt; -1 for padding
    places: tuple[torch.Tensor, ...]  # positions [K] of each allocation's kept cells in the dense prompt
    timings: Mapping[str, float] = field(default_factory=dict)  # milliseconds by stage
    messages: tuple[tuple[Mapping[str, Any], ...], ...] = ()  # the conversation of each row
    texts: tuple[str, ...] = ()  # each row's prompt as text
    shown: Callable[[], Shown] | None = None  # for follow-ups; None: there can be none
    about: Callable[[int], Any] | None = None  # what a selector would get for each picture of a row; None: not known

    def __getitem__(self, name: str) -> Any:
        return self.make()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.make())

    def __len__(self) -> int:
        return len(self.make())

    @property
    def rows(self) -> int:
        return len(self.source)

    def of_row(self, row: int) -> tuple[Allocation, ...]:
        return tuple(allocation for allocation in self.allocations if allocation.row == row)

    def __repr__(self) -> str:
        return f"Prepared({self.rows} x {self.length} tokens, {list(self.allocations)})"


@dataclass(frozen=True, eq=False)
class Turn:
    """State for a follow-up question: the pruned KV cache and the conversation so far."""

    ids: torch.Tensor  # [1, L] pruned prompt and answer
    mask: torch.Tensor  # [1, L]
    positions: torch.Tensor  # [1, L] or [3, 1, L]
    cache: Any
    weights: Any  # the state of the model's weights that computed the cache: adapters can be switched
    messages: tuple[Mapping[str, Any], ...]
    prompt: str  # the prompt and the answer as text
    source: torch.Tensor  # [1, L] position of each token in the dense conversation
    places: tuple[torch.Tensor, ...]
    shown: Shown

    @property
    def entries(self) -> int:
        """Tokens in the cache: without the answer's last one, which nothing was generated after."""
        return min(int(self.cache.get_seq_length()), self.ids.shape[1])


@dataclass(frozen=True)
class Attempt:
    """One of the readings behind an answer with `ask(..., sure=...)`."""

    text: str
    confidence: float | None
    kept: int  # visual tokens that it read

    def to_dict(self) -> dict[str, Any]:
        return {
            "answer": self.text,
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "kept": self.kept,
        }


@dataclass(frozen=True, eq=False)
class Answer:
    """A model's answer, the cells it is based on, and the time of each stage."""

    text: str  # or that it is not in the picture, where the answer is refused
    allocations: tuple[Allocation, ...]
    timings: Mapping[str, float]  # milliseconds by stage, of the whole batch
    ids: torch.Tensor = field(repr=False)  # [A] the answer's tokens
    prompt_tokens: int = 0
    turn: Turn | None = field(default=None, repr=False)
    token_probabilities: torch.Tensor | None = field(default=None, repr=False)  # [A]; None with beams
    end_probability: float | None = None  # of the token that ends the answer; None with beams, and where it was cut off
    confidence: float | None = None  # probability that the answer or its refusal is right, in [0, 1]; None with beams
    confidence_source: str = ""  # "calibrated", "mean token probability", or "bounded: ..." (vlm/confidence.py)
    tried: tuple[Attempt, ...] = ()  # with `sure`: all readings, in order
    refused: str = ""  # why nothing in the picture answers the question; empty if the answer stands
    raw_text: str = ""  # what the model wrote, also where `text` is a refusal
    facts: Mapping[str, float] = field(
        default_factory=dict, repr=False
    )  # what confidence and refusal are computed from

    @property
    def allocation(self) -> Allocation:
        """The first image's allocation."""
        if not self.allocations:
            raise AttributeError("this answer has no image")
        return self.allocations[0]

    @property
    def tokens(self) -> dict[str, int]:
        """Visual tokens: all, encoded, kept; and, for a follow-up, those that this turn added to the kept ones."""
        found = {
            "all": sum(a.n for a in self.allocations),
            "encoded": sum(len(a.encoded) for a in self.allocations),
            "kept": sum(a.k for a in self.allocations),
        }
        if any(a.earlier is not None for a in self.allocations):
            found["added"] = sum(len(a.added) for a in self.allocations)
        return found

    @property
    def tokens_paid(self) -> int:
        """Visual tokens that the language model read for this answer, those of all attempts together."""
        return sum(one.kept for one in self.tried) if self.tried else self.tokens["kept"]

    @property
    def fallback(self) -> str:
        """Why a selector's own choice was replaced for any image; empty if all were used."""
        return "; ".join(a.fallback for a in self.allocations if a.fallback)

    def to_dict(self) -> dict[str, Any]:
        only = self.allocations[0].to_dict() if len(self.allocations) == 1 else {}
        return {
            "answer": self.text,
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "confidence_source": self.confidence_source,
            "refused": self.refused,
            "raw_text": self.raw_text,
            "tokens": self.tokens,
            "tokens_paid": self.tokens_paid,
            "tried": [one.to_dict() for one in self.tried],
            "timings_ms": {stage: round(ms, 2) for stage, ms in self.timings.items()},
            "strategy": "; ".join(dict.fromkeys(a.strategy for a in self.allocations)),
            "fallback": self.fallback,
            "grid": only.get("grid", [a.to_dict()["grid"] for a in self.allocations]),
            "keep": only.get("keep", [a.keep.tolist() for a in self.allocations]),
            **({"cells": only["cells"]} if "cells" in only else {}),
            "notes": [note for a in self.allocations for note in a.notes],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        return self.text
