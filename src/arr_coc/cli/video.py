"""`arr-coc video`: which cells of a clip matter for a question, frame by frame, as a video or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from arr_coc.cli.console import add_gaze, check_file, check_folder, progress, read_gaze, use_one_thread
from arr_coc.errors import ArrCocError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "video",
        help="watch a clip with a question in mind",
        description=(
            "Show which cells of a clip matter for a question, frame by frame. Results are reused along the motion, and "
            "only what changed is recomputed. With --model the question is answered, too."
        ),
        epilog='example: arr-coc video street.mp4 "Where is the bicycle?" --embeddings labels -o out.mp4',
    )
    add = parser.add_argument
    add("clip", help="the clip's file, or camera:0")
    add("question", help="the question")
    add("-o", "--output", type=Path, metavar="FILE", help="write the clip with its kept cells (.mp4)")
    add_gaze(parser)
    add("--json", action="store_true", help="print one line of JSON for each frame")
    add("--budget", default="12.5%", help="cells to keep on a frame (12.5%%)")
    add(
        "--embeddings",
        metavar="NAME",
        help="an image-text encoder that scores cells by the question, such as labels (none)",
    )
    add("--fps", type=float, metavar="N", help="take only N frames a second (all)")
    add("--frames", type=int, metavar="N", help="stop after N frames (a model sees the whole clip)")
    add("--spend", choices=("every", "new"), default="every", help="tokens for every frame, or for new content (every)")
    add("--model", metavar="FOLDER", help="let a model answer from the clip (reader: the bundled one)")
    add("--model-fps", type=float, default=2.0, metavar="N", help="frames a second that the model sees (2)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.video.film import Film
    from arr_coc.video.stream import watch

    _check(arguments)
    vlm = _load(arguments.model) if arguments.model else None  # first, so that a wrong folder fails at once
    use_one_thread()
    stream = watch(
        arguments.clip, arguments.question, using=arguments.embeddings, budget=arguments.budget, every=arguments.fps,
        spend=arguments.spend, gaze=arguments.gaze,
    )  # fmt: skip
    totals = Totals()
    with ExitStack() as stack:
        stack.enter_context(stream)
        film = None
        if arguments.output is not None:
            film = stack.enter_context(Film(arguments.output, arguments.fps or stream.rate))
        bar = stack.enter_context(progress())
        task = bar.add_task("watching", total=_expected_frames(stream.count, stream.rate, arguments))
        for seen in stream:
            totals.add(seen)
            if film is not None:
                film.add(seen)
            if arguments.json:
                print(json.dumps(seen.to_dict()))
            bar.update(task, advance=1)
            if totals.frames == arguments.frames:
                break
    answer = None
    if vlm is not None:
        options = {"video": arguments.clip, "fps": arguments.model_fps, "budget": arguments.budget}
        answer = vlm.ask(None, arguments.question, **options)
    if arguments.json:
        if answer is not None:
            print(json.dumps({"answer": answer.text, "tokens": answer.tokens, "notes": list(answer.allocation.notes)}))
        for note in stream.notes:
            print(f"arr-coc: the clip: {note}", file=sys.stderr)
        return 0
    print(totals.summary(arguments.output, encoder=arguments.embeddings is not None))
    for note in stream.notes:
        print(f"The clip: {note}.")
    if answer is not None:
        print(f"{answer.text}  ({answer.tokens['kept']} of {answer.tokens['all']} visual tokens read)")
        for note in answer.allocation.notes:
            print(f"The model's frames: {note}.")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Reject what can be rejected before the clip is opened."""
    from arr_coc.types.question import check_question

    check_question(arguments.question)
    arguments.gaze = read_gaze(arguments.gaze)
    from arr_coc.frames.reader import CAMERA
    from arr_coc.video.film import CODECS

    output = arguments.output
    if output is not None:
        check_file(output, "out.mp4", inputs=[arguments.clip])
        if output.suffix.lower() not in CODECS:
            raise ArrCocError(f"cannot write {output.name!r} as a clip of that ending; use {', '.join(CODECS)}")
        check_folder(output.parent)
    if arguments.frames is not None and arguments.frames < 1:
        raise ArrCocError(f"expected --frames of at least 1, got {arguments.frames}")
    for name, rate in (("--fps", arguments.fps), ("--model-fps", arguments.model_fps)):
        if rate is not None and not 0 < rate < math.inf:
            raise ArrCocError(f"expected {name} above 0, got {rate:g}")
    if arguments.model and arguments.clip.startswith(CAMERA):
        raise ArrCocError("expected a file for --model, got a camera, whose frames cannot be read twice")


class Totals:
    """Sums over all frames of a clip."""

    def __init__(self) -> None:
        self.frames = self.kept = self.cells = self.scenes = self.dropped = 0
        self.texture = self.features = self.ms = 0.0

    def add(self, seen: Any) -> None:
        self.frames += 1
        self.kept += seen.allocation.k
        self.cells += seen.allocation.n
        self.scenes += bool(seen.scene)
        self.dropped += seen.dropped
        self.texture += seen.reuse.texture
        self.features += seen.reuse.features
        self.ms += seen.ms

    def summary(self, output: Path | None, encoder: bool) -> str:
        frames = max(1, self.frames)
        features = f" and {self.features / frames:.0%} of the features" if encoder else ""
        parts = [
            f"{_count(self.frames, 'frame')}, {_count(self.scenes, 'cut')}", f"{self.kept} of {self.cells} cells kept",
            f"{self.texture / frames:.0%} of the texture{features} carried over", f"{self.ms / frames:.0f} ms a frame",
        ]  # fmt: skip
        if self.dropped:
            parts.append(f"{_count(self.dropped, 'frame')} dropped")
        return "; ".join(parts) + (f": {output}" if output is not None else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _expected_frames(count: int | None, rate: float, arguments: argparse.Namespace) -> int | None:
    """How many frames the progress bar expects, where it is known."""
    if count is not None and arguments.fps is not None:
        count = min(count, max(1, round(count * arguments.fps / rate)))
    if arguments.frames is None:
        return count
    return arguments.frames if count is None else min(count, arguments.frames)


def _load(model: str) -> Any:
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet

    keep_quiet()
    return arr_coc.load(model)
