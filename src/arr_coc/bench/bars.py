"""The stages of the GPU path as bars, one below the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from arr_coc.bench.gpu import Report

ROW, LEFT, WIDE = 26, 330, 520  # px of a row, of the names, of the longest bar
OURS, THEIRS = (0, 128, 128), (200, 200, 200)


def stage_bars(report: Report) -> Image.Image:
    """Each stage's median in milliseconds, on a logarithmic scale, and torch's behind it."""
    import math

    times = [one.time.median for one in report.stages] + [
        one.reference.median for one in report.stages if one.reference
    ]
    low, high = math.log10(min(times)) - 0.3, math.log10(max(times))
    font = ImageFont.load_default(15)
    image = Image.new("RGB", (LEFT + WIDE + 150, ROW * (len(report.stages) + 2)), "white")
    draw = ImageDraw.Draw(image)
    head = f"{report.batch} x {report.side} px, milliseconds, logarithmic; gray: torch alone"
    draw.text((10, 5), head, fill="black", font=font)

    def length(milliseconds: float) -> int:
        return round(WIDE * (math.log10(milliseconds) - low) / max(high - low, 1e-9))

    for number, one in enumerate(report.stages, start=1):
        top = number * ROW + 8
        draw.text((10, top), one.name, fill="black", font=font)
        end = length(one.time.median)
        said = f"{one.time.median:.3f}"
        if one.reference is not None:
            draw.rectangle((LEFT, top + 2, LEFT + length(one.reference.median), top + 17), fill=THEIRS)
            end = max(end, length(one.reference.median))
            said += f"  ({one.reference.median:.2f})"
        draw.rectangle((LEFT, top + 2, LEFT + length(one.time.median), top + 17), fill=OURS)
        draw.text((LEFT + end + 8, top), said, fill="black", font=font)
    return image
