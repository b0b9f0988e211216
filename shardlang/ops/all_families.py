"""Importing this fills `declaration.REGISTRY` with all operators, one module a family."""

from shardlang.ops import declared
from shardlang.ops.families import (
    arithmetic,
    attention,
    elementwise,
    extents,
    internal,
    lookups,
    losses,
    losses_in_chunks,
    normalisations,
    products,
    random,
    ranking,
    reductions,
    rotary,
    shapes,
)
from shardlang.ops.families.images import convolution, pooling

__all__ = [
    "arithmetic", "attention", "convolution", "declared", "elementwise", "extents", "internal", "lookups", "losses",
    "losses_in_chunks", "normalisations", "pooling", "products", "random", "ranking", "reductions", "rotary", "shapes",
]  # fmt: skip
