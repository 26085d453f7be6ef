"""One training run: the model, its optimisers and moving average, and a step of them."""

import copy
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.errors import ArrCocError
from arr_coc.reader.model import STANDARD, ReaderShape, build
from arr_coc.training.distributed import Team
from recipes.reader.batches import Batch
from recipes.reader.cells import CellHead
from recipes.reader.checkpoint import Run
from recipes.reader.forward import ReaderForward
from recipes.reader.losses import Losses, losses
from recipes.reader.optimizer import optimizers
from recipes.reader.settings import Settings, rate

_BETWEEN_RANKS = 1_000_003  # between the seeds of the noise that different ranks see


def _start_from(model: Qwen2VLForConditionalGeneration, weights: Path) -> None:
    found = model.load_state_dict(load_file(weights / "model.safetensors"), strict=False)
    wrong = sorted({*found.missing_keys, *found.unexpected_keys} - {"lm_head.weight"})  # tied, so never stored
    if wrong:
        raise ArrCocError(
            f"expected {weights} to hold a reader of the trained shape, but these do not fit: {wrong[:4]}"
        )
    model.tie_weights()


class Trainer:
    """One training run, possibly the continuation of an earlier one, possibly one of several processes of it."""

    def __init__(
        self,
        settings: Settings,
        shape: ReaderShape = STANDARD,
        weights: Path | None = None,
        team: Team | None = None,
    ) -> None:
        """`weights`: a model folder to start from instead of from scratch."""
        torch.manual_seed(settings.seed)
        torch.set_float32_matmul_precision("high")
        self.settings, self.team = settings, team or Team()
        model = build(shape)
        if weights is not None:
            _start_from(model, weights)
        model.to(torch.device(settings.device))  # type: ignore[arg-type]  # transformers wraps `to` without its self
        head = CellHead(shape.width).to(settings.device)
        average = copy.deepcopy(model).eval().requires_grad_(False)
        self.run = Run(model, head, average, optimizers(model, head, settings.lr, fused=settings.on_gpu))
        self.forward = ReaderForward(model, settings.compiled)
        self.measured = ReaderForward(average)
        if self.team.rank:
            torch.manual_seed(settings.seed + _BETWEEN_RANKS * self.team.rank)

    @property
    def weights(self) -> list[nn.Parameter]:
        """Everything that is trained."""
        return [*self.run.model.parameters(), *self.run.head.parameters()]

    def step(self, batch: Batch, progress: float) -> Losses:
        """One step of both optimisers and of the moving average, the same one in every process of the team."""
        found = self.backward(batch)
        self.team.average_gradients(self.weights)
        self.update(progress)
        return found

    def backward(self, batch: Batch) -> Losses:
        """This batch's gradients, in place of earlier ones."""
        for optimizer in self.run.optimizers:
            optimizer.zero_grad(set_to_none=True)
        found = losses(self.forward, self.run.head, batch)
        weights = self.settings.cell_weight, self.settings.colour_weight
        (found.answer + weights[0] * found.cell + weights[1] * found.colour).backward()
        return found

    def update(self, progress: float) -> None:
        """Step on the gradients that are there, and let the moving average follow."""
        run, settings = self.run, self.settings
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate(progress) * group.get("rate_share", 1.0)
        torch.nn.utils.clip_grad_norm_(self.weights, settings.clip)
        for optimizer in run.optimizers:
            optimizer.step()
        run.step += 1
        keep = min(settings.average, (1 + run.step) / (10 + run.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(run.average.parameters()), list(run.model.parameters()), 1 - keep)

    def rate(self, progress: float) -> float:
        """Learning rate of the next step."""
        return rate(self.settings, self.run.step, progress)

    def warm_up(self, batch: Batch) -> float:
        """Compile for this kind of batch without learning anything; returns the seconds a compiled pass takes."""
        for _ in range(2):
            self._finish_work()
            started = time.monotonic()
            self.backward(batch)
            for optimizer in self.run.optimizers:
                optimizer.zero_grad(set_to_none=True)
            self._finish_work()
        return time.monotonic() - started

    def _finish_work(self) -> None:
        if self.settings.on_gpu:
            torch.cuda.synchronize()
