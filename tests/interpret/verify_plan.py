"""A plan on simulated ranks -> whether it computes what one device does, on random batches."""

from __future__ import annotations

from shardlang.interpret.meaning import initial
from shardlang.interpret.meaning.elements import in_type
from shardlang.interpret.verify.compare import Comparison
from shardlang.interpret.verify.judge import Judge
from shardlang.plan.plan import Plan


def verify_plan(plan: Plan, steps: int = 1, seed: int = 0, tolerance: float = 1e-9, dtype: str = "f64") -> Comparison:
    """Trains `steps` steps and compares. Errors are relative to the greatest magnitude of a whole value."""
    plan = in_type(plan, dtype)
    judge, params = Judge(plan, seed, steps, tolerance), initial.initial(plan.graph, seed)
    for step in range(1, steps + 1):
        params = judge.step(step, initial.batch(plan.graph, seed, step), params)
        if judge.simulated.end:
            break
    return judge.simulated
