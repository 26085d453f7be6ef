"""Saliency compared with where people looked: AUC, NSS and CC as the MIT saliency benchmark defines them.

A folder has pictures and `fixations.jsonl`, one picture a line: {"image": "a.jpg", "fixations": [[x, y], ...]}, in pixels of the
picture. Or it has the files of MIT1003: pictures, and for each `NAME_fixPts.*`, whose bright pixels are fixations.

- AUC (Judd): area under the ROC curve of the map as a classifier of fixated pixels, with a threshold at each fixation;
- NSS: the map's mean at the fixations, after it was scaled to mean 0 and deviation 1;
- CC: its correlation with the fixations blurred by a Gaussian of one degree of visual angle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from arr_coc.errors import DataError
from arr_coc.evaluation import statistics
from arr_coc.evaluation.data import InvalidSample, read_json_lines
from arr_coc.evaluation.report import format_share, markdown_table
from arr_coc.relevance.knowing import texture_scores
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid

FILE = "fixations.jsonl"
POINTS = "_fixPts"  # of MIT1003
SUFFIXES = (".jpg", ".jpeg", ".png")
DEGREE = 35 / 1024  # one degree of visual angle, relative to the longer side, as in MIT1003
JITTER = 1e-7  # that breaks ties, relative to the map's range
CELL = 14  # px of a cell for the scores of knowing: fine enough for maps
METRICS = ("auc", "nss", "cc")


def auc_judd(saliency: np.ndarray, fixated: np.ndarray) -> float | None:
    """`saliency` `[H, W]` as a classifier of the pixels that are `fixated` `[H, W]`; None without a fixation.

    At the i-th highest value of a fixation, the true positive rate is i over the number of fixations, and the false positive
    rate is the share of the other pixels above it. Ties are broken by jitter, as in the benchmark's code, always the same.
    """
    count = int(fixated.sum())
    if not 0 < count < saliency.size:
        return None
    spread = float(saliency.max() - saliency.min())
    scaled = (saliency - saliency.min()) / (spread or 1.0) + JITTER * np.random.default_rng(0).random(saliency.shape)
    at = np.sort(scaled[fixated])[::-1]
    above = scaled.size - np.searchsorted(np.sort(scaled.ravel()), at, side="left")  # pixels at least as salient
    hits = np.arange(1, count + 1)
    found = np.concatenate([[0], hits / count, [1]])
    false = np.concatenate([[0], (above - hits) / (scaled.size - count), [1]])
    return float(np.sum((false[1:] - false[:-1]) * (found[1:] + found[:-1]) / 2))


def nss(saliency: np.ndarray, fixated: np.ndarray) -> float | None:
    """The mean of the normalised map at the fixated pixels; 0 for a constant map, None without a fixation."""
    if not fixated.any():
        return None
    deviation = float(saliency.std(ddof=1))
    return 0.0 if deviation == 0 else float(((saliency - saliency.mean()) / deviation)[fixated].mean())


def cc(saliency: np.ndarray, density: np.ndarray) -> float | None:
    """Pearson's correlation of two maps; 0 for a constant map, None where no density is known."""
    if density.std() == 0:
        return None
    return 0.0 if saliency.std() == 0 else float(np.corrcoef(saliency.ravel(), density.ravel())[0, 1])


def density(fixated: np.ndarray) -> np.ndarray:
    """Fixated pixels `[H, W]`, blurred by a Gaussian of one degree."""
    sigma = DEGREE * max(fixated.shape)
    return cv2.GaussianBlur(fixated.astype(np.float64), (0, 0), sigma, borderType=cv2.BORDER_CONSTANT)


def read_fixations(folder: str | Path, limit: int | None = None) -> Iterator[tuple[Path, np.ndarray]]:
    """Each picture's path and its fixated pixels `[H, W]`, as booleans."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"expected a folder of pictures and fixations, got {str(folder)!r}")
    found = _from_lines(folder) if (folder / FILE).is_file() else _from_points(folder)
    for number, one in enumerate(found):
        if number == limit:
            return
        yield one


def _from_lines(folder: Path) -> Iterator[tuple[Path, np.ndarray]]:
    for line, fields in read_json_lines(folder / FILE):
        where = f"{FILE} line {line}"
        if isinstance(fields, InvalidSample):
            raise DataError(f"{where}: {fields}")
        if not isinstance(fields.get("image"), str):
            raise DataError(f"expected an image and fixations in {where}, got {str(fields)[:60]!r}")
        path = folder / fields["image"]
        width, height = _size(path)
        try:
            points = np.array(fields["fixations"], np.float64).reshape(-1, 2)
        except (KeyError, TypeError, ValueError):
            raise DataError(f"expected fixations as [[x, y], ...] in {where}") from None
        inside = (points >= 0).all(1) & (points[:, 0] < width) & (points[:, 1] < height)  # NaN is outside
        if not inside.all():
            x, y = points[~inside][0]
            raise DataError(f"expected fixations inside the {width} x {height} pixels of {where}, got ({x:g}, {y:g})")
        fixated = np.zeros((height, width), bool)
        fixated[points[:, 1].astype(int), points[:, 0].astype(int)] = True
        yield path, fixated


def _from_points(folder: Path) -> Iterator[tuple[Path, np.ndarray]]:
    points = {path.stem.removesuffix(POINTS): path for path in sorted(folder.rglob(f"*{POINTS}.*"))}
    if not points:
        raise DataError(f"expected {FILE} or files NAME{POINTS}.jpg in {str(folder)!r}, got neither")
    pictures = {path.stem: path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES}
    for name, path in points.items():
        if name not in pictures:
            raise DataError(f"expected a picture {name!r} for {str(path)!r}, got none")
        with Image.open(path) as image:
            yield pictures[name], np.asarray(image.convert("L")) > 127


def _size(path: Path) -> tuple[int, int]:
    try:
        with Image.open(path) as image:
            return image.size
    except OSError as error:
        raise DataError(f"cannot read the picture {str(path)!r}: {error}") from None


def _score(number: int) -> Callable[[TextureArray], np.ndarray]:
    def score(texture: TextureArray) -> np.ndarray:
        height, width = texture.size
        grid = Grid(1, max(1, round(height / CELL)), max(1, round(width / CELL)))
        return texture_scores(texture, grid)[number].double().cpu().numpy()

    return score


def _channel(name: str) -> Callable[[TextureArray], np.ndarray]:
    return lambda texture: texture[name].double().cpu().numpy()


MAPS: dict[str, Callable[[TextureArray], np.ndarray]] = {  # what is compared with the fixations
    "saliency": _channel("saliency"),
    "salience": _score(1),
    "information": _score(0),
    "text": _channel("text"),
    "centre": lambda texture: 1 - _channel("eccentricity")(texture),
}


def compare(
    folder: str | Path, limit: int | None = None, tick: Callable[[int, str], None] = lambda done, name: None
) -> dict[str, Any]:
    """AUC, NSS and CC of every one of `MAPS`, with 95% intervals over pictures, for JSON."""
    scores: dict[str, dict[str, dict[str, list[float]]]] = {name: {m: {} for m in METRICS} for name in MAPS}
    pictures = 0
    for path, fixated in read_fixations(folder, limit):
        texture, wanted = TextureArray.from_image(path), density(fixated)
        size = (fixated.shape[1], fixated.shape[0])
        for name, make in MAPS.items():
            found = cv2.resize(make(texture), size, interpolation=cv2.INTER_LINEAR)
            if not np.isfinite(found).all():
                raise DataError(f"expected finite values in the map {name!r} of {str(path)!r}, got NaN or infinity")
            got = {"auc": auc_judd(found, fixated), "nss": nss(found, fixated), "cc": cc(found, wanted)}
            for metric, value in got.items():
                scores[name][metric][str(path)] = [] if value is None else [value]
        pictures += 1
        tick(pictures, path.name)
    if not pictures:
        raise DataError(f"expected pictures with fixations in {str(folder)!r}, got none")
    records = []
    for name, metrics in scores.items():
        record: dict[str, Any] = {"map": name}
        for metric, by_picture in metrics.items():
            record |= {metric: statistics.mean(by_picture), f"{metric}_interval": statistics.interval(by_picture)}
        records.append(record)
    return {"format": "fixations", "pictures": pictures, "records": records}


def to_table(found: Mapping[str, Any]) -> str:
    """The comparison as markdown, the best AUC first."""
    rows = []
    for record in sorted(found["records"], key=lambda one: -(one["auc"] or 0.0)):
        cells = [
            "-" if record[metric] is None else format_share(record[metric], record[f"{metric}_interval"])
            for metric in METRICS
        ]
        rows.append([record["map"], *cells])
    return markdown_table(["map", "AUC (Judd)", "NSS", "CC"], rows)
