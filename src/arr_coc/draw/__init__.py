"""Colour maps, overlays and the bundled sample pictures."""
