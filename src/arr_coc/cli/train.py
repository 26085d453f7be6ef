"""`arr-coc train`: learn, for one model, which cells of a picture a question needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from arr_coc.cli.output import check_place, print_json, progress
from arr_coc.errors import ArrCocError, DataError

_EPILOG = """\
The model stays frozen; what is learned is a small layer that scores every cell before and after the encoder. --learn says from
what, and several may be combined:

  boxes       the evidence boxes of samples.jsonl (the default)
  attention   what the model itself looks at while it answers right; no boxes needed
  answers     the loss of the model's answers when it reads only what the layer keeps; no boxes needed

One picture in ten is kept back for measuring, or name other data with --validation. Ctrl-C ends a run in good order, and the same
command goes on; --fresh starts anew. On several GPUs: torchrun --nproc-per-node 8 -m arr_coc.cli train ... (or accelerate launch).

examples:
  arr-coc train data/receipts --model MODEL_FOLDER -o layer --minutes 20
  arr-coc train photos --model MODEL_FOLDER -o layer --learn attention answers --gate straight-through
  arr-coc ask receipt.jpg "What is the total?" --model MODEL_FOLDER --layer layer --budget 12.5%
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="learn which cells a model's questions need",
        description="Train the learned ARR-COC layer for a frozen vision-language model.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", nargs="+", type=Path, metavar="DATA", help="folders with pictures and samples.jsonl")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where the layer goes")
    parser.add_argument("--model", default="reader", help="reader (the default), a model folder or a hub id")
    parser.add_argument("--validation", type=Path, metavar="DATA", help="what to measure on (one picture in ten)")
    parser.add_argument(
        "--learn", nargs="+", default=["boxes"], metavar="FROM", help="boxes, attention, answers (boxes)"
    )
    parser.add_argument(
        "--gate", default="log-gate", help="for answers: log-gate, straight-through or gumbel (log-gate)"
    )
    parser.add_argument("--steps", type=int, default=2000, help="steps of the whole schedule (2000)")
    parser.add_argument("--minutes", type=float, metavar="M", help="of the whole schedule, at most")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate (0.002)")
    parser.add_argument("--pictures", type=int, default=8, metavar="N", help="to a step (8)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N pictures of each folder")
    parser.add_argument("--pooling", default="learned", help="learned, max, mean or sum (learned)")
    parser.add_argument("--without", nargs="+", default=[], metavar="CHANNEL", help="channels that are left out")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that look at the pictures (0)")
    parser.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, to DIR/tensorboard")
    parser.add_argument("--fresh", action="store_true", help="do not go on from an earlier call")
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order (0)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.learning.settings import Settings
    from arr_coc.training.journal import writer_class
    from arr_coc.training.parallel import joined

    settings = Settings(
        learn=tuple(dict.fromkeys(arguments.learn)), gate=arguments.gate, steps=arguments.steps,
        minutes=arguments.minutes, lr=arguments.lr, pictures=arguments.pictures, seed=arguments.seed,
    )  # fmt: skip
    if arguments.workers < 0:
        raise ArrCocError(f"expected --workers from 0 on, got {arguments.workers}")
    if arguments.tensorboard:
        writer_class()
    check_device(arguments.device)
    check_place(arguments.output)
    keep_quiet()
    with joined(arguments.device) as team:
        return _train(arguments, settings, team)


def _train(arguments: argparse.Namespace, settings: Any, team: Any) -> int:
    import arr_coc
    from arr_coc.layer.config import CHANNELS
    from arr_coc.layer.fitting import config_for
    from arr_coc.learning.lessons import apart, lessons, read
    from arr_coc.learning.loop import CHECKPOINT, learn
    from arr_coc.training.journal import Journal

    unknown = sorted(set(arguments.without) - set(CHANNELS))
    if unknown:
        raise ArrCocError(f"expected channels among {', '.join(CHANNELS)}, got {', '.join(unknown)}")
    data = [read(folder, arguments.limit) for folder in arguments.data]
    kept = None if arguments.validation is None else read(arguments.validation, arguments.limit)
    vlm = arr_coc.load(arguments.model, layer=None)
    vlm.model.to(team.device)
    config = config_for(
        vlm.adapter, pooling=arguments.pooling,
        channels=tuple(name for name in CHANNELS if name not in arguments.without),
    )  # fmt: skip
    if arguments.fresh and team.leads:
        (arguments.output / CHECKPOINT).unlink(missing_ok=True)
    team.wait()
    by_model = bool({"attention", "answers"} & set(settings.learn))
    with progress(shown=team.leads) as bar:
        task = bar.add_task("looking", total=None)

        def looked(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"looked at {done} of {total} pictures")

        options = {"workers": arguments.workers, "complain": _complain, "tick": looked}
        mine = [
            lesson for one in data for lesson in lessons(vlm, one, config, keep_looks=by_model, share=(team.rank, team.size), **options)
        ]  # fmt: skip
        back = [] if kept is None else lessons(vlm, kept, config, **options)
        if kept is None:
            mine, back = apart(mine)
        if not mine:
            raise DataError("expected more than ten pictures to learn from, or others to measure on (--validation)")
        learned = learn(
            vlm, config, mine, back, arguments.output, settings, team=team,
            journal=Journal(arguments.output, events=arguments.tensorboard and team.leads, lines=bar.disable),
            tick=lambda share, what: bar.update(task, completed=share, total=1.0, description=what),
        )  # fmt: skip
    if team.leads:
        _tell(arguments, learned, len(mine))
    return 0 if learned.finished else 130


def _complain(why: str) -> None:
    print(f"arr-coc: left out: {why}", file=sys.stderr)


def _tell(arguments: argparse.Namespace, learned: Any, pictures: int) -> None:
    if arguments.json:
        print_json({
            "output": str(arguments.output), "pictures": pictures, "steps": learned.steps,
            "seconds": round(learned.seconds, 1), "evidence_recall": learned.found, "finished": learned.finished,
            "parameters": learned.layer.parameter_count,
        })  # fmt: skip
        return
    print(f"{learned.steps} steps in {learned.seconds / 60:.1f} minutes, {pictures} pictures; evidence kept:")
    for name, value in learned.found.items():
        print(f"  {name:14s} {value:.3f}")
    if learned.finished:
        print(f"layer written to {arguments.output}; use it with --layer {arguments.output}")
    else:
        print("interrupted: what was learned is kept, and the same command goes on")
