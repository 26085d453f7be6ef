"""One number of dimensions: a reader that reads from so many, and how its parts are trained.

Several branches are trained side by side. They see the same batches, encoded once, and share the encoder and everything else
that stays frozen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.embedding.projection import TENSORS, Projection
from arr_coc.errors import ArrCocError
from arr_coc.vlm.token_codec import Lift, language_weights, unexplained, with_own
from recipes.reader.batches import Batch
from recipes.reader.forward import ReaderForward
from recipes.reader.losses import answer_loss
from recipes.reader.optimizer import Muon
from recipes.texture_vlm.settings import LANGUAGE, LIFT, TextureSettings

_BETAS, _DECAY = (0.9, 0.98), 0.05


@dataclass(frozen=True)
class TextureLosses:
    """Losses of one step, on the device until somebody asks."""

    answer: torch.Tensor
    unexplained: torch.Tensor  # share of the tokens' variance that the lift does not restore


class TextureForward(ReaderForward):
    """A reader whose visual tokens have gone through k dimensions."""

    def __init__(
        self, model: Qwen2VLForConditionalGeneration, projection: Projection, lift: Lift, compiled: bool = False
    ) -> None:
        super().__init__(model, compiled)
        device = model.device
        moved: dict[str, Any] = {name: getattr(projection, name).to(device) for name in TENSORS}
        self.projection, self.lift = replace(projection, **moved), lift

    def restored(self, visual: torch.Tensor) -> torch.Tensor:
        """Tokens `[B, M, width]` as the lift restores them from k dimensions; in float32, whatever autocast says."""
        with torch.autocast(visual.device.type, enabled=False):
            return self.lift(self.projection.transform(visual.flatten(0, 1))).view(visual.shape)

    def encode(self, patches: torch.Tensor, cells: torch.Tensor, columns: int) -> torch.Tensor:
        visual = super().encode(patches, cells, columns)
        return self.restored(visual).to(visual.dtype)


def adapting(model: Qwen2VLForConditionalGeneration, layers: int | None) -> Iterator[tuple[str, nn.Parameter]]:
    """What the second stage adapts beside the lift: the last layers and the final norm. Word embeddings stay."""
    depth = len(model.model.language_model.layers)
    if layers is not None and layers > depth:
        raise ArrCocError(f"expected at most the {depth} layers that the language model has, got {layers}")
    first = 0 if layers is None else depth - layers
    inside = "model.language_model."
    starts = [f"{inside}norm.", *(f"{inside}layers.{number}." for number in range(first, depth))]
    return ((name, p) for name, p in model.named_parameters() if name.startswith(tuple(starts)))


class Branch:
    """A reader with `projection.dims` dimensions between its encoder and its language model.

    `reader` is frozen; the branch has weights of its own for what adapts. `spread` is the tokens' variance.
    """

    def __init__(
        self, reader: Qwen2VLForConditionalGeneration, projection: Projection, spread: float, settings: TextureSettings
    ) -> None:
        self.settings, self.projection, self.spread = settings, projection, spread
        device = reader.device
        with torch.random.fork_rng(devices=[]):  # the same weights, whichever other branches there are
            torch.manual_seed(settings.common.seed + projection.dims)
            self.lift = Lift(projection, settings.hidden, spread).to(device)
        self.model = with_own(reader, [p for _, p in adapting(reader, settings.layers)])
        self.forward = TextureForward(self.model, projection, self.lift, settings.common.compiled)
        self.measured = TextureForward(self.model, projection, self.lift)
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
        return [parameter for _, parameter in adapting(self.model, self.settings.layers)]

    @property
    def trained(self) -> list[nn.Parameter]:
        """What the present stage trains."""
        return [p for p in (*self.lift.parameters(), *self.language) if p.requires_grad]

    def free(self, stage: int) -> None:
        """Let gradients reach what the stage trains, and nothing else."""
        for parameter in self.language:
            parameter.requires_grad_(stage == LANGUAGE)
            parameter.grad = None

    def begin(self, stage: int) -> None:
        """Free what the stage trains, and start its optimisers afresh."""
        self.free(stage)
        rate, fused = self.settings.of_stage(stage).lr, self.settings.common.on_gpu
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
        """Gradients of a batch whose encoder tokens `visual` [B, M, width] stand at `cells`, in place of earlier ones."""
        for parameter in self.trained:
            parameter.grad = None
        kind = visual.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            restored = self.forward.restored(visual)
            logits = self.forward.logits(
                restored.to(visual.dtype), cells, batch.grid, batch.tokens, batch.segment, batch.place
            )
        found = TextureLosses(answer_loss(logits, batch), unexplained(restored, visual, self.spread))
        (found.answer + (self.settings.restoring if stage == LIFT else 0.0) * found.unexplained).backward()
        return found

    def update(self, rate: float) -> None:
        """Step on the gradients that are there."""
        torch.nn.utils.clip_grad_norm_(self.trained, self.settings.common.clip)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "lift": self.lift.state_dict(),
            "language": {name: p.detach() for name, p in adapting(self.model, self.settings.layers)},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into a branch that has begun the stage that the state is of."""
        self.lift.load_state_dict(state["lift"])
        with torch.no_grad():
            for name, parameter in adapting(self.model, self.settings.layers):
                parameter.copy_(state["language"][name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def adapted(self) -> dict[str, torch.Tensor]:
        """The language model's weights in half precision, as the reader itself is shipped."""
        return {n: p.detach().half() for n, p in language_weights(self.model, self.model.model.language_model).items()}
