"""Measures answers about documents in any pose: turned, tilted, in perspective, curled, shadowed, small, photographed.

    python benchmarks/poses.py show OUT --receipts RECEIPTS --photographs OBJECTS
    python benchmarks/poses.py estimate --receipts RECEIPTS --photographs OBJECTS
    python benchmarks/poses.py cost --receipts RECEIPTS --photographs OBJECTS --limit 4
    python benchmarks/poses.py run -o results.jsonl --receipts RECEIPTS --photographs OBJECTS

RECEIPTS is a folder of scans with samples.jsonl, or of training receipts with recs.json, of which the validation receipts are
taken. OBJECTS is a folder of photographs, the backgrounds. Every pose is drawn from a scan and its name alone, so that all runs see
the same pictures. `show` writes them, with what they are straightened to. `estimate` compares poses found with poses drawn, without
a model; photographs are among them and must stay as they are. `cost` times answers about upright scans. `run` asks a reader with straightening on and off; the same command
continues an interrupted run.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image

import arr_coc
from arr_coc.evaluation.metrics import exact
from arr_coc.evaluation.statistics import interval
from arr_coc.relevance.regions import letter_height
from arr_coc.relevance.straighten import Pose, find_pose
from arr_coc.training.documents.drawing import draw_any
from arr_coc.types.pyramid import Pyramid, Region

KINDS = {
    "total": "What is the total amount?",
    "date": "What is the date on the receipt?",
    "company": "Which company issued this receipt?",
}
DRAWN = ("invoice", "screen")
BUDGET = "12.5%"
SMALL, LARGE = 9.0, 80.0  # px, the height of letters
PHOTO_SIDE = 1400  # px, the longer side of a photo: below what is shown as views for its size alone


@dataclass(frozen=True)
class Taken:
    """A scan in a pose, and where its corners are in the picture: `[4, 2]`, clockwise from its own top left."""

    picture: np.ndarray
    corners: np.ndarray


def corners_of(scan: np.ndarray) -> np.ndarray:
    height, width = scan.shape[:2]
    return np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)


def turned(scan: np.ndarray, degrees: int) -> Taken:
    """Turned clockwise by a multiple of 90 degrees."""
    times = degrees // 90
    return Taken(np.ascontiguousarray(np.rot90(scan, -times)), np.roll(corners_of(np.rot90(scan, -times)), -times, 0))


def placed(scan: np.ndarray, corners: np.ndarray, size: tuple[int, int], behind: np.ndarray | None) -> Taken:
    """The scan with its corners at `corners` of a picture of `size`, on `behind` or on more of its own paper."""
    matrix = cv2.getPerspectiveTransform(corners_of(scan).astype(np.float32), corners.astype(np.float32))
    longest = max(np.hypot(*(corners[i] - corners[i - 1])) for i in range(4)) / max(scan.shape[:2])
    if longest < 0.7:  # smaller: without aliasing
        scan = cv2.GaussianBlur(scan, (0, 0), 0.4 / longest)
    if behind is None:
        paper = np.median(scan.reshape(-1, 3), 0)
        return Taken(
            cv2.warpPerspective(scan, matrix, size, flags=cv2.INTER_CUBIC, borderValue=paper.tolist()), corners
        )
    page = cv2.warpPerspective(scan, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    inside = cv2.warpPerspective(np.ones(scan.shape[:2], np.float32), matrix, size, flags=cv2.INTER_LINEAR)[..., None]
    shadow = cv2.GaussianBlur(np.roll(inside[..., 0], (6, 5), (0, 1)), (0, 0), 6)[..., None]
    return Taken((behind * (1 - 0.4 * shadow * (1 - inside)) * (1 - inside) + page * inside).astype(np.uint8), corners)


def tilted(scan: np.ndarray, degrees: float) -> Taken:
    """Tilted clockwise, on a picture that holds all of it."""
    turn, own = math.radians(degrees), corners_of(scan)
    corners = own @ np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    corners -= corners.min(0)
    wide, high = (math.ceil(side) for side in corners.max(0))
    return placed(scan, corners, (wide, high), None)


def in_perspective(scan: np.ndarray, rng: random.Random, behind: np.ndarray | None) -> Taken:
    """Taken from the side: one end and one edge further away."""
    height, width = scan.shape[:2]
    corners, near = corners_of(scan), rng.choice((0, 2))  # which end is further away
    shrink, slant = rng.uniform(0.10, 0.20), rng.uniform(0.04, 0.10)
    corners[near, 0] += shrink * width / 2 * (1 if near == 0 else -1)
    corners[near + 1, 0] -= shrink * width / 2 * (1 if near == 0 else -1)
    side = rng.choice(((0, 3), (1, 2)))
    corners[side[0], 1] += slant * height / 2 * rng.uniform(0.3, 1.0)
    corners[side[1], 1] -= slant * height / 2 * rng.uniform(0.3, 1.0)
    margin = 0.06 * max(height, width)
    corners += margin
    size = (round(width + 2 * margin), round(height + 2 * margin))
    if behind is not None:
        behind = cv2.resize(behind, size, interpolation=cv2.INTER_AREA)
    return placed(scan, corners, size, behind)


def curled(scan: np.ndarray, rng: random.Random) -> Taken:
    """Lines bent like those of a sheet that rolls up."""
    height, width = scan.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    u = x / width - 0.5
    bend = rng.choice((-1, 1)) * rng.uniform(0.02, 0.035) * width
    made = cv2.remap(
        scan, x + 0.015 * width * np.sin(2 * math.pi * u), y + bend * np.cos(math.pi * u * 1.4), cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )  # fmt: skip
    light = 1 - 0.25 * np.abs(np.sin(math.pi * u))[..., None]
    return Taken((made * light).astype(np.uint8), corners_of(scan))


def shadowed(scan: np.ndarray, rng: random.Random) -> Taken:
    """A hand's shadow over a part of it, with a soft edge, and a slope of light."""
    height, width = scan.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    turn = rng.uniform(0, 2 * math.pi)
    across = (x / width - 0.5) * math.cos(turn) + (y / height - 0.5) * math.sin(turn)
    dark = 1 / (1 + np.exp(-across / 0.02))
    return Taken((scan * (1 - 0.55 * dark - 0.2 * across)[..., None]).clip(0, 255).astype(np.uint8), corners_of(scan))


def in_low_light(scan: np.ndarray, rng: random.Random, seed: int) -> Taken:
    """A quarter of the light, warm, with a sensor's noise."""
    noise = np.random.default_rng(seed).standard_normal(scan.shape, dtype=np.float32)
    made = scan * np.array([0.32, 0.28, 0.22]) * rng.uniform(0.8, 1.1) + 12 + rng.uniform(3, 5) * noise
    return Taken(made.clip(0, 255).astype(np.uint8), corners_of(scan))


def compressed(scan: np.ndarray, quality: int) -> Taken:
    data = io.BytesIO()
    Image.fromarray(scan).save(data, "JPEG", quality=quality)
    return Taken(np.asarray(Image.open(data)), corners_of(scan))


def with_letters(scan: np.ndarray, pixels: float) -> Taken:
    """Scaled so that letters are `pixels` high."""
    scale = pixels / (letter_height(cv2.cvtColor(scan, cv2.COLOR_RGB2GRAY).astype(np.float32) / 255) or pixels)
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    made = cv2.resize(scan, None, fx=scale, fy=scale, interpolation=how)
    return Taken(made, corners_of(made))


def behind_photo(photographs: list[Path], rng: random.Random, size: tuple[int, int]) -> np.ndarray:
    """A photograph as a background of `size`, out of focus."""
    with Image.open(rng.choice(photographs)) as opened:
        photo = np.asarray(opened.convert("RGB").resize(size))
    return cv2.GaussianBlur(photo, (0, 0), rng.uniform(1.5, 5))


def photographed(scan: np.ndarray, rng: random.Random, photographs: list[Path], seed: int, turn: int) -> Taken:
    """On a table, tilted by up to 20 degrees, in perspective, unevenly lit, with noise; the phone turned by `turn`."""
    flat = in_perspective(scan, rng, None)
    angle = math.radians(rng.uniform(-20, 20))
    spin = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    corners = flat.corners @ spin
    corners -= corners.min(0)
    room = corners.max(0) * rng.uniform(1.15, 1.4)
    room[0] = max(room[0], 0.7 * room[1])
    scale = PHOTO_SIDE / max(room)
    corners = (corners + (room - corners.max(0)) * [rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.7)]) * scale
    size = (round(room[0] * scale), round(room[1] * scale))
    taken = placed(scan, corners, size, behind_photo(photographs, rng, size))
    y, x = np.mgrid[: size[1], : size[0]].astype(np.float32)
    light = (
        rng.uniform(0.75, 0.95) + rng.uniform(-0.2, 0.2) * (x / size[0] - 0.5) + rng.uniform(-0.2, 0.2) * y / size[1]
    )
    noise = np.random.default_rng(seed).standard_normal((size[1], size[0], 3), dtype=np.float32)
    made = cv2.GaussianBlur(taken.picture * light[..., None], (0, 0), rng.uniform(0.3, 0.7)) + rng.uniform(1, 4) * noise
    picture = made.clip(0, 255).astype(np.uint8)
    if not turn:
        return Taken(picture, taken.corners)
    to = cv2.getPerspectiveTransform(
        corners_of(picture).astype(np.float32), turned(picture, turn).corners.astype(np.float32)
    )
    moved = cv2.perspectiveTransform(taken.corners[None], to)[0]
    return Taken(turned(picture, turn).picture, moved)


Take = Callable[[np.ndarray, random.Random, list[Path], int], Taken]
POSES: dict[str, Take] = {
    "upright": lambda scan, rng, photos, seed: Taken(scan, corners_of(scan)),
    "turned 90": lambda scan, rng, photos, seed: turned(scan, 90),
    "turned 180": lambda scan, rng, photos, seed: turned(scan, 180),
    "turned 270": lambda scan, rng, photos, seed: turned(scan, 270),
    "tilted 5": lambda scan, rng, photos, seed: tilted(scan, rng.choice((-5, 5))),
    "tilted 10": lambda scan, rng, photos, seed: tilted(scan, rng.choice((-10, 10))),
    "tilted 20": lambda scan, rng, photos, seed: tilted(scan, rng.choice((-20, 20))),
    "perspective": lambda scan, rng, photos, seed: in_perspective(scan, rng, None),
    "perspective on a table": lambda scan, rng, photos, seed: in_perspective(
        scan, rng, behind_photo(photos, rng, (600, 800))
    ),
    "curled": lambda scan, rng, photos, seed: curled(scan, rng),
    "shadowed": lambda scan, rng, photos, seed: shadowed(scan, rng),
    "low light": lambda scan, rng, photos, seed: in_low_light(scan, rng, seed),
    "blurred": lambda scan, rng, photos, seed: Taken(cv2.GaussianBlur(scan, (0, 0), 1.3), corners_of(scan)),
    "JPEG": lambda scan, rng, photos, seed: compressed(scan, 20),
    "small": lambda scan, rng, photos, seed: with_letters(scan, SMALL),
    "large": lambda scan, rng, photos, seed: with_letters(scan, LARGE),
    "photo": lambda scan, rng, photos, seed: photographed(scan, rng, photos, seed, 0),
    "photo turned 90": lambda scan, rng, photos, seed: photographed(scan, rng, photos, seed, 90),
    "photo turned 180": lambda scan, rng, photos, seed: photographed(scan, rng, photos, seed, 180),
}


def take(scan: np.ndarray, name: str, pose: str, photographs: list[Path]) -> Taken:
    """The scan in a pose, drawn from its name."""
    seed = zlib.crc32(f"{name} {pose}".encode())
    return POSES[pose](scan, random.Random(seed), photographs, seed)


@dataclass(frozen=True)
class Scan:
    name: str
    picture: np.ndarray
    asked: list[tuple[str, str, str]]  # kind, question, answer


def read_scans(folder: Path, limit: int | None, drawn: int) -> list[Scan]:
    """The scans of a folder with their questions, and drawn documents."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    if (folder / "samples.jsonl").exists():
        for sample in map(json.loads, (folder / "samples.jsonl").read_text().splitlines()):
            if sample["kind"] in KINDS:
                found.setdefault(sample["image"], []).append((sample["kind"], sample["question"], sample["answer"]))
    else:
        for name, record in json.loads((folder / "recs.json").read_text()).items():
            if zlib.crc32(name.encode()) % 10 == 0:  # as recipes/reader/receipts.py splits them
                known = [(kind, text, record["fields"].get(kind)) for kind, text in KINDS.items()]
                found[f"{name}.jpg"] = [(kind, text, answer) for kind, text, answer in known if answer]
    scans = []
    for name, asked in sorted(found.items())[:limit]:
        with Image.open(folder / name) as opened:
            scans.append(Scan(name, np.asarray(opened.convert("RGB")), asked))
    for number in range(drawn):
        made = draw_any(f"poses {number}", [DRAWN[number % len(DRAWN)]], held_out=True)
        asked = [(made.kind, one.text, one.answer) for one in made.questions if one.evidence and not one.absent][:3]
        scans.append(Scan(f"{made.kind} {number}", made.image, asked))
    return scans


def run(scans: list[Scan], photographs: list[Path], out: Path, given: argparse.Namespace) -> None:
    """Ask every question about every pose that `out` has no answer to yet."""
    done = set()
    if out.exists():
        done = {
            (row["straighten"], row["pose"], row["image"], row["question"])
            for row in map(json.loads, out.read_text().splitlines())
        }
    vlm = arr_coc.load(given.model)
    for scan in scans:
        for pose in given.poses:
            picture = None
            for mode in given.straighten:
                if all((mode, pose, scan.name, question) in done for _, question, _ in scan.asked):
                    continue
                picture = picture or Image.fromarray(take(scan.picture, scan.name, pose, photographs).picture)
                start = time.process_time()
                answers = vlm.ask(picture, [question for _, question, _ in scan.asked], budget=BUDGET, straighten=mode)
                seconds = time.process_time() - start
                rows = []
                for (kind, question, answer), found in zip(scan.asked, answers, strict=True):
                    view = found.allocation.view
                    row = {"straighten": mode, "pose": pose, "image": scan.name, "kind": kind, "question": question}
                    row |= {"answer": answer, "said": found.text, "right": exact(found.text, [answer])}
                    row |= {"view": str(view or ""), "seconds": round(seconds / len(answers), 3)}
                    rows.append(row)
                with out.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
        print(scan.name, flush=True)


def found_pose(picture: np.ndarray) -> Pose:
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    return find_pose(gray, (picture.shape[1], picture.shape[0]))


def angle_of(corners: np.ndarray) -> float:
    """The direction of the middle of a page, in degrees, clockwise."""
    across = corners[1] + corners[2] - corners[0] - corners[3]
    return math.degrees(math.atan2(across[1], across[0]))


def share_of(taken: Taken, region: Region | None) -> float:
    """How much of what is shown is the page."""
    shown = region or Region.whole((taken.picture.shape[1], taken.picture.shape[0]))
    corners = 200 * shown.place(torch.from_numpy(taken.corners)).numpy()
    return float(cv2.fillConvexPoly(np.zeros((200, 200), np.uint8), corners.round().astype(np.int32), 1).mean())


def estimate(scans: list[Scan], photographs: list[Path], poses: list[str]) -> str:
    """How often the pose found is the pose drawn, and how long it takes; and how many photographs would be turned."""
    lines = [
        "| | left as it is | turned right | upside down | sideways or astray | tilt left, median | page's share of what is "
        "shown, median | ms, median |",
        "|---" * 8 + "|",
    ]
    for pose in poses:
        kept, right, over, astray, tilts, shares, times = 0, 0, 0, 0, [], [], []
        for scan in scans:
            taken = take(scan.picture, scan.name, pose, photographs)
            start = time.process_time()
            found = found_pose(taken.picture)
            times.append(1e3 * (time.process_time() - start))
            angle = 0.0 if found.region is None else found.region.angle
            rest = (angle_of(taken.corners) - angle + 180) % 360 - 180
            kept += found.region is None
            right += found.region is not None and abs(rest) < 8
            over += abs(rest) > 172
            astray += 8 <= abs(rest) <= 172
            if abs(rest) < 45:
                tilts.append(abs(rest))
            shares.append(share_of(taken, found.region))
        lines.append(
            f"| {pose} | {kept} | {right} | {over} | {astray} | {statistics.median(tilts) if tilts else math.nan:.1f} | "
            f"{statistics.median(shares):.2f} | {statistics.median(times):.0f} |"
        )
        print(lines[-1], flush=True)
    turned_photos = [path.stem for path in photographs if found_pose(read_rgb(path)).region is not None]
    lines.append(f"{len(turned_photos)} of {len(photographs)} photographs would be turned: {', '.join(turned_photos)}")
    return "\n".join(lines)


def write(scans: list[Scan], photographs: list[Path], out: Path, poses: list[str]) -> None:
    """Every pose, and beside it what it is straightened to."""
    out.mkdir(parents=True, exist_ok=True)
    for scan in scans:
        for pose in poses:
            taken = Image.fromarray(take(scan.picture, scan.name, pose, photographs).picture)
            region = found_pose(np.asarray(taken)).region
            size = taken.size if region is None else (round(region.size[0]), round(region.size[1]))
            shown = taken if region is None else Pyramid(taken).crop(region, size)
            sheet = Image.new("RGB", (taken.width + shown.width + 20, max(taken.height, shown.height)), (80, 0, 120))
            sheet.paste(taken, (0, 0))
            sheet.paste(shown, (taken.width + 20, 0))
            sheet.thumbnail((1600, 1200))
            sheet.save(out / f"{Path(scan.name).stem} {pose}.jpg")


def read_rgb(path: Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


def cost(scans: list[Scan], rounds: int) -> str:
    """What looking for the pose adds to an answer about an upright scan: processor time, both ways in turns."""
    vlm = arr_coc.load("reader")
    lines = ["| answer | straighten off | auto | more |", "|---|---|---|---|"]
    ways: dict[str, dict[str, Any]] = {
        "12.5%": {"budget": BUDGET},
        "128 encoded and read": {"budget": 128, "glance": 128},
    }
    for name, options in ways.items():
        times: dict[str, list[float]] = {"off": [], "auto": []}
        more = []
        for number in range(rounds + 1):
            for scan in scans:
                spent = {}
                for mode in ("off", "auto") if number % 2 else ("auto", "off"):
                    start = time.process_time()
                    vlm.ask(Image.fromarray(scan.picture), KINDS["total"], straighten=mode, **options)
                    spent[mode] = time.process_time() - start
                if number:  # the first round is warm-up
                    more.append(spent["auto"] - spent["off"])
                    for mode, seconds in spent.items():
                        times[mode].append(seconds)
        off, auto = (1e3 * statistics.median(times[mode]) for mode in ("off", "auto"))
        extra = 1e3 * statistics.median(more)
        lines.append(f"| {name} | {off:.0f} ms | {auto:.0f} ms | {extra:.0f} ms, {extra / off:.1%} |")
    return "\n".join(lines)


def report(results: Path, poses: list[str]) -> str:
    """Accuracy of each pose, by whether it was straightened, with its interval over pictures."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    modes = list(dict.fromkeys(row["straighten"] for row in rows))
    lines = [
        f"| | {' | '.join(f'straighten {mode} [95%]' for mode in modes)} | pictures |",
        "|---" * (len(modes) + 2) + "|",
    ]
    for pose in [*poses, "all but upright"]:
        own = [row for row in rows if row["pose"] == pose or (pose == "all but upright" and row["pose"] != "upright")]
        cells = []
        for mode in modes:
            scores: dict[str, list[float]] = {}
            for row in own:
                if row["straighten"] == mode:
                    scores.setdefault(row["image"], []).append(row["right"])
            low, high = interval(scores) or (0.0, 1.0)
            every = [right for one in scores.values() for right in one]
            cells.append(f"{statistics.mean(every):.2f} [{low:.2f}, {high:.2f}]" if every else "")
        lines.append(f"| {pose} | {' | '.join(cells)} | {len({row['image'] for row in own})} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="write every pose of some scans, and what they are straightened to")
    show.add_argument("out", type=Path)
    find = commands.add_parser("estimate", help="compare poses found with poses drawn")
    price = commands.add_parser("cost", help="time what looking for the pose adds to an answer")
    price.add_argument("--rounds", type=int, default=5)
    ask = commands.add_parser("run", help="ask a reader, and print the table")
    ask.add_argument("-o", "--out", type=Path, required=True, help="answers, one JSON object in a line")
    ask.add_argument("--straighten", nargs="+", choices=("auto", "off"), default=["auto", "off"])
    ask.add_argument("--model", default="reader")
    for command in (show, find, price, ask):
        command.add_argument("--receipts", type=Path, required=True, help="folder of scans")
        command.add_argument("--photographs", type=Path, required=True, help="folder of photographs, the backgrounds")
        command.add_argument("--poses", nargs="+", choices=list(POSES), default=list(POSES))
        command.add_argument("--limit", type=int, help="number of receipts (all)")
        command.add_argument("--drawn", type=int, default=0, help="drawn invoices and screens besides (0)")
    given = parser.parse_args()
    photographs = sorted(given.photographs.glob("*.jpg"))
    scans = read_scans(given.receipts, given.limit, given.drawn)
    if given.command == "run":
        run(scans, photographs, given.out, given)
        print(report(given.out, given.poses))
    elif given.command == "cost":
        print(cost(scans, given.rounds))
    elif given.command == "show":
        write(scans, photographs, given.out, given.poses)
    else:
        print(estimate(scans, photographs, given.poses))


if __name__ == "__main__":
    main()
