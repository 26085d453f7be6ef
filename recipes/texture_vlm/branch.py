"""Settings, and one branch of the experiment: a reader with k dimensions between its encoder and its language model.

Several branches are trained together. They see the same batches, encoded once, and share the encoder and everything else
that is frozen.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.embedding.projection import TENSORS, Projection
from arr_coc.errors import ArrCocError
from arr_coc.training.loop import step_optimizers
from recipes.reader.batches import Batch
from recipes.reader.forward import ReaderForward
from recipes.reader.losses import answer_loss
from recipes.reader.optimizer import Muon
from recipes.reader.recipe import STEP_KINDS, Settings
from recipes.texture_vlm.model import Lift, language_weights, with_own

_BETAS, _DECAY = (0.9, 0.98), 0.05
LIFT, LANGUAGE = 0, 1  # the two stages
STAGES = ("lift", "language model")

# Cells are dropped before the encoder only: three batch shapes instead of five, and half of the compile time.
KINDS = tuple(kind for kind in STEP_KINDS if kind.kept == kind.encoded)


def unexplained(restored: torch.Tensor, features: torch.Tensor, spread: float) -> torch.Tensor:
    """The share of the features' variance that reconstruction loses."""
    return (restored.float() - features.float()).square().sum(-1).mean() / max(spread, math.ulp(1.0))


@dataclass(frozen=True)
class TextureSettings:
    """`common`: time, device, workers, seeds. Its learning rate is not used."""

    common: Settings = field(default_factory=lambda: Settings(seconds=420.0, warmup_steps=50))
    dims: tuple[int, ...] = (16, 32, 64)
    first_share: float = 0.4  # of the training time, for the lift alone
    lift_lr: float = 2e-3  # highest learning rate of the first stage
    language_lr: float = 5e-4  # and of the second
    hidden: int = 1024  # units of the lift's hidden layer; 0: a linear lift
    layers: int | None = None  # the language model's last layers, trained in the second stage; None: all
    restoring: float = 1.0  # weight of restoring the tokens themselves, in the first stage
    pictures: int = 4096  # to fit the principal components on
    cells: int = 128  # of each of them

    def __post_init__(self) -> None:
        if not self.dims or len(set(self.dims)) < len(self.dims) or min(self.dims) < 1:
            raise ArrCocError(f"expected numbers of dimensions, all different, got {list(self.dims)}")
        if not 0 < self.first_share < 1:
            raise ArrCocError(f"expected a share of the time between 0 and 1, got {self.first_share}")
        if self.common.seconds is None:
            raise ArrCocError("expected the seconds that a call may take")
        if self.layers is not None and self.layers < 1:
            raise ArrCocError(f"expected at least one layer of the language model to adapt, got {self.layers}")

    def for_stage(self, stage: int) -> Settings:
        """`common` with the learning rate of a stage."""
        return replace(self.common, lr=self.lift_lr if stage == LIFT else self.language_lr)


@dataclass(frozen=True)
class TextureLosses:
    """Losses of one step, still on the device."""

    answer: torch.Tensor
    unexplained: torch.Tensor  # share of the tokens' variance that the lift does not restore


class TextureForward(ReaderForward):
    """A reader whose visual tokens pass through k dimensions."""

    def __init__(
        self, model: Qwen2VLForConditionalGeneration, projection: Projection, lift: Lift, compiled: bool = False
    ) -> None:
        super().__init__(model, compiled)
        device = model.device
        moved: dict[str, Any] = {name: getattr(projection, name).to(device) for name in TENSORS}
        self.projection, self.lift = replace(projection, **moved), lift

    def restore(self, visual: torch.Tensor) -> torch.Tensor:
        """Project tokens `[B, M, width]` to k dimensions and lift them back, in float32 even under autocast."""
        with torch.autocast(visual.device.type, enabled=False):
            return self.lift(self.projection.transform(visual.flatten(0, 1))).view(visual.shape)

    def encode(self, patches: torch.Tensor, cells: torch.Tensor, columns: int, rows: int | None = None) -> torch.Tensor:
        visual = super().encode(patches, cells, columns, rows)
        return self.restore(visual).to(visual.dtype)


def adapted_parameters(
    model: Qwen2VLForConditionalGeneration, layers: int | None
) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that the second stage trains with the lift: the last layers and the final norm."""
    depth = len(model.model.language_model.layers)
    if layers is not None and layers > depth:
        raise ArrCocError(f"expected at most the {depth} layers that the language model has, got {layers}")
    first = 0 if layers is None else depth - layers
    inside = "model.language_model."
    starts = [f"{inside}norm.", *(f"{inside}layers.{number}." for number in range(first, depth))]
    return ((name, p) for name, p in model.named_parameters() if name.startswith(tuple(starts)))


class Branch:
    """A reader with `projection.dims` dimensions between its encoder and its language model.

    `reader` is frozen; the branch has its own copies of the trained weights. `spread` is the tokens' variance.
    """

    def __init__(
        self, reader: Qwen2VLForConditionalGeneration, projection: Projection, spread: float, settings: TextureSettings
    ) -> None:
        self.settings, self.projection, self.spread = settings, projection, spread
        device = reader.device
        with torch.random.fork_rng(devices=[]):  # the weights do not depend on the other branches
            torch.manual_seed(settings.common.seed + projection.dims)
            self.lift = Lift(projection, settings.hidden, spread).to(device)
        self.model = with_own(reader, [p for _, p in adapted_parameters(reader, settings.layers)])
        self.forward = TextureForward(self.model, projection, self.lift, settings.common.compiled)
        self.eager_forward = TextureForward(self.model, projection, self.lift)
        self.optimizers: list[torch.optim.Optimizer] = []

    @property
    def dims(self) -> int:
        return self.projection.dims

    @property
    def variance(self) -> float:
        """The share of the tokens' variance that the dimensions keep."""
        return float(self.projection.variance.sum())

    @property
    def language(self) -> list[nn.Parameter]:
        return [parameter for _, parameter in adapted_parameters(self.model, self.settings.layers)]

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters of the current stage."""
        return [p for p in (*self.lift.parameters(), *self.language) if p.requires_grad]

    def set_trainable(self, stage: int) -> None:
        """Only the stage's parameters require gradients."""
        for parameter in self.language:
            parameter.requires_grad_(stage == LANGUAGE)
            parameter.grad = None

    def start_stage(self, stage: int) -> None:
        """Make the stage's parameters trainable, and create its optimisers."""
        self.set_trainable(stage)
        rate, fused = self.settings.for_stage(stage).lr, self.settings.common.on_gpu
        mapping = [parameter for parameter in self.lift.parameters() if parameter.ndim > 1]
        plain = [parameter for parameter in self.lift.parameters() if parameter.ndim <= 1]
        adapted = [parameter for parameter in self.language if parameter.requires_grad]
        matrices = [parameter for parameter in adapted if parameter.ndim > 1]
        plain += [parameter for parameter in adapted if parameter.ndim <= 1]
        groups = [{"params": mapping, "weight_decay": _DECAY}, {"params": plain, "weight_decay": 0.0}]
        self.optimizers = [torch.optim.AdamW(groups, lr=rate, betas=_BETAS, fused=fused)]
        if matrices:
            self.optimizers.append(Muon(matrices, lr=rate, weight_decay=_DECAY))

    def backward(self, stage: int, visual: torch.Tensor, cells: torch.Tensor, batch: Batch) -> TextureLosses:
        """Compute the gradients of a batch with the encoder tokens `visual` [B, M, width] of `cells`. Earlier ones are dropped."""
        for parameter in self.trained:
            parameter.grad = None
        kind = visual.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            restored = self.forward.restore(visual)
            logits = self.forward.logits(
                restored.to(visual.dtype), cells, batch.grid, batch.tokens, batch.segment, batch.place
            )
        found = TextureLosses(answer_loss(logits, batch), unexplained(restored, visual, self.spread))
        (found.answer + (self.settings.restoring if stage == LIFT else 0.0) * found.unexplained).backward()
        return found

    def update(self, lr: float) -> None:
        """Step on the gradients."""
        step_optimizers(self.optimizers, self.trained, lr, self.settings.common.clip)

    def state_dict(self) -> dict[str, Any]:
        return {
            "lift": self.lift.state_dict(),
            "language": {name: p.detach() for name, p in adapted_parameters(self.model, self.settings.layers)},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The branch must have started the state's stage."""
        self.lift.load_state_dict(state["lift"])
        with torch.no_grad():
            for name, parameter in adapted_parameters(self.model, self.settings.layers):
                parameter.copy_(state["language"][name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def half_language_weights(self) -> dict[str, torch.Tensor]:
        """The language model's weights in half precision, as in the shipped reader."""
        return {n: p.detach().half() for n, p in language_weights(self.model, self.model.model.language_model).items()}
