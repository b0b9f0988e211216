"""Pieces of an emitted line: names, sizes, calls, citations, layout of the text."""
