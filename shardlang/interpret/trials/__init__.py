"""Operators split in every way that their rules allow, each part computed by the emitted text."""
