"""Shardlang: a declarative language, compiler and runtime for training neural networks on many devices."""

__version__ = "0.1.0"
