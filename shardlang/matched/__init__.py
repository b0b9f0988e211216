"""A plan and its emitted text -> the proof that all ranks communicate alike."""
