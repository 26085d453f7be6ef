"""The documentation matches the code: links resolve, snippets run, generated parts are current, the site builds."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arr_coc

LOAD = functools.cache(arr_coc.load)  # the pages share one reader
ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "docs/measurements/*.md", "recipes/*/*.md")
    for path in ROOT.glob(pattern)
)
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.S | re.M)  # fences marked `py` are excerpts and do not run


def text(page: str) -> str:
    return (ROOT / page).read_text()


def script(name: str) -> Any:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_channel_table_is_up_to_date() -> None:
    assert text("docs/channels.md") == script("channel_table").table(), "run: make pictures"


def test_the_file_tree_is_up_to_date() -> None:
    assert text("docs/architecture.md") == script("file_tree").page(), "run: make pictures"


def test_the_readme_is_short() -> None:
    assert len(text("README.md").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_exist(page: str) -> None:
    """Also anchors: `page.md#heading`."""
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", SNIPPET.sub("", text(page))):
        if "://" in link:
            continue
        target = (ROOT / page).parent / link if link else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                anchor
            )


@pytest.mark.parametrize("page", [page for page in PAGES if SNIPPET.search(text(page))])
def test_snippets_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All snippets of a page, in order, as one program in a folder with `receipt.jpg`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arr_coc, "load", LOAD)
    arr_coc.pictures.receipt().save("receipt.jpg")
    exec(compile("\n".join(SNIPPET.findall(text(page))), page, "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_is_missing(page: str) -> None:
    """Placeholders such as TODO must not be left in a table or on a line of their own."""
    assert not re.search(r"^[A-Z]{4,}$|\| (?!ANLS )[A-Z]{4,} \|", text(page), re.M)


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_short(page: str) -> None:
    """A page takes five minutes; long tables are under docs/measurements."""
    generated = ("docs/architecture.md", "docs/results.md", "docs/channels.md", "docs/changes.md", "README.md")
    if page not in generated and not page.startswith("docs/measurements/"):
        assert len(text(page).splitlines()) <= 100


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    site = {str(path.relative_to(tmp_path / "site")): path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    for name, html in site.items():
        fetched = re.findall(r"""<(?:script|img|link|iframe)\b[^>]*(?:src|href)=["']?(https?:[^"'> ]*)""", html)
        assert fetched == [], name
        assert "../src/" not in html, name
    assert "usage: arr-coc demo" in site["commands.html"]
    assert "Answer a question about an image, several images, or a look" in site["python.html"]
