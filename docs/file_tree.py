"""Writes the file tree of docs/architecture.md: one line per module, the first line of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "architecture.md"
START, END = "<!-- tree -->\n", "<!-- end of tree -->\n"
WIDTH = 30  # characters before the description


def summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n")[0].rstrip(".")


def lines(folder: Path, depth: int = 1) -> list[str]:
    """A folder's packages and modules, in alphabetical order."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda one: (one.is_dir(), one.name)):
        indent = "  " * depth
        if path.is_dir() and (path / "__init__.py").exists():
            found.append(f"{indent}{path.name + '/':<{WIDTH - len(indent)}} {summary(path / '__init__.py')}")
            found += lines(path, depth + 1)
        elif path.suffix == ".py" and path.stem not in ("__init__", "__main__"):
            found.append(f"{indent}{path.name:<{WIDTH - len(indent)}} {summary(path)}")
    return found


def tree() -> str:
    parts = [["src/arr_coc/", *lines(ROOT / "src" / "arr_coc")], ["recipes/", *lines(ROOT / "recipes")]]
    return "\n".join(["```", *(line.rstrip() for part in parts for line in part), "```", ""])


def page() -> str:
    """The whole page with its tree up to date."""
    text = TARGET.read_text()
    before, rest = text.split(START)
    return before + START + tree() + END + rest.split(END)[1]


if __name__ == "__main__":
    TARGET.write_text(page())
