"""A plan on simulated ranks -> whether it computes what one device does, on random batches."""

from __future__ import annotations

import re
from collections.abc import Callable

from shardlang.errors import RunError
from shardlang.interpret.meaning import initial, whole
from shardlang.interpret.meaning.elements import in_type
from shardlang.interpret.ranks import ranks
from shardlang.interpret.verify.compare import Comparison
from shardlang.interpret.verify.judge import Judge
from shardlang.plan.plan import Plan


class Refused(Exception):
    """One device, or simulated ranks, refuse a step: what each says ("": nothing), an index aside, since ranks may meet
    another one first.
    """

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.alone, self.together = map(_said, steps)
        super().__init__(f"one device: {self.alone or 'no error'}; simulated ranks: {self.together or 'no error'}")


def without_index(said: str) -> str:
    """What is said of indices, but for the one that was met first."""
    return re.sub(r"has the index -?\d+|make `\w+` \d+ or more, or ", "", said)


def _said(step: Callable[[], object]) -> str:
    try:
        step()
    except RunError as error:
        return without_index(str(error))
    return ""


def verify_plan(plan: Plan, steps: int = 1, seed: int = 0, tolerance: float = 1e-9, dtype: str = "f64") -> Comparison:
    """Trains `steps` steps and compares; Refused where a step has an error. Differences are relative to the greatest
    magnitude of a whole value.
    """
    plan = in_type(plan, dtype)
    judge, params = Judge(plan, seed, steps, tolerance), initial.initial(plan.graph, seed)
    for step in range(1, steps + 1):
        fields = initial.batch(plan.graph, seed, step)
        try:
            params = judge.step(step, fields, params)
        except RunError:
            given = fields, params
            raise Refused(
                lambda given=given, step=step: whole.run(plan.graph, *given, step=step, seed=seed),
                lambda given=given, step=step: ranks.run(
                    plan, given[0], ranks.store(plan, given[1]), step=step, seed=seed
                ),
            ) from None
        if judge.simulated.end:
            break
    return judge.simulated
