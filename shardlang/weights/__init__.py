"""Weights from one form to another, without torch: the numbers, names and files of shardlang and of
other libraries."""
