"""Finds what a strategy leaves open: points of a space, the time of each, the best as text."""
