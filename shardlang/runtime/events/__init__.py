"""Tells others of a run: a stream of events on rank 0."""
