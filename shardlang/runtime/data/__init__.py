"""Data files and sources -> this rank's part of each batch."""
