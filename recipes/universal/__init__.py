"""How the universal layer was trained: drawn and scanned documents, their cells and questions, the training run, its exam."""
