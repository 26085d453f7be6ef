"""`arr-coc train`: learn, for one model, which cells of a picture a question needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from arr_coc.cli.console import check_folder, print_json, progress
from arr_coc.errors import ArrCocError, DataError

DTYPES = ("float32", "bfloat16", "float16")
MOST_LINES = 20  # of those that say what was left out

_EPILOG = """\
The model stays frozen; what is learned is a small layer that scores every cell before and after the encoder. --learn says from
what, and several may be combined:

  boxes       the evidence boxes of samples.jsonl (the default)
  attention   what the model itself looks at while it answers right; no boxes needed
  answers     the loss of the model's answers when it reads only what the layer keeps; no boxes needed

--adapt lets the model itself get used to few cells afterwards, its last layers or all of them by LoRA, and writes it to DIR/model.
One picture in ten is kept back for measuring, or name other data with --validation. Ctrl-C ends a run in good order, and the same
command goes on; --fresh starts anew. On several GPUs: torchrun --nproc-per-node 8 -m arr_coc.cli train ... (or accelerate launch).

examples:
  arr-coc train data/receipts --model MODEL_FOLDER -o layer --minutes 20
  arr-coc train photos --model MODEL_FOLDER -o layer --learn attention answers --gate straight-through
  arr-coc train photos --model MODEL_FOLDER -o layer --learn boxes answers --adapt lora:8
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
        "--gate",
        default="straight-through",
        help="for answers: straight-through, gumbel or log-gate (straight-through)",
    )
    parser.add_argument("--adapt", metavar="WHAT", help="then adapt the model, too: layers:N or lora:RANK")
    parser.add_argument("--adapt-steps", type=int, default=200, metavar="N", help="steps of that (200)")
    parser.add_argument("--steps", type=int, default=2000, help="steps of the whole schedule (2000)")
    parser.add_argument("--minutes", type=float, metavar="M", help="of the whole schedule, at most")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate (0.002)")
    parser.add_argument("--pictures", type=int, default=8, metavar="N", help="to a step (8)")
    parser.add_argument(
        "--answers", type=int, default=1, metavar="N", help="questions to a step that the model itself is asked (1)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N pictures of each folder")
    parser.add_argument("--pooling", default="learned", help="learned, max, mean or sum (learned)")
    parser.add_argument("--without", nargs="+", default=[], metavar="CHANNEL", help="channels that are left out")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that look at the pictures (0)")
    parser.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, to DIR/tensorboard")
    parser.add_argument("--fresh", action="store_true", help="do not go on from an earlier call")
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (the model's own)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order (0)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.layer.config import CHANNELS, POOLINGS
    from arr_coc.training.distributed import joined
    from arr_coc.training.finetune import Adaptation
    from arr_coc.training.journal import writer_class
    from arr_coc.training.settings import Settings

    settings = Settings(
        learn=tuple(sorted(set(arguments.learn))), gate=arguments.gate, steps=arguments.steps,
        minutes=arguments.minutes, lr=arguments.lr, pictures=arguments.pictures, answers=arguments.answers, seed=arguments.seed,
    )  # fmt: skip
    if arguments.workers < 0:
        raise ArrCocError(f"expected --workers from 0 on, got {arguments.workers}")
    if arguments.limit is not None and arguments.limit < 1:
        raise ArrCocError(f"expected --limit from 1 on, got {arguments.limit}")
    if arguments.dtype not in (None, *DTYPES):
        raise ArrCocError(f"expected --dtype as one of {', '.join(DTYPES)}, got {arguments.dtype!r}")
    if arguments.pooling not in POOLINGS:
        raise ArrCocError(f"expected --pooling as one of {', '.join(POOLINGS)}, got {arguments.pooling!r}")
    unknown = sorted(set(arguments.without) - set(CHANNELS))
    if unknown or set(arguments.without) == set(CHANNELS):
        got = ", ".join(unknown) or "all of them"
        raise ArrCocError(f"expected some channels among {', '.join(CHANNELS)} to leave out, got {got}")
    if arguments.adapt is not None:
        Adaptation.of(arguments.adapt, arguments.adapt_steps)
        if "answers" not in settings.learn:
            raise ArrCocError(
                "expected answers among what is learned from, since a model adapts by them: --learn answers"
            )
    if arguments.tensorboard:
        writer_class()
    check_device(arguments.device)
    check_folder(arguments.output)
    keep_quiet()
    said = redirect_stdout(sys.stderr) if arguments.json else nullcontext()  # stdout is for the JSON alone
    with joined(arguments.device) as team, said:
        result = _train(arguments, settings, team)
    if team.leads:
        print_json(result) if arguments.json else _tell(arguments, result)
    return 0 if result["finished"] else 130


def _train(arguments: argparse.Namespace, settings: Any, team: Any) -> dict[str, Any]:
    import arr_coc
    from arr_coc.layer.config import CHANNELS
    from arr_coc.layer.identity import config_for
    from arr_coc.training.examples import apart, read
    from arr_coc.training.finetune import Adaptation
    from arr_coc.training.journal import Journal
    from arr_coc.training.look_cache import Looks
    from arr_coc.training.loop import CHECKPOINT, learn
    from arr_coc.training.stopping import interruptible

    data = [read(folder, arguments.limit) for folder in arguments.data]
    kept = [] if arguments.validation is None else [read(arguments.validation, arguments.limit)]
    if team.leads:
        _complain([f"{one.name}: {line}" for one in (*data, *kept) for line in one.problems])
    if not kept:
        data, kept = map(list, zip(*map(apart, data), strict=True))
    vlm = arr_coc.load(arguments.model, layer=None, **({} if arguments.dtype is None else {"dtype": arguments.dtype}))
    vlm.model.to(team.device)
    if arguments.adapt is not None:
        Adaptation.of(arguments.adapt).check(vlm)
    config = config_for(
        vlm.adapter, pooling=arguments.pooling,
        channels=tuple(name for name in CHANNELS if name not in arguments.without),
    )  # fmt: skip
    if arguments.fresh and team.leads:
        for name in (CHECKPOINT, "log.jsonl"):
            (arguments.output / name).unlink(missing_ok=True)
    team.wait()
    journal = Journal(arguments.output, events=arguments.tensorboard and team.leads, lines=not sys.stderr.isatty())
    looks = Looks(vlm, room=None if {"attention", "answers"} & set(settings.learn) else 0)
    with progress(shown=team.leads) as bar, journal:
        task = bar.add_task("looking", total=None)

        def tick(share: float, what: str) -> None:
            bar.update(task, completed=share, total=1.0, description=what)

        with interruptible():
            mine, back = _lessons(arguments, settings, team, looks, config, data, kept, tick)
        learned = learn(
            vlm, config, mine, back, arguments.output, settings, looks=looks, team=team, journal=journal, tick=tick
        )
        _, (pictures,) = team.agree((), (len(mine),))
        result = {
            "output": str(arguments.output), "pictures": round(pictures), "kept_back": len(back), "steps": learned.steps,
            "seconds": round(learned.seconds, 1), "evidence_recall": learned.found, "finished": learned.finished,
            "parameters": learned.layer.parameter_count,
        }  # fmt: skip
        if arguments.adapt is not None and learned.finished:
            result |= _adapt(arguments, settings, team, looks, learned.layer, mine, back, tick)
    return result


def _lessons(
    arguments: argparse.Namespace, settings: Any, team: Any, looks: Any, config: Any, data: Sequence[Any], kept: Sequence[Any],
    tick: Any,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """This process's share of the pictures to learn from, and, where it leads, those to measure on."""
    from arr_coc.training.examples import lessons

    by: dict[str, Any] = {
        "by_box": "boxes" in settings.learn,
        "by_answer": bool({"attention", "answers"} & set(settings.learn)),
        "looks": looks,
    }
    what = "evidence boxes" if by["by_box"] else "answers"
    options: dict[str, Any] = {
        "workers": arguments.workers,
        "complain": lambda why: _complain([why]),
        "tick": lambda done, total: tick(done / total, f"looked at {done} of {total} pictures"),
    }
    mine = []
    for one in data:
        found = lessons(looks.vlm, one, config, share=(team.rank, team.size), **by, **options)
        _, (count,) = team.agree((), (len(found),))
        if not count:
            raise DataError(f"expected questions with {what} in {one.name!r}, found none that can be learned from")
        mine += found
    _, (idle,) = team.agree((), (float(not mine),))
    if idle:
        raise DataError(f"expected pictures to learn from for each of {team.size} processes, and {idle:.0f} have none")
    back = [lesson for one in kept for lesson in lessons(looks.vlm, one, config, **by, **options)] if team.leads else []
    if arguments.validation is not None and team.leads and not back:
        raise DataError(f"expected questions with {what} in {str(arguments.validation)!r}, found none to measure on")
    return mine, back


def _adapt(
    arguments: argparse.Namespace, settings: Any, team: Any, looks: Any, layer: Any, mine: Sequence[Any],
    back: Sequence[Any], tick: Any,
) -> dict[str, Any]:  # fmt: skip
    from arr_coc import reader
    from arr_coc.training.finetune import Adaptation, accustom, write

    adaptation = Adaptation.of(arguments.adapt, arguments.adapt_steps)
    done = accustom(looks.vlm, layer, mine, back, adaptation, settings, looks=looks, team=team, tick=tick)
    result: dict[str, Any] = {"adapted_steps": done.steps, "answer_loss": done.losses, "finished": done.finished}
    if done.finished and team.leads:
        name = reader.WEIGHTS if arguments.model == reader.NAME else arguments.model
        write(looks.vlm, name, layer, arguments.output / "model")
        result["model"] = str(arguments.output / "model")
    return result


def _complain(lines: Sequence[str]) -> None:
    for line in lines[:MOST_LINES]:
        print(f"arr-coc: left out: {line}", file=sys.stderr)
    if len(lines) > MOST_LINES:
        print(f"arr-coc: left out: {len(lines) - MOST_LINES} more like these", file=sys.stderr)


def _tell(arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    print(f"{result['steps']} steps in {result['seconds'] / 60:.1f} minutes, {result['pictures']} pictures")
    if result["evidence_recall"]:
        print(f"evidence kept on {result['kept_back']} other pictures:")
        for name, value in result["evidence_recall"].items():
            print(f"  {name:14s} {value:.3f}")
    else:
        print("no picture with evidence was kept back to measure on: name some with --validation")
    if "adapted_steps" in result:
        losses = ", ".join(f"{value:.3f} {when}" for when, value in result["answer_loss"].items())
        print(f"adapted for {result['adapted_steps']} steps{losses and f'; loss of answers {losses}'}")
    if result["finished"]:
        print(f"layer written to {arguments.output}; use it with --layer {arguments.output}")
        if "model" in result:
            print(f"adapted model written to {result['model']}; use it with --model {result['model']}")
    elif "adapted_steps" in result:
        print("interrupted: the layer is kept, and the same command begins adapting anew")
    else:
        print("interrupted: what was learned is kept, and the same command goes on")
