"""Generated pairs of program and strategy."""

from __future__ import annotations

import random

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from tests.emit import sources
from tests.generated import program, strategies


def pair(rng: random.Random, ranks: int | None = None) -> tuple[str, int]:
    """A program with a strategy, which may be refused, and its ranks."""
    written = program.write(rng)
    rules = strategies.write(rng, sources.checked(written.text("")).graph, ranks, written.apart, written.deep)
    return written.text(rules.text), rules.ranks


def legal(seed: int, ranks: int | None = None) -> Plan | None:
    """The plan of the pair of a seed; None where its strategy is refused."""
    text, asked = pair(random.Random(seed), ranks)
    program = driver.check_source(Source("generated.shard", text), sink := Sink())
    return driver.plan_program(program, None, asked, sink) if program is not None else None
