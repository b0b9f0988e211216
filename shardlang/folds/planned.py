"""A checked program, a strategy and a rank count -> the plan, which is held to the memory of a
device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import needed
from shardlang.folds.too_large import Tried, check_memory
from shardlang.plan.plan import Plan
from shardlang.plan.planner import can_be_planned, choose_strategy, laid_out
from shardlang.plan.strategy.instead import instead
from shardlang.syntax import ast

# What lays a program out by a strategy.
Lay = Callable[[CheckedProgram, ast.Strategy | None, int, Sink], Plan | None]
lay: Lay = partial(laid_out, heard=True)


def plan(
    program: CheckedProgram, strategy_name: str | None, ranks: int, sink: Sink, memory: Sink | None = None,
    lay: Lay = lay,
) -> Plan | None:  # fmt: skip
    """The plan of `program` on `ranks` ranks; None after reporting what is wrong.

    Without a name the first strategy is taken; on one rank, none, since a rank alone has nothing to
    split. memory: is told of a plan that does not fit, which is given then. lay: may remember
    plans."""
    if not can_be_planned(ranks, sink):
        return None
    with _uncollected():
        found, strategy = choose_strategy(program, strategy_name, ranks, sink)
        made = lay(program, strategy, ranks, sink) if found else None
        if made is not None:
            check_memory(made, sink if memory is None else memory, changing(program, strategy))
    return None if sink.failed else made


def changing(program: CheckedProgram, strategy: ast.Strategy | None) -> Tried:
    """The plans of a strategy with changes; without one, of a strategy that says nothing else."""

    def changed(rules: str, ranks: int) -> Plan | None:
        several = ranks > 1 and program.strategies
        of = strategy or (program.strategies[0] if several else None)

        def tried(program: CheckedProgram) -> Plan | None:
            made = laid_out(program, instead(of, rules), ranks, Sink())
            if made is not None:
                needed(made)  # asks for single layers now, if it does
            return made

        return program.in_runs(tried)

    return changed


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: a plan has no cycles, and walking a large program's objects takes
    longer than planning."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
