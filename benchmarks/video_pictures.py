"""The pictures of docs/video.md: frames of a watched synthetic clip, with the chart below.

python benchmarks/video_pictures.py docs/images
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image

import synthetic_clips
from arr_coc.video.film import Chart, overlay
from arr_coc.video.stream import WatchedFrame, WatchStream

EACH = 30  # frames of each part
SHOWN = (12, 52, 85)  # the frames of the picture


def story() -> synthetic_clips.SyntheticClip:
    """A static street, a ball that flies across it, and a pan over a page."""
    parts = [synthetic_clips.static(EACH), synthetic_clips.moving_object(EACH), synthetic_clips.pan(EACH, step=8)]
    clip = synthetic_clips.join("story", parts)
    return synthetic_clips.SyntheticClip(
        clip.name, "Where is the ball?", clip.frames, clip.evidence, clip.flows, clip.cuts
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chart = Chart(3 * 400)
    shown: list[WatchedFrame] = []
    clip = story()
    for seen in WatchStream(clip.frames, clip.question, using="labels", budget="25%", spend="new"):
        chart.add(seen)
        if seen.number in SHOWN:
            shown.append(seen)
    frames = [overlay(seen, 396) for seen in shown]
    timeline = chart.draw()
    sheet = Image.new("RGB", (timeline.width, frames[0].height + 8 + timeline.height), (18, 20, 26))
    for place, frame in enumerate(frames):
        sheet.paste(frame, (402 * place, 0))
    sheet.paste(timeline, (0, frames[0].height + 8))
    sheet.save(arguments.folder / "video_story.png")


if __name__ == "__main__":
    main()
