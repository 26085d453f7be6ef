"""Checkpoints from which a run goes on as if it had never stopped."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2VLForConditionalGeneration

from recipes.reader.cells import CellHead


@dataclass
class Run:
    """Everything that changes while training."""

    model: Qwen2VLForConditionalGeneration
    head: CellHead
    average: Qwen2VLForConditionalGeneration  # moving average of the model's weights: what is measured and shipped
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0  # of training, measuring not counted
    images: int = 0

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = {name: getattr(self, name).state_dict() for name in ("model", "head", "average")}
        state = parts | {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counts": (self.step, self.seconds, self.images),
        }
        unfinished = path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        os.replace(unfinished, path)  # a run killed while saving must not lose the last good checkpoint

    def load(self, path: Path, device: str) -> None:
        state = torch.load(path, map_location=device, weights_only=True)
        for name in ("model", "head", "average"):
            getattr(self, name).load_state_dict(state[name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self.images = state["counts"]
