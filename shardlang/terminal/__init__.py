"""Texts on a terminal, made safe, and the signals that come from there."""
