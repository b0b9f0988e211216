"""Generated models under generated strategies: simulated ranks agree with one device on every value and gradient.

`GENERATED` in the environment is the number of examples: 60, the same in each run, unless a longer run asks for more.
"""

from __future__ import annotations

import os
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardlang.plan.plan import Plan
from tests.interpret.building import planned
from tests.interpret.generated import model, strategy
from tests.interpret.verify_plan import verify_plan
from tests.plan.calculus import verify

COUNT = int(os.environ.get("GENERATED", "60"))


@settings(max_examples=COUNT, derandomize=COUNT <= 60, deadline=None, database=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])  # fmt: skip
@given(st.integers(0, 2**40))
def test_generated_models_are_the_same_on_ranks(seed: int) -> None:
    rng = random.Random(seed)
    graph = model(rng)
    text, ranks = strategy(rng, graph)
    plan = planned(graph, text, ranks)
    if not isinstance(plan, Plan):
        assert all(d.startswith("SH3") for d in plan), (seed, plan)
        return
    assert verify(plan, frozenset(graph.dims)) == [], seed
    report = verify_plan(plan)
    assert report.ok, (seed, text, str(report.difference))
