"""`shardc plan`: what a plan says, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlang import driver
from shardlang.cli import files, options, output
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.overwrite_guard import COURSE
from shardlang.paths.patterns import Cuts

if TYPE_CHECKING:
    from shardlang.plan.plan import Plan


@click.command(
    "plan",
    epilog="Examples: shardc plan model.shard --ranks 8; shardc plan model.shard --ranks 8 --rank 3; "
    "shardc plan model.shard --ranks 8 --at 'blocks[3].**' --operands; shardc plan model.shard --ranks 4096 --json",
)
@options.file_argument
@options.ranks_option
@click.option("--rank", type=int, metavar="R", help="Show this rank: its coordinates, groups and slices.")
@click.option("--at", metavar="SELECTOR", help="Show a part of the model only, such as 'blocks[3]' or '**.attention'.")
@click.option("--operands", is_flag=True, help="Show every operator of a statement, with what it reads and makes.")
@click.option("--full", is_flag=True, help="Show every layer, operator and parameter by itself, none folded.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON (specs/plan-json.md).")
@click.option("--each-layer", is_flag=True, help="In the JSON, tell each of equal layers by itself.")
@click.option(
    "--trace", type=click.Path(), metavar="FILE", help="Write the predicted course of a step, for ui.perfetto.dev."
)
@options.strategy_option
@options.cluster_option
@options.set_option
@click.pass_context
def command(
    ctx: click.Context, asked: options.Asked, rank: int | None, at: str | None, operands: bool, full: bool,
    as_json: bool, each_layer: bool, trace: str | None,
) -> None:  # fmt: skip
    """Show mesh, schedule, time, memory and bytes; then each statement's layout and collectives."""
    if rank is not None and not 0 <= rank < asked.ranks:
        raise click.BadParameter(f"{rank} is not one of the ranks 0 to {asked.ranks - 1}", ctx, param_hint="--rank")
    selects, sink = _selector(at, ctx) if at is not None else None, Sink()
    files.claimed(trace, COURSE)
    each = full or each_layer or selects is not None
    made = partial(_planned, asked, trace=trace, each=each, folded=not full)
    plan, found, memory = made(None, sink) if each else driver.in_runs(made, sink)
    code = output.show(sink, besides=memory)
    if plan is None or found is None:
        ctx.exit(code)
    from shardlang.cli.plan_view.parts import of_rank, part_of
    from shardlang.cli.plan_view.program import Detail, lines

    found = found if rank is None else of_rank(found, rank)
    if selects is not None:
        found = part_of(found, selects)
        if not found["blocks"] and not found["parameters"]:
            near = plan.graph.declared_places().nearest(str(at))
            help = f"; did you mean `{near}`?" if near else ""
            raise click.BadParameter(f"`{at}` matches nothing of the model{help}", ctx, param_hint="--at")
    output.answer(found, as_json, lambda room: lines(found, room, Detail(operands, full), selects is not None))
    ctx.exit(code)


def _planned(
    asked: options.Asked, runs: Cuts | None, sink: Sink, *, trace: str | None, each: bool, folded: bool
) -> tuple[Plan | None, Mapping[str, Any] | None, Sink]:  # fmt: skip
    """The plan, its report where nothing is wrong, and what is told of a plan that does not fit.
    runs: as of `driver.in_runs`."""
    memory, found = Sink(), None
    plan = asked.plan(sink, memory, runs)
    if plan is not None:
        driver.prove_plan(plan, sink)
        _write_course(plan, trace, sink)
        found = driver.seen_plan(plan, sink, each, folded).found if not sink.failed else None
    return plan, found, memory


def _write_course(plan: Plan, trace: str | None, sink: Sink) -> None:
    """Writes the predicted course of a step to a file (None: to none), for which the program must
    have speeds."""
    if trace is None or sink.failed:
        return
    from shardlang.cost.hardware import with_speeds
    from shardlang.cost.trace import trace_of

    hardware = with_speeds(plan.program, plan.ranks, sink)
    if hardware is not None and not sink.failed:
        files.replace(Path(trace), json.dumps(trace_of(plan, hardware), separators=(",", ":")))


def _selector(text: str, ctx: click.Context) -> Callable[[str], str]:
    """Paths that a selector of the language covers."""
    from shardlang.check.selectors import matcher
    from shardlang.syntax import ast
    from shardlang.syntax.parse import parse_rules

    rules = parse_rules("--at", f"at {text}: recompute") or ()
    if len(rules) != 1 or not isinstance(rules[0], ast.At):
        raise click.BadParameter(f"`{text}` is no selector; write a path, as `blocks[0..2].norm` or `**.weight`", ctx)
    matchers = [matcher(selector) for selector in rules[0].selectors]
    return lambda path: next(filter(None, (match(path) for match in matchers)), "")
