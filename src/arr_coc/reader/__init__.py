"""The reader: a small vision-language model of our own, trained to read receipts and simple documents."""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ImportError('the reader and its training need transformers: pip install "arr-coc[train]"')
