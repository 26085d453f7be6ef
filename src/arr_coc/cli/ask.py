"""`arr-coc ask`: answer a question about an image from a part of its visual tokens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli import console
from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from arr_coc.types.answer import Answer

_EPILOG = """\
Visual tokens are dropped twice: --glance says how many of them the vision encoder computes at all, --budget how many of those
the language model reads. Defaults stand in parentheses. A budget or a glance is one of
  128          a number of tokens
  12.5%        a share of all tokens
  "mass 90%"   as few tokens as hold 90% of the relevance above its median
  auto         as many as the selector finds enough
  all          every token
"mass" and auto need a selector that scores every cell (the part of the image that one visual token covers).

examples:
  arr-coc ask receipt.jpg "What is the total amount?" --budget 12.5% --why why.png --where where.png
  arr-coc ask receipt.jpg "What is the total amount?" --then "What is the date?" --then "Which company is it?"
  arr-coc ask photo.jpg "What is the total amount?" --sure .7        more tokens where the answer is not sure
  arr-coc ask page.png "What is the title?" --model Qwen/Qwen2.5-VL-7B-Instruct --device cuda --budget 25%
  for f in photos/*.jpg; do arr-coc ask "$f" "What is the total amount?" --json; done
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "ask",
        help="ask a model about an image",
        description="Ask a vision-language model about an image. The model reads only the visual tokens that the question needs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    console.add_question(parser)
    add("--budget", default="auto", help="visual tokens that the language model reads (auto)")
    add("--glance", default="auto", help="visual tokens that the vision encoder computes (auto)")
    add("--selector", default="arr-coc", help="method that selects the tokens (arr-coc)")
    add(
        "--detail",
        default="auto",
        metavar="HOW",
        help="how a large image is shown: views (the part with text, larger), mixed (one image, its cells small where it "
        "matters; Qwen models), off, or auto: views for small text (auto)",
    )
    add(
        "--straighten",
        default="auto",
        metavar="HOW",
        help="whether a document that is turned, tilted or in perspective is shown upright: auto or off (auto)",
    )
    add(
        "--sure",
        type=float,
        metavar="P",
        help="read more tokens where the confidence is below this, from 0 to 1 (off)",
    )
    add(
        "--refuse",
        default="auto",
        metavar="HOW",
        help="auto: what is not in the picture is answered so, by models that can tell, as the reader; off: never (auto)",
    )
    console.add_gaze(parser)
    add(
        "--then", action="append", default=[], metavar="QUESTION",
        help="ask this next, in the same conversation: only the cells that it adds are read; may be repeated",
    )  # fmt: skip
    add(
        "--why",
        type=Path,
        metavar="FILE",
        help="write a picture of the kept cells and the reasons (of the first question)",
    )
    add("--where", type=Path, metavar="FILE", help="write the image with the place of the (first) answer marked")
    add("--json", action="store_true", help="print the answer, tokens, times and kept cells as JSON")
    more = parser.add_argument_group("more options")
    more.add_argument(
        "--tokens", type=int, default=160, metavar="N", help="maximum length of the answer in tokens (160)"
    )
    console.add_model_options(more)
    more.add_argument("--seed", type=int, default=0, help="random seed for selectors that use one (0)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    console.start_fast()
    import arr_coc
    from arr_coc.relevance import explanation as why
    from arr_coc.relevance.selector import explained
    from arr_coc.types.question import check_question
    from arr_coc.vlm.confidence import check_refuse
    from arr_coc.vlm.request import SelectionRequest, check_detail, check_straighten

    # Check everything that can be wrong before a model is loaded.
    for path in (arguments.why, arguments.where):
        if path is not None:
            console.check_image_file(path, inputs=[arguments.image])
    if arguments.sure is not None and not 0 <= arguments.sure <= 1:
        raise ArrCocError(f"expected --sure between 0 and 1, got {arguments.sure}")
    check_refuse(arguments.refuse)
    if arguments.tokens < 1:
        raise ArrCocError(f"expected --tokens of at least 1, got {arguments.tokens}")
    selector = arr_coc.selectors.selector(arguments.selector)
    check_detail(arguments.detail, SelectionRequest(selector, selector))
    check_straighten(arguments.straighten)
    console.check_request(arguments)
    selector.check_budget(arguments.budget)
    for question in arguments.then:
        check_question(question)
    with console.progress() as bar:
        task = bar.add_task("loading the model", total=2)
        vlm = console.load_model(arguments)
        bar.update(task, advance=1, description="reading the image")
        options = {name: getattr(arguments, name) for name in ("budget", "glance", "selector", "seed", "gaze")}
        if arguments.why is not None:
            options["selector"] = explained(arguments.selector)
        remember = bool(arguments.then)
        if arguments.sure is None:
            shown = {name: getattr(arguments, name) for name in ("detail", "straighten")}
            prepared = vlm.prepare(arguments.image, arguments.question, **shown, **options)
            answer = vlm.generate(
                prepared, remember=remember, max_new_tokens=arguments.tokens, refuse=arguments.refuse
            )[0]
        else:
            shown = {name: "off" if arguments.gaze else getattr(arguments, name) for name in ("detail", "straighten")}
            look = vlm.look(arguments.image, **shown)
            answer = vlm.ask(
                look, arguments.question, sure=arguments.sure, remember=remember, max_new_tokens=arguments.tokens,
                refuse=arguments.refuse, **options,
            )  # fmt: skip
            if arguments.where is not None:
                prepared = vlm.prepare(look=look, text=arguments.question, allocation=list(answer.allocations))
        turns = [answer]
        for question in arguments.then:
            more = vlm.ask(
                None,
                question,
                after=turns[-1],
                max_new_tokens=arguments.tokens,
                refuse=arguments.refuse,
                sure=arguments.sure,
            )
            turns.append(more)
    if arguments.json:  # before any picture: a full disk loses no answer
        console.print_json([one.to_dict() for one in turns] if arguments.then else answer.to_dict())
    else:
        for one in turns:
            _print_answer(one)
    sys.stdout.flush()
    if arguments.why is not None:
        last = answer.allocations[-1]  # the region, where an image is shown as an overview and a region
        console.save_image(why.sheet(last, arguments.image, arguments.question, answer.text), arguments.why)
    if arguments.where is not None:
        heat = vlm.point(prepared, answer)[-1]
        console.save_image(answer.allocations[-1].heat(arguments.image, heat), arguments.where)
    return 0


def _print_answer(answer: Answer) -> None:
    from arr_coc.vlm.confidence import BOUNDED, TOKEN_PROBABILITY

    print(f"{answer.text}: {answer.refused} (the model wrote {answer.raw_text!r})" if answer.refused else answer.text)
    tokens = answer.tokens
    milliseconds = sum(answer.timings.values())
    sure = f"{answer.confidence:.0%} confidence" if answer.confidence is not None else "confidence unknown"
    if answer.confidence_source == TOKEN_PROBABILITY:
        sure = f"mean token probability {answer.confidence:.0%}"
    if answer.confidence_source == BOUNDED:
        sure = f"{answer.confidence:.0%} confidence, {BOUNDED}"
    if len(answer.tried) > 1:
        steps = ", then ".join(f"{one.text!r} from {one.kept}" for one in answer.tried)
        sure += f"; looked again: {steps} tokens, {answer.tokens_paid} in all"
    notes = [
        *(note for one in answer.allocations for note in one.notes),
        *([f"fell back: {answer.fallback}"] if answer.fallback else []),
    ]
    added = f", {tokens['added']} of them added by this turn" if "added" in tokens else ""
    print(
        f"({tokens['kept']} of {tokens['all']} visual tokens read{added}, {tokens['encoded']} encoded, {milliseconds:.0f} ms; "
        f"{sure}{''.join(f'; {note}' for note in notes)})"
    )
