"""`shardc tune`: the strategies that are predicted fastest, as text, as JSON, or written into the
file."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.cli.files import replace
from shardlang.diagnostics.diagnostic import Sink
from shardlang.search.request import EXACT, MODES
from shardlang.terminal import signals
from shardlang.terminal.display import Live


@click.command(
    "tune",
    epilog="Examples: shardc tune model.shard --ranks 64 --cluster std.clusters.h100_pod; "
    "shardc tune model.shard --ranks 64 --strategy open --write; shardc tune model.shard --ranks 64 --json; "
    "shardc tune model.shard --ranks 8 --strategy s --search-mode recursive_programming",
)
@options.file_argument
@options.ranks_option
@options.cluster_option
@options.strategy_option
@click.option(
    "--search-mode", "mode", type=click.Choice(MODES), default=EXACT,
    help="How to look: exact (all points), sharding_propagation (only what rules leave open), dynamic_programming "
    "(operator after operator), recursive_programming (the ranks are halved again and again).",
)  # fmt: skip
@click.option("--top", type=click.IntRange(1, 100), default=5, metavar="K", help="How many of the best to show (5).")
@click.option(
    "--budget", type=options.Finite(0.0, min_open=True), default=10.0, metavar="SECONDS",
    help="How long to look at points, in seconds of a processor (10), and at most as long again at ways to split "
    "before; what was not looked at is told as a gap.",
)  # fmt: skip
@click.option("--write", is_flag=True, help="Write the strategy into FILE, behind the one it comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON (specs/tune.md).")
@options.set_option
@click.pass_context
def command(
    ctx: click.Context, asked: options.Asked, mode: str, top: int, budget: float, write: bool, as_json: bool
) -> None:
    """Find what a strategy leaves open: the layout with the least predicted time that fits."""
    file = asked.file
    if write and file == "-":
        raise click.BadParameter("the standard input cannot be written to", ctx, param_hint="--write")
    sink, live = Sink(), Live(sys.stderr)
    program = asked.program(sink)
    wanted = driver.TuneRequest(asked.ranks, asked.strategy, mode, top, budget)
    found = driver.tune_program(program, wanted, sink, live) if program is not None else None
    live.clear()
    code = output.show(sink)
    if program is None or found is None:
        ctx.exit(code or 1)
    from shardlang.cli.tune_text import told
    from shardlang.search.write import written_into

    if as_json:
        output.show_json(found.plain())
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        output.write(told(found, columns), sys.stdout)
    if found.stopped:
        unwritten = f"; nothing was written into {file}" if write else ""
        output.tell(f"ended by {found.stopped}: these are the best so far{unwritten}", sys.stderr)
        ctx.exit(signals.FAILED)
    if write:
        text = written_into(driver.parse_source(program.source, Sink()), found.behind, found.title, found.text)
        if text is None:
            taken = f"`{file}` has a strategy `{found.title}` that `tune` did not write; rename it"
            raise click.UsageError(taken)
        replace(Path(file), text)
        output.tell(f"wrote `{found.title}` into {file}", sys.stderr)
