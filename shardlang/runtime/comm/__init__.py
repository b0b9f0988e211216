"""Meshes, and what their ranks send each other."""
