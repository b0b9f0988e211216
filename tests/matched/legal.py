"""Generated pairs of program and strategy that plan."""

from __future__ import annotations

import random

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from tests.generated import program, strategies


def legal(seed: int, ranks: int | None = None) -> Plan | None:
    """The plan of the pair of a seed; None where its strategy is refused."""
    rng = random.Random(seed)
    written, sink = program.write(rng), Sink()
    checked = driver.check_source(Source("generated.shard", written.text("", "f32")), sink)
    assert checked is not None, [d.message for d in sink.found]
    rules = strategies.write(rng, checked.graph, ranks, written.apart, written.deep)
    whole = driver.check_source(Source("generated.shard", written.text(rules.text, "f32")), sink)
    return driver.plan_program(whole, "s", rules.ranks, sink) if whole is not None else None
