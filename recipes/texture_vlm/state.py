"""How far a run has come: checkpoints from which it goes on, and what was measured."""

import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from arr_coc.errors import ArrCocError
from recipes.texture_vlm.branch import Branch
from recipes.texture_vlm.results import Report
from recipes.texture_vlm.settings import LIFT


@dataclass
class State:
    """Everything that changes in a run, beside the branches' weights."""

    stage: int = LIFT  # the stage that is trained or comes next; behind the last one when all is done
    trained: bool = False  # it is trained, and only its measurement is missing
    step: int = 0  # of this stage
    seconds: float = 0.0  # trained in this stage
    images: int = 0  # of all stages
    measuring: float = 0.0  # seconds that a measurement of all branches takes
    results: dict[str, Report] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)  # steps and seconds of each stage that is behind

    def next_stage(self, name: str) -> None:
        self.history.append({"stage": name, "steps": self.step, "seconds": round(self.seconds, 1)})
        self.stage, self.trained, self.step, self.seconds = self.stage + 1, False, 0, 0.0

    def save(self, path: Path, made_of: dict[str, Any], branches: list[Branch]) -> None:
        """`made_of`: what a call that goes on from here must have in common with this one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"made of": made_of, "state": asdict(self), "branches": [branch.state_dict() for branch in branches]}
        unfinished = path.with_suffix(".unfinished")
        torch.save(whole, unfinished)
        os.replace(unfinished, path)  # a run killed while saving must not lose the last good checkpoint

    def load(self, path: Path, made_of: dict[str, Any], branches: list[Branch], device: str) -> None:
        whole = torch.load(path, map_location=device, weights_only=True)
        for name, value in made_of.items():
            if whole["made of"].get(name) != value:
                raise ArrCocError(
                    f"{str(path)!r} is of a run with {name} {whole['made of'].get(name)!r}, this call has {value!r}: "
                    "use another folder, or the same settings"
                )
        for entry in fields(self):
            setattr(self, entry.name, whole["state"][entry.name])
        for branch, saved in zip(branches, whole["branches"], strict=True):
            branch.begin(self.stage)
            branch.load_state_dict(saved)
