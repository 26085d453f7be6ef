"""The drawn cases: their ground truth, and which selectors pass."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_coc import pictures
from arr_coc.draw.textures import TEXTURES
from arr_coc.errors import DataError
from arr_coc.evaluation import evaluate, page, robustness
from arr_coc.selectors import SelectionInput
from arr_coc.types.grid import Grid
from tests.adapters.tiny_vlm import wrapped
from tests.evaluation.test_page import unclosed


def test_cases_are_reproducible_with_evidence_inside_the_picture() -> None:
    first, second = robustness.make_suite(), robustness.make_suite()
    textures = robustness.TEXTURE_VARIANTS * len(TEXTURES)
    assert len(first.pictures) == (len(robustness.CASES) - 1) * robustness.VARIANTS + textures >= 60
    for one, other in zip(first.pictures, second.pictures, strict=True):
        assert np.array_equal(np.asarray(one.image), np.asarray(other.image))
        for left, top, right, bottom in (box for group in one.samples[0].evidence for box in group):
            assert 0 <= left < right <= one.size[0]
            assert 0 <= top < bottom <= one.size[1]
            inside = np.asarray(one.image)[int(top) : int(bottom) + 1, int(left) : int(right) + 1]  # type: ignore[index]
            assert inside.std() > 0  # something is drawn there
        kind = one.samples[0].kind
        assert kind in robustness.CASES
        assert bool(one.samples[0].evidence) == (kind not in ("void", "absent", "texture"))


def test_the_oracle_and_all_cells_pass_and_one_corner_fails() -> None:
    def corner(selection: SelectionInput) -> torch.Tensor:
        return selection.candidates[: selection.count]

    options = {"answers": False, "seeds": 1}
    report = evaluate(
        wrapped("qwen2_vl"),
        robustness.make_suite(1),
        ["all", "oracle", "uniform", "arr-coc-untrained", corner],
        ["25%"],
        **options,
    )  # type: ignore[arg-type]
    found = robustness.judge(report)
    for name, budget in (("all", "all"), ("oracle", "25%")):
        assert all(passed != [False] for passed in found[name, budget].values())
    assert found["oracle", "25%"]["crowd"] == [None]  # this model's 16 cells cannot hold all discs
    assert found["corner", "25%"]["void"] == found["corner", "25%"]["absent"] == [False]
    assert not any(found["corner", "25%"]["texture"])
    assert all(found["uniform", "25%"]["texture"])
    textures = found["arr-coc-untrained", "25%"]["texture"]
    assert textures.count(True) >= 0.7 * len(textures)  # recognised as void
    assert found["uniform", "25%"]["void"] == [True]
    assert found["uniform", "25%"]["camouflage"] == [False]
    said = robustness.to_dict(report)
    assert [case["case"] for case in said["cases"]] == list(robustness.CASES)
    corner_said = said["records"][-1]
    assert corner_said["selector"] == "corner"
    assert corner_said["passed"] == found["corner", "25%"]
    verdicts = [one for some in corner_said["passed"].values() for one in some]
    assert corner_said["count"] == verdicts.count(True) < corner_said["judged"] == len(verdicts) - verdicts.count(None)
    text = page.render_suite(report)
    assert unclosed(text) == []
    assert text.count("<figure>") == len(report.data.pictures) * 5
    matrix = text[text.index('<table class="matrix">') : text.index("</table>")]
    assert len(re.findall("<tr>", matrix)) == 1 + 5
    row = next(row for row in matrix.split("<tr>") if "corner" in row)
    assert (row.count("✓"), row.count("✗"), row.count("–")) == tuple(verdicts.count(one) for one in (True, False, None))
    table = robustness.to_table(report)
    assert "| all | all | 1 of 1 |" in table
    assert table.splitlines()[0].startswith("| selector | budget | camouflage | void |")


def test_evenness() -> None:
    grid = Grid(1, 8, 8)
    assert robustness.evenness(torch.arange(64), grid) == pytest.approx(1)
    assert robustness.evenness(torch.tensor([0, 1, 8, 9]), grid) == 0
    assert robustness.evenness(torch.tensor([0, 7, 56, 63]), grid) == pytest.approx(1)
    assert robustness.evenness(torch.zeros(0, dtype=torch.long), grid) == 0


def test_photographs_give_scrambled_voids_and_questions_about_their_objects(tmp_path: Path) -> None:
    pictures.scene().save(tmp_path / "a.png")
    pictures.receipt().save(tmp_path / "b.jpg")
    row = {"image": "a.png", "question": "Where is the sign?", "answer": "sign", "evidence": [[[40, 60, 90, 120]]]}
    (tmp_path / "samples.jsonl").write_text(json.dumps(row) + "\n")
    found = {
        one.name: one
        for one in robustness.make_suite(1, tmp_path).pictures
        if one.samples[0].kind in robustness.PHOTO_CASES
    }
    assert list(found) == ["scrambled 1", "photo 1", "scrambled 2"]
    assert found["photo 1"].samples[0].evidence == (((40.0, 60.0, 90.0, 120.0),),)
    assert found["scrambled 2"].samples[0].extra["rule"] == "even"
    spectra = [
        np.abs(np.fft.fft2(np.asarray(one.image, np.float64).mean(-1)))
        for one in (found["scrambled 1"], found["photo 1"])
    ]  # type: ignore[call-overload]
    assert spectra[0].mean() == pytest.approx(spectra[1].mean(), rel=0.35)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="expected photographs"):
        robustness.make_suite(1, tmp_path / "none")
    with pytest.raises(DataError, match="expected a folder of photographs"):
        robustness.make_suite(1, tmp_path / "missing")
