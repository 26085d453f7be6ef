"""Training a reader to read from k dimensions of its own tokens: `python -m recipes.texture_vlm`."""
