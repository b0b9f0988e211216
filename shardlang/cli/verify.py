"""`shardc verify`: not there yet, and says so."""

from __future__ import annotations

import click

from shardlang.cli import options, output
from shardlang.diagnostics.diagnostic import Sink


@click.command("verify", epilog="Example: shardc verify model.shard --ranks 8")
@options.file_argument
@options.ranks_option(required=True)
@options.strategy_option
@options.set_option
@click.pass_context
def command(ctx: click.Context, file: str, ranks: int, strategy: str | None, overrides: object) -> None:
    """Compare a plan with one rank, forward and backward (not there yet)."""
    options.source(file)
    sink = Sink()
    sink.report(
        "SH400", "`shardc verify` is not there yet", None,
        help="compare the figures of two runs: `shardc run FILE --ranks 1 --metrics one.jsonl`, and one on more ranks",
    )  # fmt: skip
    ctx.exit(output.show(sink))
