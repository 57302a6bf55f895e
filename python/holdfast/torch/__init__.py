"""Holdfast for PyTorch: the only part of the package that imports torch."""
