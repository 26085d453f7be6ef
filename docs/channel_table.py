"""Write docs/channels.md: every channel with its family, range, pooling rule, cost and meaning.

python docs/channel_table.py
"""

from __future__ import annotations

from pathlib import Path

import arr_coc

TARGET = Path(__file__).with_name("channels.md")
HEAD = """\
# The channels

Written by `docs/channel_table.py` from the registry; `arr-coc channels --json` prints the same. The numbers are positions in
the layouts `full40` and `mvp13`. Code uses names only.

| full40 | mvp13 | name | family | range | pooled by | cost | supplied by the caller | meaning |
|---|---|---|---|---|---|---|---|---|
"""


def table() -> str:
    rows = []
    for channel in arr_coc.all_channels():
        places = [str(names.index(channel.name)) if channel.name in names else "" for names in arr_coc.LAYOUTS.values()]
        low, high = channel.range
        cells = [
            *places,
            f"`{channel.name}`",
            channel.family,
            f"{low:.3g} to {high:.3g}" if high != float("inf") else f"{low:.3g} and up",
            channel.pool,
            channel.cost,
            ", ".join(f"`{name}`" for name in channel.supplied_by),
            channel.meaning,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    TARGET.write_text(table())
