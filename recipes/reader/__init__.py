"""How the reader was trained: rendered and scanned documents, batches, losses and the loop."""
