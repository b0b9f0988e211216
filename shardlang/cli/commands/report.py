"""`shardc report`: one HTML file that shows a plan, or two beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from shardlang import driver
from shardlang.cli import files, options, output
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.overwrite_guard import PAGE
from shardlang.plan.plan import Plan


@click.command(
    "report",
    epilog="Examples: shardc report model.shard --ranks 8 -o report.html; "
    "shardc report model.shard --ranks 8 --strategy ddp --strategy fsdp -o both.html",
)
@options.file_argument
@options.ranks_option(required=True)
@click.option("-o", "--output", "target", metavar="FILE", required=True, help="The HTML file to write.")
@click.option("--strategy", "strategies", metavar="NAME", multiple=True, help="A strategy; twice for two plans.")
@options.cluster_option
@options.set_option
@click.pass_context
def command(
    ctx: click.Context, file: str, ranks: int, target: str, strategies: tuple[str, ...], cluster: str | None,
    overrides: Mapping[str, str],
) -> None:  # fmt: skip
    """Write a page that shows where the time and the memory of a step go."""
    if len(strategies) > 2:
        raise click.UsageError(f"a page has one plan or two, and {len(strategies)} strategies are given")
    files.claimed(Path(target), PAGE)
    sink, memory, plans = Sink(), Sink(), list[Plan]()
    for name in strategies or (None,):
        program = driver.check_source(options.source(file), sink, overrides, name, cluster=cluster)
        plan = driver.plan_program(program, name, ranks, sink, memory) if program is not None else None
        if plan is not None:
            plans.append(plan)
    page = driver.page_of_plans(plans, sink) if not sink.failed else None
    code = output.show(sink, besides=memory)
    if page is None or sink.failed:
        ctx.exit(code)
    files.replace(Path(target), page)
    output.tell(f"wrote {target} ({len(page.encode()):,} bytes)")
    ctx.exit(code)
