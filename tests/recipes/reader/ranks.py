"""Run by `torchrun` on each of two ranks: train a tiny reader and write what the rank ended with.

python -m torch.distributed.run --nproc-per-node 2 ranks.py OUT [STEPS]

With STEPS it renders in the training process and takes so many steps. Without, it renders in worker processes, saves and
measures all the time, and runs until a signal stops it.
"""

import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import torch

from arr_coc.training.distributed import init_world
from arr_coc.training.documents.page import FontSet
from recipes.reader.data import Library
from recipes.reader.model import TINY
from recipes.reader.recipe import TINY_STEP_KINDS, Settings
from recipes.reader.train import ReaderTrainer, train
from recipes.reader.validation import rendered_sheets

# The schedule is so long that progress stays at 0: a test can repeat the documents and the learning rate.
SETTINGS = Settings(
    seconds=600, schedule_seconds=1e9, lr=5e-3, warmup_steps=2, reserve=2, workers=0, device="cpu", compiled=False
)


def library() -> Library:
    fonts = sorted(map(str, Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf")))
    return Library(FontSet.from_paths(fonts))


def main() -> None:
    torch.set_num_threads(1)
    out, pages = Path(sys.argv[1]), library()
    if len(sys.argv) > 2:
        settings = replace(SETTINGS, steps=int(sys.argv[2]))
    else:
        settings = replace(SETTINGS, workers=1, save_every=0.3, measure_every=0.5)
    with init_world("cpu") as world:
        sheets = rendered_sheets(pages, 1)[-1:] if world.is_main else []
        run = train(ReaderTrainer(settings, TINY, world=world), pages, sheets, out, TINY_STEP_KINDS)
        state = {"model": run.model.state_dict(), "head": run.head.state_dict()}
        torch.save(state | {"counts": (run.step, run.seconds, run.images)}, out / f"rank{world.rank}.pt")


if __name__ == "__main__":
    main()
