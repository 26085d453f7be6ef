"""How the shipped reader was trained: documents, batches, losses, the training run and its evaluation."""
