"""`python -m arr_coc.cli`: the same as `arr-coc`, for environments where the command is not on the path."""

import sys

from arr_coc.cli import main

sys.exit(main())
