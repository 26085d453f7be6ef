"""What the docs say is what the code says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arr_coc

ROOT = Path(__file__).parent.parent


def script(name: str) -> Any:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_channel_table_is_up_to_date() -> None:
    assert (ROOT / "docs" / "channels.md").read_text() == script("channel_table").table(), "run: make pictures"


def test_the_file_tree_is_up_to_date() -> None:
    assert (ROOT / "docs" / "architecture.md").read_text() == script("file_tree").page(), "run: make pictures"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/texture.md",
        "docs/training.md",
        "docs/answering.md",
        "docs/realizing.md",
        "docs/learning.md",
        "docs/comparing.md",
        "docs/results.md",
        "docs/speed.md",
        "docs/embeddings.md",
        "docs/video.md",
        "docs/texture_vlm.md",
        "docs/index.md",
        "docs/how_it_works.md",
        "docs/page.md",
    ],
)
def test_links_and_pictures_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert targets
    for link in targets:
        assert ((ROOT / page).parent / link).exists(), link


@pytest.mark.parametrize("page", ["README.md", "docs/answering.md", "docs/index.md"])
def test_snippets_run(page: str, tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert snippets
    arr_coc.pictures.receipt().save(tmp_path / "receipt.jpg")
    if page == "docs/answering.md":  # one story in several pieces
        snippets = ["\n".join(snippets)]
    for code in snippets:
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_no_figure_is_missing() -> None:
    for page in (
        "README.md",
        "docs/texture.md",
        "docs/training.md",
        "docs/answering.md",
        "docs/realizing.md",
        "docs/learning.md",
        "docs/comparing.md",
        "docs/results.md",
        "docs/speed.md",
        "docs/embeddings.md",
        "docs/video.md",
        "docs/texture_vlm.md",
        "docs/page.md",
    ):
        assert not re.search(r"^[A-Z]{4,}$|\| (?!ANLS )[A-Z]{4,} \|", (ROOT / page).read_text(), re.M), page


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text() for path in (tmp_path / "site").glob("*.html")}
    for name, text in pages.items():
        fetched = re.findall(r"""<(?:script|img|link|iframe)\b[^>]*(?:src|href)=["']?(https?:[^"'> ]*)""", text)
        assert fetched == [], name
    assert "usage: arr-coc demo" in pages["commands.html"]
    assert "An answer about an image, several, or a look" in pages["python.html"]
    assert "../src/" not in pages["realizing.html"]
