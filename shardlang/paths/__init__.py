"""Paths of layers, values and parameters: patterns that stand for several of them, and how many
paths are told as few."""
