"""`shardc check`: every mistake of some files, or a line that there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.cli import candidates, options, output
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.rendered import OUTPUTS
from shardlang.errors import RunError
from shardlang.hints.nearest import offer
from shardlang.paths.patterns import Cuts
from shardlang.sources.source import Source


@click.command(
    "check",
    epilog="Examples: shardc check model.shard; shardc check model.shard --ranks 8 --strategy ddp; "
    "shardc check *.shard --output sarif > shard.sarif",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=candidates.programs)
@options.ranks_if_wanted
@options.strategy_option
@options.cluster_option
@options.set_option
@options.extension_option
@click.option(
    "--resume", "resumed", type=options.There(), metavar="DIR",
    help="Check what a run of FILE would go on with from a checkpoint, or the newest in a folder; with --ranks.",
)  # fmt: skip
@click.option(
    "--output", "form", type=click.Choice(OUTPUTS), default="full", show_default=True,
    help="How mistakes are printed.",
)  # fmt: skip
@options.asked
def command(asked: options.Asked, files: tuple[str, ...], resumed: Path | None, form: str) -> int:
    """Report every mistake in programs, without running them.

    With --ranks, the strategy is also checked on that number of ranks. `-` reads the standard
    input."""
    if resumed is not None and (asked.ranks is None or len(files) > 1):
        raise click.UsageError("--resume is of one FILE, with --ranks N")
    sources = [options.source(file) for file in files]
    sink = Sink()
    fine = [line for line in (_check(source, asked, sink) for source in sources) if line]
    if resumed is not None and fine:
        told = _resumed(resumed, sources[0], asked, sink)
        fine = told if sink.failed else [*fine, *told]
    code = output.show(sink, sys.stdout, form)
    if form in ("full", "concise"):
        for line in fine:
            output.tell(line)
    return code


def _check(source: Source, asked: options.Asked, sink: Sink) -> str:
    """Checks one file; the line that says it is fine, or nothing."""
    mine, strategy, ranks = Sink(), asked.strategy, asked.ranks

    def checked(runs: Cuts | None, sink: Sink) -> CheckedProgram | None:
        program, _ = driver.check_whole(
            source, sink, asked.overrides, strategy, ranks, runs=runs, cluster=asked.cluster
        )
        if program is not None:
            _known(strategy, program.strategies, source)
        return program

    program = driver.in_runs(checked, mine)
    for diagnostic in mine.found:
        sink.add(diagnostic)
    if program is None or mine.failed:
        return ""
    operators = f"{sum(map(program.graph.times, program.graph.ops))} operators"
    if ranks is None:
        return f"{source.name}: fine ({operators}); add --ranks N to check arithmetic of ranks"
    chosen = strategy or (program.strategies[0].name.text if program.strategies and ranks > 1 else "")
    return f"{source.name}: fine ({operators}, {ranks} ranks{f', strategy {chosen}' if chosen else ''})"


def _resumed(folder: Path, source: Source, asked: options.Asked, sink: Sink) -> list[str]:
    """Reports what keeps a run from going on from a checkpoint; lines about what it would read."""
    from shardlang.checkpoints.looked_at import opened_newest
    from shardlang.folds.resumed import lines, require_fits

    program = driver.check_source(source, Sink(), asked.overrides, asked.strategy, cluster=asked.cluster)
    plan = driver.plan_program(program, asked.strategy, asked.ranks, sink) if program is not None else None
    if plan is None:
        return []
    try:
        index, passed = opened_newest(folder)
    except RunError as error:
        sink.report(error.code, f"{error.message} ({error.file})", None, help=error.help)
        return []
    base = Path(source.name).parent
    fits = require_fits(plan, index, base, sink)
    return [*(f"passed over: {error.message} ({error.file})" for error in passed), *lines(plan, index, fits, base)]


def _known(name: str | None, strategies: tuple, source: Source) -> None:
    """A --strategy that the file lacks is a mistake in using the command."""
    names = [s.name.text for s in strategies]
    if name is None or name in names:
        return
    hint = offer(name, names, f"it has {', '.join(names) or 'none'}")
    raise click.UsageError(f"`{source.name}` has no strategy `{name}`; {hint}")
