"""Fuzzing: hostile texts, programs, files and command lines must end in diagnostics, within bounds of time and memory."""
