"""A plan on simulated ranks."""
