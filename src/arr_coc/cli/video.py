"""`arr-coc video`: which cells of a clip matter for a question, frame by frame, as a film or as numbers."""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from arr_coc.cli.console import check_file, check_folder, progress, use_one_thread
from arr_coc.errors import ArrCocError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "video",
        help="watch a clip with a question in mind",
        description=(
            "Show which cells of a clip matter for a question, frame by frame: what is known is carried along with the "
            "motion, and only what changed is looked at again. With --model the question is answered, too."
        ),
        epilog='example: arr-coc video street.mp4 "Where is the bicycle?" --embeddings labels -o out.mp4',
    )
    parser.add_argument("clip", help="the clip's file, or camera:0")
    parser.add_argument("question", help="the question")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the clip with its kept cells (.mp4)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each frame")
    parser.add_argument("--budget", default="12.5%", help="cells to keep on a frame (12.5%%)")
    parser.add_argument(
        "--embeddings", metavar="NAME", help="an image-text encoder that understands the question (labels)"
    )
    parser.add_argument("--fps", type=float, metavar="N", help="take only N frames a second (all)")
    parser.add_argument("--frames", type=int, metavar="N", help="stop after N frames (a model sees the whole clip)")
    parser.add_argument(
        "--spend", choices=("every", "new"), default="every", help="tokens for every frame, or for what is new (every)"
    )
    parser.add_argument("--model", metavar="FOLDER", help="let a model answer from the clip (reader: ours)")
    parser.add_argument(
        "--model-fps", type=float, default=2.0, metavar="N", help="frames a second that the model sees (2)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.frames.reader import CAMERA
    from arr_coc.video.film import CODECS, Film
    from arr_coc.video.stream import WatchStream

    if arguments.output is not None:
        check_file(arguments.output, "out.mp4")
        if arguments.output.suffix.lower() not in CODECS:
            raise ArrCocError(
                f"cannot write {arguments.output.name!r} as a clip of that ending; use {', '.join(CODECS)}"
            )
        check_folder(arguments.output.parent)
        if Path(arguments.clip).exists() and arguments.output.exists() and arguments.output.samefile(arguments.clip):
            raise ArrCocError(
                f"expected another file for the output than the clip itself, got {arguments.clip!r} for both"
            )
    if arguments.frames is not None and arguments.frames < 1:
        raise ArrCocError(f"expected --frames of at least 1, got {arguments.frames}")
    for name, rate in (("--fps", arguments.fps), ("--model-fps", arguments.model_fps)):
        if rate is not None and not 0 < rate < math.inf:
            raise ArrCocError(f"expected {name} above 0, got {rate:g}")
    if arguments.model and arguments.clip.startswith(CAMERA):
        raise ArrCocError("expected a file for --model, got a camera, whose frames are gone once they were watched")
    vlm = _loaded(arguments.model) if arguments.model else None
    use_one_thread()
    stream = WatchStream(
        arguments.clip, arguments.question, using=arguments.embeddings, budget=arguments.budget, every=arguments.fps,
        spend=arguments.spend,
    )  # fmt: skip
    totals = Totals()
    with ExitStack() as open_files:
        open_files.enter_context(stream)
        rate = arguments.fps or stream.rate
        film = None if arguments.output is None else open_files.enter_context(Film(arguments.output, rate))
        bar = open_files.enter_context(progress())
        task = bar.add_task("watching", total=_expected(stream.count, stream.rate, arguments))
        for seen in stream:
            totals.add(seen)
            if film is not None:
                film.add(seen)
            if arguments.json:
                print(json.dumps(seen.to_dict()))
            bar.update(task, advance=1)
            if totals.frames == arguments.frames:
                break
    answer = None if vlm is None else _answer(vlm, arguments)
    if arguments.json:
        if answer is not None:
            print(json.dumps({"answer": answer.text, "tokens": answer.tokens, "notes": list(answer.allocation.notes)}))
        for note in stream.notes:
            print(f"arr-coc: the clip: {note}", file=sys.stderr)
        return 0
    print(totals.said(arguments.output, encoder=arguments.embeddings is not None))
    for note in stream.notes:
        print(f"The clip: {note}.")
    if answer is not None:
        tokens = answer.tokens
        print(f"{answer.text}  ({tokens['kept']} of {tokens['all']} visual tokens read)")
        for note in answer.allocation.notes:
            print(f"The model's frames: {note}.")
    return 0


class Totals:
    """What a clip came to, without keeping its frames."""

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

    def said(self, output: Path | None, encoder: bool) -> str:
        frames = max(1, self.frames)
        features = f" and {self.features / frames:.0%} of the features" if encoder else ""
        parts = [
            f"{_counted(self.frames, 'frame')}, {_counted(self.scenes, 'cut')}", f"{self.kept} of {self.cells} cells kept",
            f"{self.texture / frames:.0%} of the texture{features} carried over", f"{self.ms / frames:.0f} ms a frame",
        ]  # fmt: skip
        if self.dropped:
            parts.append(f"{_counted(self.dropped, 'frame')} dropped")
        return "; ".join(parts) + (f": {output}" if output is not None else "")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _expected(count: int | None, rate: float, arguments: argparse.Namespace) -> int | None:
    """How many frames are to come, where that can be known."""
    if count is not None and arguments.fps is not None:
        count = min(count, max(1, round(count * arguments.fps / rate)))
    if arguments.frames is None:
        return count
    return arguments.frames if count is None else min(count, arguments.frames)


def _loaded(name: str) -> Any:
    """The model, before anything is watched: a wrong folder is told at once."""
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet

    keep_quiet()
    return arr_coc.load(name)


def _answer(vlm: Any, arguments: argparse.Namespace) -> Any:
    """What a model says about the clip, from the same share of its tokens."""
    return vlm.ask(None, arguments.question, video=arguments.clip, fps=arguments.model_fps, budget=arguments.budget)
