"""Training a layer that chooses cells for a wrapped model."""
