"""The buckets in which the gradients of parameters are summed over ranks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def filled(items: Sequence[tuple[T, K, int]], limit: int) -> list[tuple[K, list[T]]]:
    """(parameter, kind, bytes) in the program's order -> (kind, parameters): those of one kind
    share a bucket up to `limit` bytes, and a larger one has its own.

    Backward reaches the last parameters first, so buckets are filled from the end."""
    found: list[tuple[K, list[T]]] = []
    open_: dict[K, tuple[list[T], int]] = {}
    for item, kind, size in reversed(items):
        bucket, used = open_.get(kind, ([], limit + 1))
        if used + size > limit:
            bucket, used = [], 0
            found.append((kind, bucket))
        bucket.append(item)
        open_[kind] = bucket, used + size
    return found
