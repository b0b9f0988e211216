"""Shardlang: a declarative language, compiler and runtime for training on many devices."""

__version__ = "0.1.0"
