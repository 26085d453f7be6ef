"""The benchmark runs everything it reports, in turns; no test looks at how long anything took."""

from __future__ import annotations

import json

import numpy as np
import pytest

from arr_coc import FULL40, TextureArray, pictures
from arr_coc.bench import obvious
from arr_coc.bench.memory import peak_megabytes
from arr_coc.bench.realize import Found, Goal
from arr_coc.bench.texture import families
from arr_coc.bench.timing import interleave
from arr_coc.cli import main


def test_rounds_are_interleaved_after_one_warm_up() -> None:
    order: list[str] = []
    times = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert len(times["a"].runs) == 2
    assert times["a"].best <= times["a"].median


def test_the_families_cover_all_that_the_texture_computes_itself() -> None:
    absent = TextureArray.from_image(pictures.scene().resize((30, 20))).absent
    assert {name for names in families().values() for name in names} == set(FULL40) - set(absent)


def test_the_obvious_implementation_computes_the_same_things() -> None:
    image = pictures.scene().resize((240, 160))
    texture = TextureArray.from_image(image)
    for family, names in families().items():
        if family != "text":
            planes = obvious.FAMILIES[family](image)
            assert len(planes) == len(names)
            assert all(np.shape(plane) == texture.size for plane in planes)
    for family in ("colour", "edges", "distance", "position"):
        for name, plane in zip(families()[family], obvious.FAMILIES[family](image), strict=True):
            close = np.abs(plane - texture[name].numpy()) < 1e-4
            assert close.mean() > 0.999, name  # pixels exactly at their surroundings' luma may fall to either polarity
    assert len(obvious.everything(image)) == sum(len(names) for names in families().values()) - 1
    saliency = np.corrcoef(obvious.saliency(image)[0].ravel(), texture["saliency"].numpy().ravel())[0, 1]
    assert saliency > 0.8


def test_bench_texture_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "texture", "--sizes", "64", "--rounds", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = {row["what"]: row for row in said["sizes"][0]["rows"]}
    assert rows["full40"]["ours"]["median_ms"] > 0
    assert rows["full40"]["times_faster"] > 0
    assert rows["text"]["obvious"] is None
    assert said["machine"]
    assert said["date"]


def test_half_precision_stays_under_250_megabytes_at_1024_pixels() -> None:
    peak = peak_megabytes(1024, "float16")
    assert peak is None or 80 < peak < 250  # the one-block tensor alone has 80


def test_alone_needs_no_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "arr_coc.bench.obvious")
    monkeypatch.delattr("arr_coc.bench.obvious")
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert main(["bench", "texture", "--sizes", "32", "--rounds", "1", "--alone", "--json"]) == 0
    assert all(row["obvious"] is None for row in json.loads(capsys.readouterr().out)["sizes"][0]["rows"])
    assert main(["bench", "texture", "--sizes", "32", "--rounds", "1"]) == 2
    assert "pip install scikit-image" in capsys.readouterr().err


def test_bench_realize_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["bench", "realize", "--rounds", "1", "--tokens", "1", "--side", "8"]
    assert main([*options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"texture", "realize", "allocator, first question", "allocator, second question", "ask, dense"} <= set(
        said["ms"]
    )
    assert {"default", "glance 50%", "glance 25%", "glance all"} <= {
        name.removeprefix("ask, ") for name in said["ms"] if name.startswith("ask, ")
    }
    assert all(one["is"] > 0 and one["goal"] and isinstance(one["reached"], bool) for one in said["goals"])
    assert main(["bench", "realize", "--rounds", "0"]) == 2
    assert "expected --rounds of at least 1" in capsys.readouterr().err


def test_a_goal_is_reached_from_its_own_side() -> None:
    assert Goal("time", 9, at_most=10).reached
    assert not Goal("time", 11, at_most=10).reached
    assert Goal("faster", 2, at_least=1.5).reached
    assert not Goal("faster", 1.4, at_least=1.5).reached


def test_ratios_are_of_each_round() -> None:
    found = Found({"one": [1.0, 20.0, 3.0], "other": [2.0, 40.0, 3.0]})
    assert found.ratio("one", "other") == 0.5
    assert (found.median("one"), found.best("one")) == (3.0, 1.0)
