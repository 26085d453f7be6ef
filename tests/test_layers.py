"""Imports go only downwards: each package may import itself and what stands before it in LAYERS.

Imports inside functions and under TYPE_CHECKING count, too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "arr_coc"

LAYERS = (
    "errors", "files", "devices", "hub", "draw", "types", "texture", "frames", "embedding", "selectors", "layer", "relevance",
    "reader", "adapters", "vlm", "hosting", "video", "evaluation", "training", "find", "bench", "serve", "ray", "demo", "cli",
    "engines",  # loaded by other programs: nothing in the package may import it
)  # fmt: skip
ANSWER_PATH = LAYERS[: LAYERS.index("vlm") + 1]  # packages that an answer runs through
TOP = LAYERS.index("bench")  # from here on the package's own public names may be used: `import arr_coc`


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(source: str) -> set[str]:
    """Every module that a source text imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def upward(source: str, own: str) -> set[str]:
    """The imports of a module of package `own` that lead upwards."""
    rank = {name: number for number, name in enumerate(LAYERS)}
    wrong = set()
    for name in imported(source):
        parts = name.split(".")
        if parts[0] != "arr_coc" or (rank[own] >= TOP and (len(parts) == 1 or parts[1] not in rank)):
            continue
        if len(parts) == 1 or parts[1] not in rank or rank[parts[1]] > rank[own]:
            wrong.add(name)
    return wrong


def test_every_package_has_a_layer() -> None:
    assert {package(path) for path in modules()} == set(LAYERS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_downwards(path: Path) -> None:
    assert upward(path.read_text(), package(path)) == set()


def test_only_adapters_import_transformers_on_the_path_of_an_answer() -> None:
    users = {
        package(path)
        for path in modules()
        if package(path) in ANSWER_PATH
        and any(name.split(".")[0] == "transformers" for name in imported(path.read_text()))
    }
    assert users <= {"adapters", "embedding"}


@pytest.mark.parametrize(
    "line",
    [
        "from arr_coc.vlm.model import VLM",
        "def f():\n    from arr_coc.cli import main",
        "import arr_coc",
        "import arr_coc.vlm",
    ],
)
def test_an_upward_import_is_noticed(line: str) -> None:
    assert upward(line, "texture")
    assert not upward("from arr_coc.types.grid import Grid", "texture")
