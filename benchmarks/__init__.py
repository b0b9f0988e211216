"""A script for each claim about speed; `python -m benchmarks` runs them."""
