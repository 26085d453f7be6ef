"""Peak memory of building a texture, taken in a fresh process so that nothing else is counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROBE = """
import torch
from pathlib import Path
from arr_coc import TextureArray, pictures

def status(key):
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) / 1024

TextureArray.from_image(pictures.scene().resize((64, 64))).tensor()
image = pictures.scene().resize(({side}, {side}))
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = status("VmRSS")
texture = TextureArray.from_image(image, dtype=torch.{dtype}, max_side=None)
block = texture.tensor()
print(status("VmHWM") - before)
"""


def peak_megabytes(side: int, dtype: str) -> float | None:
    """MB that a full40 texture of a square image and its one-block tensor need at the peak; None where Linux's /proc does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    probe = _PROBE.format(side=side, dtype=dtype)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None
