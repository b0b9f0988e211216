"""Keeps the memory that a step frees for the next one, instead of giving it back to the system.

The C library of Linux maps each large tensor anew and returns what lies free at the end of its
heap, so that every step would have the same pages zeroed and mapped again, one by one and on one
processor: measured, tens of thousands of page faults a step. CUDA memory is PyTorch's to keep."""

from __future__ import annotations

import ctypes

# mallopt(3): parameters and the greatest value of the second.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAPPED = 32 * 2**20
_KEPT = 2**31 - 1


def keep_freed_memory() -> None:
    """For this process: tensors of less than 32 MiB come from a heap that gives nothing back below
    2 GiB free at its end. Nothing happens where the C library has no such settings, or refuses
    them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAPPED)
        mallopt(_TRIM_THRESHOLD, _KEPT)
