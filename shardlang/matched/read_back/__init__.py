"""The emitted text, read back as a tree of Python -> the lines that communicate."""
