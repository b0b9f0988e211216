"""Commands that start ranks for something else than training."""
