"""`shardc plan`: what a plan says, as tables or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.diagnostics.diagnostic import Sink


@click.command(
    "plan",
    epilog="Examples: shardc plan model.shard --ranks 8; shardc plan model.shard --ranks 8 --rank 3; "
    "shardc plan model.shard --ranks 4096 --json",
)
@options.file_argument
@options.ranks_option(required=True)
@click.option("--rank", type=int, metavar="R", help="Show this rank: its coordinates, groups, shapes and slices.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON (specs/plan-json.md).")
@options.strategy_option
@options.set_option
@click.pass_context
def command(
    ctx: click.Context, file: str, ranks: int, rank: int | None, as_json: bool, strategy: str | None,
    overrides: Mapping[str, str],
) -> None:  # fmt: skip
    """Show layouts, collectives, bytes and memory, per operator."""
    if rank is not None and not 0 <= rank < ranks:
        raise click.BadParameter(f"{rank} is not one of the ranks 0 to {ranks - 1}", ctx, param_hint="--rank")
    sink = Sink()
    program = driver.check_source(options.source(file), sink, overrides, strategy)
    plan = driver.plan_program(program, strategy, ranks, sink) if program is not None else None
    code = output.show(sink)
    if plan is None:
        ctx.exit(code)
    from shardlang.plan.bytes.report import report

    found = report(plan)
    if as_json:
        from shardlang.cli.rank_view import of_rank

        json.dump(found if rank is None else of_rank(found, rank), sys.stdout, indent=1)
        print()
        return
    from shardlang.cli.plan_table import print_plan

    print_plan(found, rank)
