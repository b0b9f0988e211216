"""`shardc why`: the reasons for the layout of a value, or for the mesh, as text or as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.diagnostics.diagnostic import Sink


@click.command(
    "why",
    epilog="Examples: shardc why model.shard h --ranks 8; shardc why model.shard 'blocks[*].mlp.up' --ranks 8; "
    "shardc why model.shard mesh --ranks 64 --strategy large; shardc why model.shard stages --ranks 64",
)
@options.file_argument
@click.argument("name", metavar="VALUE|LAYER|mesh|stages|zero|recompute|microbatches|schedule")
@options.ranks_option(required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON (specs/why.md).")
@options.strategy_option
@options.cluster_option
@options.set_option
@click.pass_context
def command(
    ctx: click.Context, file: str, name: str, ranks: int, as_json: bool, strategy: str | None,
    cluster: str | None, overrides: Mapping[str, str],
) -> None:  # fmt: skip
    """Show why a value is laid out as it is, and what each alternative would cost."""
    sink, memory = Sink(), Sink()
    program = driver.check_source(options.source(file), sink, overrides, strategy, cluster=cluster)
    found = driver.explain_plan(program, strategy, ranks, name, sink, memory) if program is not None else None
    code = output.show(sink, besides=memory)
    if found is None or sink.failed:
        ctx.exit(code)
    if as_json:
        output.show_json(found)
    else:
        from shardlang.cli.plan_view.program import print_lines
        from shardlang.cli.why_text import lines

        print_lines(lambda room: lines(found, room))
    ctx.exit(code)
