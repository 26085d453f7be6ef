"""Training a layer that selects cells for a wrapped model, and fine-tuning the model to it."""
