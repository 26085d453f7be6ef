"""The reader: a small vision-language model that reads receipts and simple documents. It ships with the package.

vlm = arr_coc.load("reader")
"""

from pathlib import Path

NAME = "reader"
WEIGHTS = Path(__file__).parent / "weights"  # a model folder for transformers
