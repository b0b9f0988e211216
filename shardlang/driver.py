"""The compiler on one page: a file's text -> syntax tree -> checked program -> plan -> emitted
files.

Each function is a stage and stops there; mistakes go to the sink. Showing them and the results is
left to cli/. Passes are imported when they are first used, so that a command pays only for those
that it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardlang.diagnostics.diagnostic import Severity, Sink
from shardlang.files import Files
from shardlang.source import Source

if TYPE_CHECKING:
    from shardlang.check.program import Program
    from shardlang.plan.plan import Plan
    from shardlang.syntax import ast


def parse_source(source: Source, sink: Sink) -> ast.File:
    """The syntax tree of one file; partial after errors."""
    from shardlang.syntax.parse import parse

    return parse(source, sink)


def format_source(source: Source, sink: Sink) -> str | None:
    """The file in its one form; None after errors."""
    from shardlang.format.format import format_file

    file = parse_source(source, sink)
    return None if sink.failed else format_file(file)


def check_source(
    source: Source, sink: Sink, overrides: Mapping[str, str] | None = None, strategy: str | None = None
) -> Program | None:
    """The checked program, with all it imports; None after errors. `overrides`: what `--set` gives.

    A file that is no Shard is not checked: what a skipped line declared would be missed everywhere
    else. But where one `strategy` is asked for, mistakes in others do not matter, and are told in a
    line for each."""
    tree = parse_source(source, sink)
    unread = _set_aside(tree, strategy, sink)
    if sink.failed:
        return None
    from shardlang.check.check import check

    files = Files()
    files.add(source)
    program = check(tree, sink, files.load, overrides or {}, strategy)
    return None if sink.failed or program is None else dataclasses.replace(program, unread=unread)


def _set_aside(tree: ast.File, wanted: str | None, sink: Sink) -> tuple[str, ...]:
    """Takes mistakes of syntax in strategies other than `wanted` out of the sink, and tells of each
    strategy in a line; their names."""
    others = {s.name.text: s for s in tree.strategies if s.name.text != wanted}
    if wanted is None or len(others) == len(tree.strategies):
        return ()
    counts = dict.fromkeys(others, 0)
    kept = []
    for diagnostic in sink.found:
        span = diagnostic.primary.span if diagnostic.primary else None
        home = next((n for n, s in others.items() if span and s.span.start <= span.start < s.span.end), None)
        if home is None:
            kept.append(diagnostic)
        else:
            counts[home] += 1
    sink.found[:] = kept
    unread = tuple(name for name in counts if counts[name])
    for name in unread:
        _tell_other(name, counts[name], wanted, sink)
    return unread


def _tell_other(name: str, mistakes: int, wanted: str, sink: Sink) -> None:
    many = f"{mistakes} mistake{'' if mistakes == 1 else 's'}"
    sink.report(
        "SH325", f"strategy `{name}` has {many}, which `{wanted}` does not depend on", None,
        help="`shardc check` without `--strategy` lists them", severity=Severity.WARNING,
    )  # fmt: skip


def check_strategies(program: Program, name: str | None, ranks: int | None, sink: Sink) -> Plan | None:
    """The strategy asked for, or else all of them: by planning it (or the first) on `ranks`, the
    others without rank arithmetic. Where one is asked for, of the others is told only how many
    mistakes they have.

    The plan, where there are ranks and no errors."""
    from shardlang.plan.resolve import resolve

    planned = plan_program(program, name, ranks, sink) if ranks is not None else None
    first = program.strategies[0].name.text if program.strategies else None
    for strategy in program.strategies:
        here, other = strategy.name.text, Sink()
        if here in program.unread or (ranks is not None and here == (name or first)):
            continue
        resolve(program, strategy, None, sink if name in (None, here) else other)
        if other.failed and name is not None:
            _tell_other(here, len(other.found), name, sink)
    return planned


def plan_program(program: Program, name: str | None, ranks: int, sink: Sink) -> Plan | None:
    """The plan on `ranks` ranks by the strategy `name`, or the first; None after errors."""
    from shardlang.plan.planner import plan

    found = plan(program, name, ranks, sink)
    if found is not None and program.training is not None and program.training.eval is not None:
        from shardlang.emit.accumulators import evaluation

        evaluation(found, sink)
    return None if sink.failed else found


def emit_plan(plan: Plan, sink: Sink, folded: bool = True) -> Mapping[str, str] | None:
    """The emitted files, name -> text; None after errors. Not `folded`: every layer is written out
    where it is called; tests hold both to the same bits."""
    from shardlang.emit.emit import emit

    if plan.program.training is None or plan.graph.loss is None:
        sink.report(
            "SH402", f"`{plan.program.source.name}` has no `train`, so there is nothing to run", None,
            help="add a `train` block with `model`, `data`, `loss`, `optimizer` and `epochs`, one setting a line",
        )  # fmt: skip
        return None
    files = emit(plan, sink, folded)
    return None if sink.failed else files
