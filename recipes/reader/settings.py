"""How long and how to train, and the learning rate that follows from it."""

import math
from dataclasses import dataclass

import torch

SCHEDULE_SECONDS = 1380.0


@dataclass(frozen=True)
class Settings:
    """The learning rate and the mix of documents follow the share of `schedule_seconds` that has passed."""

    seconds: float | None = None  # of this call, from its start to its end; None: until the schedule ends
    schedule_seconds: float = SCHEDULE_SECONDS  # of training over all calls
    finish: bool = False  # bring the schedule to its end within `seconds`, however long it would be otherwise
    steps: int | None = None  # stop after so many even if there is time left
    lr: float = 2e-3
    warmup_steps: int = 200
    last_lr: float = 0.02  # of the highest
    cell_weight: float = 1.0
    colour_weight: float = 0.5
    mix_from: float = (
        0.0  # how far the mix of documents has come at the start: more than 0 for a reader that reads already
    )
    average: float = 0.998
    clip: float = 1.0
    save_every: float = 60.0  # seconds
    measure_every: float = 150.0
    reserve: float = 25.0  # of `seconds`, kept for the last measurement and for saving
    workers: int = 15  # processes that render, for each process that trains
    uses: int = 3
    seed: int = 0  # of the weights
    document_seed: int = 0  # another one draws other documents
    device: str = "cuda"
    compiled: bool = True

    def __post_init__(self) -> None:
        if self.finish and self.seconds is None:
            raise ValueError("finish brings the schedule to its end within `seconds`, which must then be given")

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def mixed(self, progress: float) -> float:
        """How far the mix of documents has come."""
        return self.mix_from + (1 - self.mix_from) * progress


def rate(settings: Settings, step: int, progress: float) -> float:
    """Learning rate: a linear start, then a cosine by the clock."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return (
        settings.lr
        * min(1.0, (step + 1) / settings.warmup_steps)
        * (settings.last_lr + (1 - settings.last_lr) * cosine)
    )
