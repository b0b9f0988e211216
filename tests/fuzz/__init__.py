"""Fuzzing: hostile texts, files and command lines end in diagnostics, within bounds of time and memory."""
