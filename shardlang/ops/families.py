"""Importing this fills `declaration.REGISTRY` with all operators, one module a family."""

from shardlang.ops import arithmetic, elementwise, losses, products, reductions

__all__ = ["arithmetic", "elementwise", "losses", "products", "reductions"]
