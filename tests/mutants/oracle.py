"""Faults of what plans and emitted programs are held against, and of states that operators share."""

from __future__ import annotations

from tests.mutants.fault import Fault

NORMS = "runtime/functions/normalisations.py"

FAULTS = (
    Fault("autograd counts the move of running statistics", "two calls of batch_norm that share a state", NORMS,
          "running_mean.data.lerp_(", "running_mean.detach().lerp_(", ("runtime/test_recompute.py",)),
    Fault("anything may be moved", "parameters, computed values and states given twice to batch_norm",
          "check/moved.py", "is Kind.STATE and op.operands.count(value) == 1", "is not None",
          ("diagnostics/SH296-a-state-that-moves.md",)),
    Fault("a state that moves may be read", "gradients and figures of what reads a state", "check/moved.py",
          "if value in movers and", "if at < 0 and value in movers and",
          ("diagnostics/SH296-a-state-that-moves.md",)),
    Fault("stages move copies of a state", "running statistics that two stages share", "plan/stages.py",
          "            if one != two:", "            if one > two:",
          ("diagnostics/SH428-a-state-moved-in-two-stages.md",)),
)  # fmt: skip
