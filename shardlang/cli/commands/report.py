"""`shardc report`: one HTML file that shows a plan, or two beside each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from shardlang import driver
from shardlang.cli import candidates, files, options, output
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.overwrite_guard import PAGE
from shardlang.paths.patterns import Cuts


@click.command(
    "report",
    epilog="Examples: shardc report model.shard --ranks 8 -o report.html; "
    "shardc report model.shard --ranks 8 --strategy ddp --strategy fsdp -o both.html",
)
@options.file_argument
@options.ranks_option
@click.option(
    "-o", "--output", "target", type=click.Path(), metavar="FILE", required=True, help="The HTML file to write."
)
@click.option(
    "--strategy", "strategies", metavar="NAME", multiple=True, shell_complete=candidates.strategies,
    help="A strategy; twice for two plans.",
)  # fmt: skip
@options.cluster_option
@options.set_option
def command(asked: options.Asked, target: str, strategies: tuple[str, ...]) -> int:
    """Write a page that shows where the time and the memory of a step go."""
    if len(strategies) > 2:
        raise click.UsageError(f"a page has one plan or two, and {len(strategies)} strategies are given")
    files.claimed(Path(target), PAGE)

    def made(runs: Cuts | None, sink: Sink) -> tuple[str | None, Sink]:
        memory = Sink()
        shown = [replace(asked, strategy=name) for name in strategies or (None,)]
        plans = options.plans(shown, sink, memory, runs)
        return driver.page_of_plans(plans, sink) if not sink.failed else None, memory

    sink = Sink()
    page, memory = driver.in_runs(made, sink)
    code = output.show(sink, besides=memory)
    if page is None or sink.failed:
        return code
    files.replace(Path(target), page)
    output.tell(f"wrote {target} ({len(page.encode()):,} bytes)")
    return code
