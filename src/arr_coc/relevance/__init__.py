"""Relevance: which cells of a picture matter for a question."""
