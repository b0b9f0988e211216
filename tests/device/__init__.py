"""Runs of emitted programs on a device that is not there: see pretended.py."""
