"""Measures how well confidence says whether an answer is right, and what `ask(..., sure=...)` gains: risk, coverage, cost.

    python benchmarks/doubt.py draw OUT --count 60                  drawn documents and textures, as samples.jsonl
    python benchmarks/doubt.py answer DATA RECORDS.jsonl            the reader's answers at every budget, with their probabilities
    python benchmarks/doubt.py fit RECORDS.jsonl ... [--store]      fit the calibrations on these records
    python benchmarks/doubt.py report RECORDS.jsonl ...             calibration error, risk and coverage, and `sure`

DATA is a folder with samples.jsonl. Calibrations are fitted on validation scans (`recipes.reader.export_exam --receipts`) and on
drawings, never on the pictures of a report.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import arr_coc
from arr_coc.evaluation.metrics import evidence_cells, exact, recall
from arr_coc.relevance import coupling
from arr_coc.relevance.knowing import know
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.training.documents import draw_any
from arr_coc.training.examples import read_folder, selection_input
from PIL import Image

BUDGETS = ("6.25%", "12.5%", "25%", "all")
CHOICE_SHARES = (0.015, 0.03, 0.0625, 0.125, 0.25)
SELECTORS = ("arr-coc", "arr-coc-untrained")
DRAWN_SEED = 9_000_000

Record = dict[str, Any]


def draw(out: Path, count: int) -> None:
    """Drawings of all kinds with their questions, apart from those about the whole picture."""
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        drawing = draw_any(DRAWN_SEED + number, held_out=bool(number % 2))
        name = f"{number:04d}.png"
        Image.fromarray(drawing.image).save(out / name)
        asked = [question for question in drawing.questions if not question.whole]
        for question in asked[:: max(1, len(asked) // 4)][:5]:
            row = {"image": name, "question": question.text, "answer": question.answer}
            row |= {"kind": f"{drawing.kind}: {'absent' if question.absent else question.kind}"}
            rows.append(row | ({"evidence": question.evidence} if question.evidence else {}))
    (out / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def answer(data: Path, out: Path, share: tuple[int, int]) -> None:
    """One record for each question, selector and budget."""
    vlm = arr_coc.load("reader")
    pictures = read_folder(data).pictures[share[0] :: share[1]]
    with out.open("w") as file:
        for picture in pictures:
            look = vlm.look(picture.still)
            for sample in picture.samples:
                selection = selection_input(vlm, look, sample.question)
                layer = coupling.by_layer(selection).prediction
                scores = know(selection)
                peak = float(coupling.probe_attention(selection, scores.information + scores.text).max())
                assert layer is not None
                groups = evidence_cells(sample.evidence, selection.grid, picture.size) if sample.evidence else []
                about = {
                    "picture": picture.name,
                    "kind": sample.kind,
                    "question": sample.question,
                    "logit": layer.confidence,
                    "image_novelty": layer.image_novelty,
                    "question_novelty": layer.question_novelty,
                    "peak": peak,
                }
                for selector in SELECTORS:
                    for budget in BUDGETS if selector == SELECTORS[0] else BUDGETS[:-1]:
                        got = vlm.ask(look, sample.question, budget=budget, selector=selector)
                        tokens, end = got.token_probabilities, got.end_probability
                        assert tokens is not None
                        record = about | {
                            "selector": selector,
                            "budget": budget,
                            "answer": got.text,
                            "right": bool(exact(got.text, sample.answers)),
                            "recall": recall(got.allocation.keep, groups) if groups else None,
                            "kept": got.tokens["kept"],
                            "all": got.tokens["all"],
                            "strategy": got.allocation.strategy,
                            "probabilities": [round(p, 7) for p in (*tokens.tolist(), *([] if end is None else [end]))],
                        }
                        file.write(json.dumps(record) + "\n")
            file.flush()


def choose(data: Path, out: Path, limit: int | None) -> None:
    """One record for each question, source of coupling and budget: what the source says, and whether the evidence was kept."""
    vlm = arr_coc.load("reader")
    with out.open("w") as file:
        for picture in read_folder(data).pictures[:limit]:
            look = vlm.look(picture.still)
            for sample in picture.samples:
                if not sample.evidence:
                    continue
                selection = selection_input(vlm, look, sample.question)
                groups = evidence_cells(sample.evidence, selection.grid, picture.size)
                scores = know(selection)
                sources = {
                    "layer": coupling.by_layer(selection),
                    "probe": coupling.by_probe(selection, scores.information + scores.text),
                }
                for source, found in sources.items():
                    assert found.chances is not None
                    settings = RelevanceSettings(coupling=source, learned=source == "layer")
                    for share in CHOICE_SHARES:
                        k = round(share * selection.grid.n)
                        choice = realized(replace(selection, k=k, layer=lambda _: found.prediction, probe=None if source == "layer" else selection.probe), settings)
                        held = float(found.chances[torch.isin(selection.candidates, choice.keep)].sum() / found.chances.sum())
                        record = {
                            "picture": picture.name, "kind": sample.kind, "source": source, "share": share, "rule": choice.rule,
                            "held": held, "recall": recall(choice.keep, groups), "trust": found.trust,
                            "top": float(found.chances.max()), "sum": float(found.chances.sum()), "n": selection.grid.n,
                        }  # fmt: skip
                        if found.prediction is not None:
                            record |= {"logit": found.prediction.confidence, "image_novelty": found.prediction.image_novelty}
                            record |= {"question_novelty": found.prediction.question_novelty}
                        file.write(json.dumps(record) + "\n")
            file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("out", type=Path)
    drawing.add_argument("--count", type=int, default=60)
    answering = commands.add_parser("answer")
    answering.add_argument("data", type=Path)
    answering.add_argument("out", type=Path)
    answering.add_argument("--share", type=int, nargs=2, default=(0, 1), help="every n-th picture from the i-th on")
    choosing = commands.add_parser("choose")
    choosing.add_argument("data", type=Path)
    choosing.add_argument("out", type=Path)
    choosing.add_argument("--limit", type=int, help="only so many pictures")
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.command == "draw":
        draw(given.out, given.count)
    elif given.command == "answer":
        answer(given.data, given.out, tuple(given.share))
    elif given.command == "choose":
        choose(given.data, given.out, given.limit)


if __name__ == "__main__":
    main()
