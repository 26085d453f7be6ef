"""Pages of other makers: rendered by a browser and a plotting library, with questions and boxes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_coc.errors import ArrCocError
from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader.export_pages import export_pages
from tests.demo.browser import REQUIRED, executable


@pytest.mark.skipif(executable() is None and os.environ.get(REQUIRED) != "required", reason="no Chromium")
def test_pages_show_what_is_asked_for(tmp_path: Path) -> None:
    assert export_pages(tmp_path, 6, seed=1) > 20
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {row["kind"].split(":")[0] for row in rows} == {"invoice", "table", "screen", "chart"}
    assert sum(row["answer"] == NOT_FOUND for row in rows) == 6
    for row in rows:
        with Image.open(tmp_path / row["image"]) as picture:
            assert min(picture.size) > 200
            if "evidence" in row:
                box = row["evidence"][0][0]
                assert np.asarray(picture.convert("L").crop(box)).std() > 10  # something is written there
    export_pages(tmp_path / "again", 6, seed=1)
    assert (tmp_path / "again" / "samples.jsonl").read_text() == (tmp_path / "samples.jsonl").read_text()


def test_without_a_browser_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ArrCocError, match="no Chromium"):
        export_pages(tmp_path, 1, seed=0)
