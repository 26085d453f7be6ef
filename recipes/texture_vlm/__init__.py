"""Training a reader on k dimensions of its own visual tokens: `python -m recipes.texture_vlm`."""
