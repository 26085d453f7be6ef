"""What each process of a pair runs: a layer learned over `torchrun`, and what it ended with written down."""

import sys
from pathlib import Path

import torch

from arr_coc.evaluation.data import read_samples
from arr_coc.layer.identity import config_for
from arr_coc.training import loop
from arr_coc.training.distributed import joined
from arr_coc.training.examples import lessons
from arr_coc.training.journal import Journal
from arr_coc.training.settings import Settings
from tests.training import squares


def main() -> None:
    torch.set_num_threads(1)
    place, vlm = Path(sys.argv[1]), squares.model()
    config = config_for(vlm.adapter, **squares.SHAPE)
    kept = []

    class Kept(loop.Run):
        def __init__(self, *given):
            super().__init__(*given)
            kept.append(self)

    loop.Run = Kept
    with joined("cpu") as team:
        found = [
            lesson
            for name in ("data", "other")
            for lesson in lessons(vlm, read_samples(place / name), config, share=(team.rank, team.size))
        ]
        settings = Settings(steps=4, warmup_steps=1, pictures=2)
        loop.learn(
            vlm, config, found, [], place / "out", settings, team=team, journal=Journal(place / "out", lines=False)
        )
        torch.save({"layer": kept[0].layer.state_dict(), "lessons": len(found)}, place / f"rank{team.rank}.pt")


if __name__ == "__main__":
    main()
