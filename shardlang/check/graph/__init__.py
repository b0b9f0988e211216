"""The graph while it grows."""
