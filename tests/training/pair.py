"""Run by `torchrun` on each of two ranks: train a layer and write what the rank ended with."""

import sys
from pathlib import Path

import torch

from arr_coc.evaluation.data import read_samples
from arr_coc.layer.identity import config_for
from arr_coc.training.batches import LayerTrainingSettings
from arr_coc.training.distributed import init_world
from arr_coc.training.examples import load_examples
from arr_coc.training.journal import Journal
from arr_coc.training.layer import train_layer
from tests.training import squares


def main() -> None:
    torch.set_num_threads(1)
    place, vlm = Path(sys.argv[1]), squares.model()
    config = config_for(vlm.adapter, **squares.SHAPE)
    with init_world("cpu") as world:
        examples = [
            example
            for name in ("data", "other")
            for example in load_examples(vlm, read_samples(place / name), config, share=(world.rank, world.size))
        ]
        settings = LayerTrainingSettings(steps=4, warmup_steps=1, pictures=2)
        journal = Journal(place / "out", lines=False)
        done = train_layer(vlm, config, examples, [], place / "out", settings, world=world, journal=journal)
        names = {*dict(done.layer.named_parameters()), "mean", "spread"}  # the question memory is on rank 0 only
        layer = {name: weights for name, weights in done.layer.state_dict().items() if name in names}
        torch.save({"layer": layer, "examples": len(examples)}, place / f"rank{world.rank}.pt")


if __name__ == "__main__":
    main()
