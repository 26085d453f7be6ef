"""One file for each model family. On the path of an answer, only this package imports transformers."""
