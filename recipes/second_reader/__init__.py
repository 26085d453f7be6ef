"""A second reader of another family and cell size, to see whether the universal layer transfers to it."""
