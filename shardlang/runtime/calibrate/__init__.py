"""Measures the device that a rank has: kernels, collectives, and steps of emitted programs."""
