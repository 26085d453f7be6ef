"""Fitting a projection of an encoder's features to a few dimensions."""
