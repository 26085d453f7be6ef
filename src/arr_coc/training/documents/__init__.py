"""Rendered documents with exact places for every character, and questions about them."""
