"""`shardc why`: the reasons for the layout of a value, or for the mesh, as text or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.cli.why_text import lines
from shardlang.diagnostics.diagnostic import Sink
from shardlang.paths.patterns import Cuts


@click.command(
    "why",
    epilog="Examples: shardc why model.shard h --ranks 8; shardc why model.shard 'blocks[*].mlp.up' --ranks 8; "
    "shardc why model.shard mesh --ranks 64 --strategy large; shardc why model.shard stages --ranks 64",
)
@options.file_argument
@click.argument("name", metavar="VALUE|LAYER|mesh|stages|zero|recompute|microbatches|schedule")
@options.ranks_option
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON (specs/why.md).")
@options.strategy_option
@options.cluster_option
@options.set_option
def command(asked: options.Asked, name: str, as_json: bool) -> int:
    """Show why a value is laid out as it is, and what each alternative would cost."""

    def explained(runs: Cuts | None, sink: Sink) -> tuple[Mapping[str, Any] | None, Sink]:
        memory, program = Sink(), asked.program(sink, runs)
        if program is None:
            return None, memory
        return driver.explain_plan(program, asked.strategy, asked.ranks, name, sink, memory), memory

    sink = Sink()
    found, memory = driver.in_runs(explained, sink)
    code = output.show(sink, besides=memory)
    if found is None or sink.failed:
        return code
    output.answer(found, as_json, partial(lines, found))
    return code
