"""Paths of layers, values and parameters: patterns that stand for several, and few patterns for many
paths."""
