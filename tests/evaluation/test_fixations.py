"""Saliency against fixations: the metrics against slow direct implementations, the folder's layouts, and bad input."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from arr_coc.cli import main
from arr_coc.errors import DataError
from arr_coc.evaluation import fixations
from arr_coc.evaluation.fixations import auc_judd, cc, compare, density, nss, read_fixations, to_table


def slow_auc(saliency: np.ndarray, fixated: np.ndarray) -> float:
    """As the benchmark's code has it: one threshold at each fixated value, from the highest down."""
    saliency = saliency / saliency.max() + fixations.JITTER * np.random.default_rng(0).random(saliency.shape)
    at = sorted(saliency[fixated], reverse=True)
    points = [(0.0, 0.0)]
    for i, threshold in enumerate(at, 1):
        above = sum(1 for value in saliency.ravel() if value >= threshold)
        points.append(((above - i) / (saliency.size - len(at)), i / len(at)))
    points.append((1.0, 1.0))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))


@pytest.mark.parametrize("levels", [1000, 5])
def test_metrics_equal_slow_references(levels: int) -> None:
    """With few levels there are ties."""
    rng = np.random.default_rng(levels)
    for _ in range(5):
        saliency = rng.integers(0, levels, (23, 17)).astype(float)
        saliency[0, 0] = 0
        fixated = rng.random((23, 17)) < 0.1
        assert auc_judd(saliency, fixated) == pytest.approx(slow_auc(saliency, fixated))
        deviation = np.sqrt(((saliency - saliency.mean()) ** 2).sum() / (saliency.size - 1))
        slow = [(saliency[y, x] - saliency.mean()) / deviation for y, x in zip(*fixated.nonzero(), strict=True)]
        assert nss(saliency, fixated) == pytest.approx(sum(slow) / len(slow))
        wanted = density(fixated)
        a, b = saliency - saliency.mean(), wanted - wanted.mean()
        assert cc(saliency, wanted) == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def test_a_perfect_map_an_inverted_one_and_a_constant_one() -> None:
    fixated = np.zeros((40, 40), bool)
    fixated[10:13, 20:22] = True
    perfect = fixated.astype(float)
    assert auc_judd(perfect, fixated) == pytest.approx(1)
    assert auc_judd(-perfect, fixated) < 0.1  # type: ignore[operator]
    assert nss(np.ones((40, 40)), fixated) == cc(np.ones((40, 40)), density(fixated)) == 0
    assert 0.2 < auc_judd(np.ones((40, 40)), fixated) < 0.8  # type: ignore[operator]  # by jitter alone
    nothing = np.zeros((40, 40), bool)
    assert auc_judd(perfect, nothing) is nss(perfect, nothing) is cc(perfect, density(nothing)) is None


def draw_folder(folder: Path) -> None:
    """Two gray pictures with a red disc, which is where people looked."""
    lines = []
    for name, (x, y) in (("a.png", (60, 50)), ("b.png", (150, 120))):
        image = Image.new("RGB", (220, 180), (150, 150, 150))
        ImageDraw.Draw(image).ellipse([x - 12, y - 12, x + 12, y + 12], fill=(230, 20, 20))
        image.save(folder / name)
        lines.append(json.dumps({"image": name, "fixations": [[x, y], [x + 3, y - 2], [x - 5.5, y + 4]]}))
    (folder / fixations.FILE).write_text("\n".join(lines))


def test_what_stands_out_predicts_the_fixations_better_than_the_centre(tmp_path: Path) -> None:
    draw_folder(tmp_path)
    found = compare(tmp_path)
    by_name = {one["map"]: one for one in found["records"]}
    assert found["pictures"] == 2
    assert by_name["saliency"]["auc"] > 0.9 > by_name["centre"]["auc"]
    assert by_name["saliency"]["nss"] > 1
    assert by_name["saliency"]["cc"] > 0.3
    assert to_table(found).splitlines()[0] == "| map | AUC (Judd) | NSS | CC |"
    assert compare(tmp_path, limit=1)["pictures"] == 1


def test_the_layout_of_mit1003(tmp_path: Path) -> None:
    (tmp_path / "ALLSTIMULI").mkdir()
    (tmp_path / "ALLFIXATIONMAPS").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "ALLSTIMULI" / "i1.png")
    points = Image.new("L", (30, 20))
    points.putpixel((4, 7), 255)
    points.save(tmp_path / "ALLFIXATIONMAPS" / "i1_fixPts.png")
    ((path, fixated),) = read_fixations(tmp_path)
    assert path.name == "i1.png"
    assert np.argwhere(fixated).tolist() == [[7, 4]]
    (tmp_path / "ALLSTIMULI" / "i1.png").unlink()
    with pytest.raises(DataError, match="expected a picture 'i1'"):
        list(read_fixations(tmp_path))


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", "not JSON"),
        ('{"fixations": []}', "expected an image"),
        ('{"image": "a.png"}', "expected fixations as"),
        ('{"image": "a.png", "fixations": [[1]]}', "expected fixations as"),
        ('{"image": "a.png", "fixations": [[500, 1]]}', "inside the 220 x 180"),
        ('{"image": "a.png", "fixations": [[NaN, 1]]}', "inside the 220 x 180"),
        ('{"image": "missing.png", "fixations": [[1, 1]]}', "cannot read the picture"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, match: str) -> None:
    draw_folder(tmp_path)
    (tmp_path / fixations.FILE).write_text(line)
    with pytest.raises(DataError, match=match):
        compare(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data", tmp_path / "out.json"
    data.mkdir()
    draw_folder(data)
    assert main(["eval", str(data), "--format", "fixations", "--json", str(out)]) == 0
    assert "2 pictures" in capsys.readouterr().out
    assert {one["map"] for one in json.loads(out.read_text())["records"]} == set(fixations.MAPS)
    assert main(["eval", str(data), "--format", "fixations", "--selectors", "random"]) == 2
    assert "expected no --selectors with --format fixations" in capsys.readouterr().err
    (data / fixations.FILE).unlink()
    assert main(["eval", str(data), "--format", "fixations"]) == 2
