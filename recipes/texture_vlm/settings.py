"""How a reader learns to read from few dimensions."""

from dataclasses import dataclass, field, replace

from arr_coc.errors import ArrCocError
from recipes.reader.recipe import STEP_KINDS
from recipes.reader.settings import Settings

LIFT, LANGUAGE = 0, 1  # the two stages
STAGES = ("lift", "language model")

# Cells are missing before the encoder only: three shapes of batches instead of five, and half of the compiling.
KINDS = tuple(kind for kind in STEP_KINDS if kind.kept == kind.encoded)


@dataclass(frozen=True)
class TextureSettings:
    """`common` has what all training has: time, device, workers, seeds. Its learning rate is not used."""

    common: Settings = field(default_factory=lambda: Settings(seconds=420.0, warmup_steps=50))
    dims: tuple[int, ...] = (16, 32, 64)
    first_share: float = 0.4  # of the training time, for the lift alone
    lift_lr: float = 2e-3  # highest learning rate of the first stage
    language_lr: float = 5e-4  # and of the second
    hidden: int = 1024  # units of the lift's hidden layer; 0: a linear lift
    layers: int | None = None  # the language model's last layers, which adapt in the second stage; None: all
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

    def of_stage(self, stage: int) -> Settings:
        """With the learning rate of a stage."""
        return replace(self.common, lr=self.lift_lr if stage == LIFT else self.language_lr)
