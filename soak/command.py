"""`arr-coc` that keeps its state several times a second instead of every 10 or 60 seconds, so that short runs have much to resume."""

import sys

from arr_coc.cli import main
from arr_coc.training import layer
from arr_coc.training.projection import gather

layer.SAVE_EVERY = gather.SAVE_EVERY = 0.1

if __name__ == "__main__":
    sys.exit(main())
