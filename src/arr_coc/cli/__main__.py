"""python -m arr_coc.cli, where the command itself is not on the path."""

import sys

from arr_coc.cli import main

sys.exit(main())
