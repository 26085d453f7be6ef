"""`python -m recipes.space OUT`: write the folder of the Space, with a wheel of this package in it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import arr_coc

HERE = Path(__file__).parent
FILES = ("app.py", "README.md")
EXTRAS = "demo,labels"


def write(folder: Path) -> list[Path]:
    """The files of the Space: the page, its card, the requirements, and the package as a wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(HERE / name, folder / name)
    for old in folder.glob("arr_coc-*.whl"):
        old.unlink()
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(HERE.parents[1])]
    subprocess.run(build, check=True)
    [wheel] = folder.glob(f"arr_coc-{arr_coc.__version__}-*.whl")
    (folder / "requirements.txt").write_text(f"./{wheel.name}[{EXTRAS}]\n")
    return sorted(folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="OUT", help="the folder to write, such as a clone of your Space")
    for path in write(parser.parse_args().folder):
        print(path)


if __name__ == "__main__":
    main()
