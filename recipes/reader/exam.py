"""`python -m recipes.reader.exam`: a finished reader's accuracy on a folder of pictures with `samples.jsonl`.

Each line of `samples.jsonl` has `image`, `question`, `answer`, `kind` and, if known, `store_seen`. Pictures go through the
reader's own image processor; each is encoded once for all of its questions. The table is markdown: exact match with its 95%
interval, and the mean similarity (1 minus edit distance over the longer length).
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.adapters.loading import keep_quiet, load_processor
from arr_coc.cli.console import check_file
from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError
from arr_coc.evaluation.metrics import similarity
from arr_coc.evaluation.report import format_share
from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader.forward import ReaderForward, answer

ALL = "all"
REFUSALS = {NOT_FOUND, "not found"}  # the second of readers that were trained before 2026-11-19
Row = dict[str, Any]


def interval(right: float, count: float) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return middle - half, middle + half


def evaluate(folder: Path, samples: Path, device: str = "cpu", limit: int | None = None) -> list[Row]:
    """Answer every sample; returns the samples with `said`, `exact` and `similarity` added."""
    if not (samples / "samples.jsonl").is_file():
        raise FileNotFoundError(f"expected a folder with samples.jsonl and pictures, got {samples}")
    processor = load_processor(folder)
    model = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    model.to(torch.device(device))
    images, forward = processor.image_processor, ReaderForward(model)
    by_picture: dict[str, list[Row]] = defaultdict(list)
    for line in (samples / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        by_picture[sample["image"]].append(sample)
    results = []
    for name, asked in list(by_picture.items())[:limit]:
        with Image.open(samples / name) as picture:
            inputs = images(picture.convert("RGB"), return_tensors="pt")
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        # [4N, channels * frames * 14 * 14]: both frames are the same picture, and the forward pass takes one
        patches = inputs["pixel_values"].view(1, rows * columns // 4, 4, 3, 2, -1)[..., 0, :].flatten(3)
        said = answer(
            forward, patches.to(device), [[sample["question"] for sample in asked]], (columns // 2, rows // 2)
        )[0]
        for sample, text in zip(asked, said, strict=True):
            exact = text.strip() == sample["answer"].strip() or {text.strip(), sample["answer"]} <= REFUSALS
            results.append(sample | {"said": text, "exact": exact, "similarity": similarity(text, sample["answer"])})
    return results


def effective_count(rows: list[Row]) -> float:
    """The effective number of independent questions: those about one picture tend to be right or wrong together.

    The count divided by the design effect: the variance of the pictures' sums of right answers over that of independent
    answers. Never more than the count, and equal to it with one question per picture.
    """
    pictures: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        pictures[row["image"]].append(row["exact"])
    count = len(rows)
    rate = sum(row["exact"] for row in rows) / count
    independent = count * rate * (1 - rate)
    if not independent:
        return count
    clustered = sum((sum(right) - rate * len(right)) ** 2 for right in pictures.values())
    return count / max(1.0, clustered / independent)


def report(results: list[Row]) -> dict[str, Row]:
    """Accuracy per kind of question and over all, each also for shops seen and not seen in training."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for result in results:
        for name in (result["kind"], ALL):
            groups[name].append(result)
            if "store_seen" in result:
                groups[f"{name}, store {'seen' if result['store_seen'] else 'new'}"].append(result)
    table = {}
    for name, rows in sorted(groups.items(), key=lambda group: (group[0].split(",")[0] == ALL, group[0])):
        right, size = sum(row["exact"] for row in rows), effective_count(rows)
        low, high = interval(right / len(rows) * size, size)
        table[name] = {
            "exact": round(right / len(rows), 4),
            "interval": [round(low, 3), round(high, 3)],
            "similarity": round(sum(row["similarity"] for row in rows) / len(rows), 4),
            "count": len(rows),
        }
    return table


def markdown(table: dict[str, Row]) -> str:
    """The report as a table for the docs."""
    lines = ["| question | exact match [95%] | similarity | of |", "|---|---|---|---|"]
    for name, row in table.items():
        exact, near = format_share(row["exact"], row["interval"]), format_share(row["similarity"])
        lines.append(f"| {name} | {exact} | {near} | {row['count']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.reader.exam", description=__doc__)
    parser.add_argument("--reader", type=Path, required=True, help="model folder")
    parser.add_argument("--samples", type=Path, required=True, help="folder of pictures with samples.jsonl")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="only so many pictures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every answer, as JSON lines")
    given = parser.parse_args()
    try:
        for path in filter(None, (given.json, given.out)):
            check_file(path)
        check_device(given.device)
        keep_quiet()
        results = evaluate(given.reader, given.samples, given.device, given.limit)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    table = report(results)
    print(markdown(table))
    if given.json is not None:
        given.json.write_text(json.dumps(table, indent=2) + "\n")
    if given.out is not None:
        given.out.write_text("".join(json.dumps(result) + "\n" for result in results))


if __name__ == "__main__":
    main()
