"""Training batches from processes that start when the first one is asked for."""

from collections.abc import Callable

from recipes.reader import source
from recipes.reader.batches import Batch
from recipes.reader.recipe import StepKind
from recipes.reader.settings import Settings
from recipes.reader.supply import Supply

_MIX = 1.0  # of documents: that of the end of a reader's training


class Renderers:
    """Batches while it is entered. `seed` is asked when the processes start."""

    def __init__(
        self, library: source.Library, kinds: tuple[StepKind, ...], settings: Settings, seed: Callable[[], int]
    ) -> None:
        self.library, self.kinds, self.settings, self.seed = library, kinds, settings, seed
        self._batches: source.TrainingBatches | None = None
        self._supply: Supply | None = None

    def next(self) -> Batch:
        """A batch, fresh or used before, as `Supply` has it."""
        return self.start().next()

    def fresh(self) -> Batch:
        """One that was not used before."""
        supply = self.start()
        supply.uses = 1
        try:
            return supply.next()
        finally:
            supply.uses = self.settings.uses

    def pause(self) -> None:
        """Let the processes rest, so that measuring has the processor for itself."""
        if self._batches is not None:
            self._batches.pause()

    def resume(self) -> None:
        if self._batches is not None:
            self._batches.resume()

    def start(self) -> Supply:
        """Start the processes, unless they run already."""
        if self._supply is None:
            settings = self.settings
            self._batches = source.TrainingBatches(self.library, self.kinds, self.seed())
            self._batches.progress.value = _MIX
            loader = source.loader(self._batches, settings.workers, pin=settings.on_gpu)
            self._supply = Supply(loader, settings.device, settings.uses, background=settings.workers > 0)
        return self._supply

    def __enter__(self) -> "Renderers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._batches is not None and self._supply is not None:
            self._batches.end()
            self._supply.stop()
