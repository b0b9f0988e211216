"""The figures that a run tells of a step beside the loss and the metrics, and which metrics it does
not tell."""

from __future__ import annotations

GRAD_NORM = "grad_norm"
# Those of a step that no program computes.
BESIDE = ("lr", GRAD_NORM, "skipped")


def made_of(metric: str, number: int) -> str:
    """The name of a number of the step that a metric waits for, from 1."""
    return f"{metric}:{number}"


def is_told(name: str) -> bool:
    """Whether a metric is one of the program, and no number that one of these waits for."""
    return ":" not in name
