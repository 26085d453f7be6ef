"""Training the reader: rendered and scanned documents, batches, losses and the loop."""
