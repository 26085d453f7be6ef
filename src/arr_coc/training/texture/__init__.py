"""Training a reader to read from k dimensions of its own tokens: `python -m arr_coc.training.texture`."""
