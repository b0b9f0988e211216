"""`shardc diff`: two plans beside each other, as text or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from shardlang import driver
from shardlang.cli import candidates, options, output
from shardlang.cli.diff_text import lines
from shardlang.diagnostics.diagnostic import Sink
from shardlang.paths.patterns import Cuts


@click.command(
    "diff",
    epilog="Examples: shardc diff model.shard --ranks 8 --strategy ddp --strategy tensor_parallel; "
    "shardc diff before.shard after.shard --ranks 8",
)
@click.argument("files", metavar="FILE [FILE]", shell_complete=candidates.programs, nargs=-1, required=True)
@options.ranks_option
@click.option(
    "--strategy", "strategies", metavar="NAME", multiple=True, shell_complete=candidates.strategies,
    help="A strategy; twice for two of one file.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="Show every value that differs.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON (specs/diff.md).")
@options.cluster_option
@options.set_option
@options.asked
def command(
    asked: options.Asked, files: tuple[str, ...], strategies: tuple[str, ...], full: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Show what differs between two strategies of a file, or between two files."""
    if len(files) > 2:
        raise click.UsageError(f"two plans are compared, and {len(files)} files are given")
    if len(files) == 1 and len(strategies) != 2:
        given = "no" if not strategies else str(len(strategies))
        raise click.UsageError(f"one file needs two strategies, and {given} `--strategy` is given; or name two files")
    if len(strategies) > 2:
        raise click.UsageError(f"two plans are compared, and {len(strategies)} strategies are given")
    names: list[str | None] = [*strategies] if len(strategies) == 2 else [next(iter(strategies), None)] * 2

    def made(runs: Cuts | None, sink: Sink) -> tuple[Mapping[str, Any] | None, Sink]:
        from shardlang.views.diff import difference

        both, memory = zip((files[0], files[-1]), names, strict=True), Sink()
        sides = [replace(asked, file=file, strategy=name) for file, name in both]
        seen = [driver.seen_plan(plan, sink) for plan in options.plans(sides, sink, memory, runs)]
        return difference(*seen) if not sink.failed else None, memory

    sink = Sink()
    found, memory = driver.in_runs(made, sink)
    code = output.show(sink, besides=memory)
    if found is not None:
        output.answer(found, as_json, lambda room: lines(found, room, full))
    return code
