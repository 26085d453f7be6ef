"""`arr-coc train`: train a layer that selects, for one model, the cells that a question needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli.console import check_folder, print_json, print_problems, progress
from arr_coc.errors import ArrCocError, DataError

if TYPE_CHECKING:
    from arr_coc.evaluation.data import Data
    from arr_coc.layer.model import ArrCocLayer, LayerConfig
    from arr_coc.training.batches import LayerTrainingSettings
    from arr_coc.training.distributed import World
    from arr_coc.training.examples import LookCache, TrainingExample

DTYPES = ("float32", "bfloat16", "float16")
DRAWN = 600  # pictures, where no folder is named
HELD_BACK = 10  # one more drawing in so many is for validation
UNIVERSAL, NONE = "universal", "none"
SHARED_SIZES = ("width", "heads", "seeing", "asking", "pixels")  # that a layer has from the one it starts from

_EPILOG = """\
A cell is the part of an image that one visual token covers. ask and eval find the layer by --layer DIR, Python by layer="DIR".

Without DATA it learns from drawn documents and scenes, which need no annotation: receipts, invoices, forms, tables, charts,
screens, tickets, letters and more, drawn with the fonts of this machine into DIR/drawn. Validation is on other drawings, asked about
in phrasings that are never trained on. The layer then starts from the universal layer, as far as the shapes agree.

The layer scores every cell, before and after the encoder. --learn names the sources of its targets. Several may be combined:

  boxes       the evidence boxes of samples.jsonl (the default)
  attention   the model's own attention where its answer is right; no boxes needed
  answers     the loss of the model's answers when it reads only the cells that the layer keeps; no boxes needed

--adapt then fine-tunes the model on few cells, its last layers or all of them with LoRA, and writes it to DIR/model.
One picture in ten is used for validation, or name other data with --validation. Ctrl-C stops a run and keeps its state. The same
command resumes it; --fresh starts again. On several GPUs: torchrun --nproc-per-node 8 -m arr_coc.cli train ... (or accelerate launch).

examples:
  arr-coc train --model MODEL_FOLDER                                            from drawn documents, no data needed
  arr-coc train data/receipts --model MODEL_FOLDER -o layer --minutes 20        from your own pictures with boxes
  arr-coc train photos --model MODEL_FOLDER -o layer --learn attention answers --gate straight-through
  arr-coc train photos --model MODEL_FOLDER -o layer --learn boxes answers --adapt lora:8
  arr-coc ask receipt.jpg "What is the total?" --model MODEL_FOLDER --layer layer --budget 12.5%
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a layer that selects the cells a question needs",
        description="Train a layer for a vision-language model: a small network that selects the cells a question needs. The model stays frozen.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", nargs="*", type=Path, metavar="DATA", help="folders with pictures and samples.jsonl")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("layer"), metavar="DIR", help="where the layer goes (layer)"
    )
    parser.add_argument("--model", default="reader", help="reader (the default), a model folder or a hub id")
    parser.add_argument("--validation", type=Path, metavar="DATA", help="validation data (one picture in ten)")
    parser.add_argument(
        "--learn",
        nargs="+",
        default=["boxes"],
        metavar="FROM",
        help="sources of the targets: boxes, attention, answers (boxes)",
    )
    parser.add_argument(
        "--gate",
        default="straight-through",
        help="with --learn answers, how cells are dropped: straight-through, gumbel or log-gate (straight-through)",
    )
    parser.add_argument(
        "--drawn", type=int, metavar="N", help=f"drawn pictures to learn from ({DRAWN} without DATA, else 0)"
    )
    parser.add_argument(
        "--scenes", type=float, default=0.1, metavar="SHARE", help="share of scenes among the drawings (0.1)"
    )
    parser.add_argument(
        "--fonts", type=Path, metavar="DIR", help="draw with the .ttf fonts of a folder (bundled and this machine's)"
    )
    parser.add_argument(
        "--start",
        metavar="LAYER",
        help="layer to start from: universal, none or a layer's folder (universal without DATA, else none)",
    )
    parser.add_argument(
        "--adapt",
        metavar="WHAT",
        help="then fine-tune the model, its last N layers or with LoRA: layers:N or lora:RANK (no)",
    )
    parser.add_argument("--adapt-steps", type=int, default=200, metavar="N", help="steps of fine-tuning (200)")
    parser.add_argument("--steps", type=int, default=2000, help="steps of training (2000)")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="stop after so many minutes of training (when --steps are done)"
    )
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate (0.002)")
    parser.add_argument("--pictures", type=int, default=8, metavar="N", help="pictures to a step (8)")
    parser.add_argument(
        "--answers", type=int, default=1, metavar="N", help="questions to a step that run the model (1)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N pictures of each folder (all)")
    parser.add_argument(
        "--pooling",
        default="learned",
        help="how similarities to the words of a question become one number: learned, max, mean or sum (learned)",
    )
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="CHANNEL", help="texture channels to leave out (none)"
    )
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that compute textures (0)")
    parser.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, to DIR/tensorboard")
    parser.add_argument("--fresh", action="store_true", help="do not resume an earlier call")
    parser.add_argument("--device", default="cpu", help="cpu (the default) or cuda")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (the model's own)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (0)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from arr_coc.adapters.loading import keep_quiet
    from arr_coc.devices import check_device
    from arr_coc.layer.model import CHANNELS, POOLINGS
    from arr_coc.training.batches import LayerTrainingSettings
    from arr_coc.training.distributed import init_world
    from arr_coc.training.documents.drawing import mix
    from arr_coc.training.documents.page import check_fonts
    from arr_coc.training.finetune import FinetuneConfig
    from arr_coc.training.journal import writer_class

    settings = LayerTrainingSettings(
        learn=tuple(sorted(set(arguments.learn))), gate=arguments.gate, steps=arguments.steps,
        minutes=arguments.minutes, lr=arguments.lr, pictures=arguments.pictures, answers=arguments.answers, seed=arguments.seed,
    )  # fmt: skip
    for name, least in (("workers", 0), ("limit", 1)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ArrCocError(f"expected --{name} from {least} on, got {value}")
    for name, known in (("dtype", DTYPES), ("pooling", POOLINGS)):
        value = getattr(arguments, name)
        if value is not None and value not in known:
            raise ArrCocError(f"expected --{name} as one of {', '.join(known)}, got {value!r}")
    unknown = sorted(set(arguments.without) - set(CHANNELS))
    if unknown or set(arguments.without) == set(CHANNELS):
        got = ", ".join(unknown) or "all of them"
        raise ArrCocError(f"expected some channels among {', '.join(CHANNELS)} to leave out, got {got}")
    if arguments.adapt is not None:
        FinetuneConfig.parse(arguments.adapt, arguments.adapt_steps)
        if (arguments.output / "model").resolve() == Path(arguments.model).resolve():
            raise ArrCocError(
                f"expected another folder than {str(arguments.output)!r}, whose model is read and would be replaced"
            )
        if "answers" not in settings.learn:
            raise ArrCocError("expected --adapt with answers as a source, since it trains on them: --learn answers")
    if arguments.drawn is None:
        arguments.drawn = 0 if arguments.data else DRAWN
    if arguments.drawn < (not arguments.data):
        raise ArrCocError(f"expected folders with data, or --drawn from 1 on, got none and --drawn {arguments.drawn}")
    mix(arguments.scenes)
    if arguments.fonts is not None:
        check_fonts(arguments.fonts)
    start = _read_start(arguments)
    if arguments.tensorboard:
        writer_class()
    check_device(arguments.device)
    check_folder(arguments.output)
    keep_quiet()
    output = redirect_stdout(sys.stderr) if arguments.json else nullcontext()  # stdout is for the JSON only
    with init_world(arguments.device) as world, output:
        result = _train(arguments, settings, world, start)
    if world.is_main:
        print_json(result) if arguments.json else _print_result(arguments, result)
    return 0 if result["finished"] else 130


def _read_start(arguments: argparse.Namespace) -> ArrCocLayer | None:
    """The layer that training starts from."""
    from arr_coc.layer.model import ArrCocLayer
    from arr_coc.layer.universal import WEIGHTS

    chosen = arguments.start or (NONE if arguments.data else UNIVERSAL)
    if chosen == NONE:
        return None
    return ArrCocLayer.from_pretrained(WEIGHTS if chosen == UNIVERSAL else str(chosen))


def _read_data(arguments: argparse.Namespace, world: World) -> tuple[list[Data], list[Data]]:
    """Training and validation data of the folders that were named."""
    from arr_coc.training.examples import read_folder, split_data

    data = [read_folder(folder, arguments.limit) for folder in arguments.data]
    kept = [] if arguments.validation is None else [read_folder(arguments.validation, arguments.limit)]
    if world.is_main:
        print_problems([f"left out: {one.name}: {line}" for one in (*data, *kept) for line in one.problems])
    if not kept and data:
        data, kept = map(list, zip(*map(split_data, data), strict=True))
    return data, kept


def _draw_data(
    arguments: argparse.Namespace, world: World, tick: Callable[[float, str], None]
) -> tuple[list[Data], list[Data]]:
    """Drawn training and validation data, which an earlier call may have drawn already."""
    from arr_coc.training.documents.folder import draw_folder
    from arr_coc.training.documents.page import FontSet, machine_fonts
    from arr_coc.training.examples import read_folder

    if not arguments.drawn:
        return [], []
    drawn = [(arguments.output / "drawn" / "training", arguments.drawn, False)]
    if arguments.validation is None:
        drawn.append((arguments.output / "drawn" / "validation", max(1, arguments.drawn // HELD_BACK), True))
    if world.is_main:
        fonts = machine_fonts() if arguments.fonts is None else FontSet.from_folder(arguments.fonts)
        for folder, count, held_out in drawn:
            draw_folder(
                folder, count, fonts, seed=arguments.seed, scenes=arguments.scenes, held_out=held_out,
                tick=lambda done, total: tick(done / total, f"drew {done} of {total} pictures"),
            )  # fmt: skip
    world.barrier()
    read = [(read_folder(folder, arguments.limit), held_out) for folder, _, held_out in drawn]
    return [one for one, held_out in read if not held_out], [one for one, held_out in read if held_out]


def _train(
    arguments: argparse.Namespace, settings: LayerTrainingSettings, world: World, start: ArrCocLayer | None
) -> dict[str, Any]:
    import arr_coc
    from arr_coc import reader
    from arr_coc.layer.identity import config_for
    from arr_coc.layer.model import CHANNELS
    from arr_coc.training.documents.folder import MANIFEST
    from arr_coc.training.examples import LookCache
    from arr_coc.training.finetune import FinetuneConfig, finetune, save_model
    from arr_coc.training.journal import Journal
    from arr_coc.training.layer import CHECKPOINT, train_layer
    from arr_coc.training.loop import sigterm_as_interrupt

    data, kept = _read_data(arguments, world)
    vlm = arr_coc.load(arguments.model, layer=None, **({} if arguments.dtype is None else {"dtype": arguments.dtype}))
    vlm.model.to(world.device)
    adapt = None if arguments.adapt is None else FinetuneConfig.parse(arguments.adapt, arguments.adapt_steps)
    if adapt is not None:
        adapt.check(vlm)
    sizes: dict[str, Any] = {} if start is None else {name: getattr(start.config, name) for name in SHARED_SIZES}
    known = CHANNELS if start is None else start.config.channels
    channels = tuple(name for name in known if name not in arguments.without)
    config = config_for(vlm.adapter, pooling=arguments.pooling, channels=channels, **sizes)
    if arguments.fresh and world.is_main:
        for name in (CHECKPOINT, "log.jsonl", f"drawn/training/{MANIFEST}", f"drawn/validation/{MANIFEST}"):
            (arguments.output / name).unlink(missing_ok=True)
    world.barrier()
    looks = LookCache(vlm, max_bytes=None if settings.needs_model else 0)
    with progress(shown=world.is_main) as bar:
        task = bar.add_task("encoding", total=None)

        def tick(share: float, what: str) -> None:
            bar.update(task, completed=share, total=1.0, description=what)

        events, lines = arguments.tensorboard and world.is_main, not sys.stderr.isatty()
        with Journal(arguments.output, events, lines, tick) as journal:
            with sigterm_as_interrupt():
                drawn, drawn_kept = _draw_data(arguments, world, tick)
                data, kept = [*data, *drawn], [*kept, *drawn_kept]
                examples, validation = _load_examples(arguments, settings, world, looks, config, data, kept, tick)
            trained = train_layer(
                vlm,
                config,
                examples,
                validation,
                arguments.output,
                settings,
                journal=journal,
                looks=looks,
                world=world,
                start=start,
            )
        _, (pictures,) = world.sync((), (len(examples),))
        result = {
            "output": str(arguments.output), "pictures": round(pictures), "kept_back": len(validation), "steps": trained.steps,
            "seconds": round(trained.seconds, 1), "evidence_recall": trained.recall, "finished": trained.finished,
            "parameters": trained.layer.parameter_count, "taken_over": trained.taken_over, "drawn": arguments.drawn,
        }  # fmt: skip
        if world.is_main:
            _write_card(arguments, result, trained.layer)
        if adapt is not None and trained.finished:
            tuned = finetune(
                vlm, trained.layer, examples, validation, adapt, settings, looks=looks, world=world, tick=tick
            )
            result |= {"adapted_steps": tuned.steps, "answer_loss": tuned.losses, "finished": tuned.finished}
            if tuned.finished and world.is_main:
                folder = arguments.output / "model"
                source = reader.WEIGHTS if arguments.model == reader.NAME else arguments.model
                save_model(vlm, source, trained.layer, folder)
                result["model"] = str(folder)
    return result


def _write_card(arguments: argparse.Namespace, result: dict[str, Any], layer: ArrCocLayer) -> None:
    """A model card in the layer's folder: what it was trained on, and its evidence recall."""
    from huggingface_hub import ModelCardData

    from arr_coc.hub import TAGS, card, write_card

    sources = [f"`{folder.name}`" for folder in arguments.data]
    if arguments.drawn:
        sources.append(f"{arguments.drawn} drawn documents and scenes (seed {arguments.seed}, no annotation)")
    taken = result["taken_over"]
    begun = f" {taken:,} of its parameters started from another layer." if taken else ""
    text = (
        f"{layer.card_text()}\n\n## Training\n\n`arr-coc train` for `{Path(arguments.model).name}`, learning from "
        f"{' and '.join(arguments.learn)}: {' and '.join(sources)}, {result['pictures']} pictures; {result['steps']} steps in "
        f"{result['seconds'] / 60:.1f} minutes on {arguments.device}.{begun}"
    )
    on = (
        "the validation data"
        if arguments.validation or arguments.data
        else "drawings in phrasings that were not trained on"
    )
    rows = [f"| {name} | {value:.3f} |" for name, value in result["evidence_recall"].items()]
    figures = "Nothing was measured: no validation picture has evidence."
    if rows:
        head = f"Evidence recall on {result['kept_back']} pictures of {on}:\n\n| cells | recall |\n|---|---|\n"
        figures = head + "\n".join(rows)
    data = ModelCardData(library_name="arr-coc", tags=list(TAGS))
    write_card(arguments.output, card(data, text, repo=str(arguments.output), what="layer", figures=figures))


def _load_examples(
    arguments: argparse.Namespace, settings: LayerTrainingSettings, world: World, looks: LookCache, config: LayerConfig,
    data: Sequence[Data], kept: Sequence[Data], tick: Callable[[float, str], None],
) -> tuple[list[TrainingExample], list[TrainingExample]]:  # fmt: skip
    """This rank's share of the training examples and, on rank 0, the validation examples."""
    from arr_coc.training.examples import load_examples

    by_box = "boxes" in settings.learn
    what = "evidence boxes" if by_box else "answers"

    def load(one: Data, share: tuple[int, int] = (0, 1)) -> list[TrainingExample]:
        return load_examples(
            looks.vlm, one, config, by_box=by_box, by_answer=settings.needs_model, looks=looks, share=share,
            workers=arguments.workers, report=lambda why: print_problems([f"left out: {why}"]),
            tick=lambda done, total: tick(done / total, f"encoded {done} of {total} pictures"),
        )  # fmt: skip

    examples = []
    for one in data:
        loaded = load(one, (world.rank, world.size))
        _, (count,) = world.sync((), (len(loaded),))
        if not count:
            raise DataError(f"expected questions with {what} in {one.name!r}, found none that can be learned from")
        examples += loaded
    _, (idle,) = world.sync((), (not examples,))
    if idle:
        raise DataError(f"expected pictures to learn from for each of {world.size} processes, and {idle:.0f} have none")
    validation = [example for one in kept for example in load(one)] if world.is_main else []
    if arguments.validation is not None and world.is_main and not validation:
        raise DataError(f"expected questions with {what} in {str(arguments.validation)!r}, found none to validate on")
    return examples, validation


def _print_result(arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    print(f"{result['steps']} steps in {result['seconds'] / 60:.1f} minutes, {result['pictures']} pictures")
    if result["taken_over"]:
        print(f"{result['taken_over']:,} of {result['parameters']:,} parameters started from another layer")
    if result["evidence_recall"]:
        print(f"evidence recall on {result['kept_back']} validation pictures:")
        for name, value in result["evidence_recall"].items():
            print(f"  {name:14s} {value:.3f}")
    else:
        print("no validation picture has evidence: name some with --validation")
    if "adapted_steps" in result:
        losses = ", ".join(f"{value:.3f} {when}" for when, value in result["answer_loss"].items())
        print(f"fine-tuned for {result['adapted_steps']} steps{losses and f'; answer loss {losses}'}")
    if result["finished"]:
        print(f"layer written to {arguments.output}; use it with --layer {arguments.output}")
        if "model" in result:
            print(f"fine-tuned model written to {result['model']}; use it with --model {result['model']}")
    elif "adapted_steps" in result:
        print("interrupted: the layer is kept, and the same command starts fine-tuning again")
    else:
        print("interrupted: the state is kept, and the same command resumes")
