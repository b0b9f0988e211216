"""`shardc verify`: the emitted program on real ranks and the plan on simulated ranks, each against
one device.

Prepares a job for each strategy that is asked for; starting and comparing is interpret's, words are
verify_text's."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from shardlang import driver
from shardlang.cli import options, output, verify_operators, verify_text
from shardlang.cli.files import write_files
from shardlang.cli.verify_text import Check, VerifyRequest
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.scratch import Scratch, scratch
from shardlang.sources.files import folder_of
from shardlang.terminal.display import Live

if TYPE_CHECKING:
    from shardlang.check.program import CheckedProgram
    from shardlang.interpret.verify.judge import StartedJob

# Each is a process with a torch of its own: more than these tell nothing new, and a laptop may not
# hold them.
REAL_RANKS = 8


@click.command(
    "verify",
    epilog="Examples: shardc verify examples/digits.shard --ranks 8 --all-strategies; "
    "shardc verify model.shard --ranks 4 --strategy both --steps 10; "
    "shardc verify model.shard --ranks 512 --set model.d=64 --json; shardc verify my_ops.shard",
)
@options.file_argument
@options.ranks_if_wanted
@options.strategy_option
@click.option("--all-strategies", is_flag=True, help="Verify all strategies that fit the number of ranks.")
@options.set_option
@click.option("--steps", type=click.IntRange(1, 10000), default=3, show_default=True, help="Training steps to compare.")
@click.option(
    "--dtype", type=click.Choice(["f64", "f32"]), default="f64", show_default=True,
    help="Compute in float64 and compare to 1e-9, or in float32 to 1e-3.",
)  # fmt: skip
@click.option(
    "--real/--simulated-only", "real", default=None,
    help=f"Run the emitted program on real ranks too, or not; by default up to {REAL_RANKS} ranks.",
)  # fmt: skip
@click.option("--random-data", is_flag=True, help="Use random batches instead of the program's data.")
@click.option(
    "--limit", type=options.Finite(min=0.1), metavar="SECONDS", default=60.0, show_default=True,
    help="Of operators: the time that a trial under one split may take.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.pass_context
def command(
    ctx: click.Context, asked: options.Asked, all_strategies: bool, steps: int, dtype: str, real: bool | None,
    random_data: bool, limit: float, as_json: bool,
) -> None:  # fmt: skip
    """Check that a strategy changes no result.

    Trains some steps three times: the emitted program on real ranks, its plan on ranks simulated in
    this process, and the model on one device. Every value, gradient and parameter must agree; the
    first that does not is named.

    Without --ranks: the operators that the file declares, each under all splits that it allows."""
    file, ranks, strategy = asked.file, asked.ranks, asked.strategy
    _require_fitting(ctx, ranks is None)
    if ranks is None:
        ctx.exit(_operators(file, as_json, limit))
    if strategy and all_strategies:
        raise click.UsageError("--strategy names one, --all-strategies means all; only one of them can be given")
    sink = Sink()
    program = asked.program(sink)
    if program is None:
        ctx.exit(output.show(sink))
    wanted = VerifyRequest(file, ranks, steps, dtype, ranks <= REAL_RANKS if real is None else real, random_data)
    names = [s.name.text for s in program.strategies] if all_strategies else [strategy]
    with scratch("verify") as folder:
        live = Live(sys.stderr)
        places = enumerate(names)
        prepared = [_prepare(program, name, wanted, folder.path / str(at), sink, live) for at, name in places]
        live.clear()
        if all(check.job is None for check in prepared):
            ctx.exit(output.show(sink) or 1)
        if strategy:
            output.show(sink)
        ctx.exit(_finish(_compare(prepared, live), wanted, folder, as_json))


def _require_fitting(ctx: click.Context, operators: bool) -> None:
    """UsageError where an option is given that is not for what is verified: `operators` of a file,
    or a program on ranks."""
    for param in ctx.command.params:
        given = param.name and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        if not given or param.name in ("file", "as_json") or (param.name == "limit") == operators:
            continue
        if param.name != "ranks":
            why = "needs --ranks" if operators else "is for operators that a file declares, without --ranks"
            raise click.UsageError(f"{'/'.join([*param.opts[:1], *param.secondary_opts])} {why}")


def _operators(file: str, as_json: bool, limit: float) -> int:
    """Verifies the operators of a file; the exit code."""
    sink = Sink()
    operators = driver.declared_operators(options.source(file), sink)
    if sink.failed:
        return output.show(sink)
    if not operators:
        raise click.UsageError("Missing option '--ranks': the file declares no operators of its own")
    return verify_operators.verify(file, operators, as_json, limit)


def _prepare(
    program: CheckedProgram, name: str | None, wanted: VerifyRequest, folder: Path, sink: Sink, live: Live
) -> Check:
    """Plans and emits one strategy; without a job where that is not possible on so many ranks."""
    live.head, mine = name or "", Sink()
    live("planning")
    planned = driver.plan_program(program, name, wanted.ranks, mine)
    from shardlang.interpret.meaning.elements import in_type
    from shardlang.interpret.ranks.limits import check_size

    plan = in_type(planned, wanted.dtype) if planned is not None else None
    files = driver.emit_plan(plan, mine) if plan is not None else None
    if plan is None or files is None or not check_size(plan, mine):
        sink.found.extend(mine.found)
        return Check(name or "", skipped=next((d.message for d in mine.found), ""))
    write_files(folder, files)
    from shardlang.interpret.verify.judge import VerifyJob

    job = VerifyJob(plan, folder, folder_of(wanted.file), wanted.dtype, wanted.steps, wanted.real, wanted.random)
    return Check(plan.strategy, job)


def _compare(prepared: list[Check], live: Live) -> list[Check]:
    """All real ranks before anything is computed here, as a process with threads is not to be
    forked."""
    from shardlang.interpret.verify.judge import judge, start

    started: list[StartedJob | None] = []
    done: list[Check] = []
    with output.ending(3), live:
        for check in prepared:
            live.head = check.strategy
            started.append(start(check.job, live) if check.job is not None else None)
        for check, run in zip(prepared, started, strict=True):
            live.head = check.strategy
            done.append(Check(check.strategy, check.job, judge(run, live)) if run is not None else check)
    return done


def _finish(checks: list[Check], wanted: VerifyRequest, folder: Scratch, as_json: bool) -> int:
    """Shows the verdicts; the exit code. The emitted program is kept if a message names it."""
    verdicts = [check.verdict for check in checks if check.verdict is not None]
    if as_json:
        print(json.dumps(verify_text.as_json(checks, wanted), indent=2))
    else:
        sink = Sink()
        for check in checks:
            verify_text.tell(check, wanted, sink)
        output.show(sink)
    if all(verdict.ok for verdict in verdicts):
        return 0
    folder.kept = not as_json
    for check in checks:
        if check.job is not None:
            shutil.rmtree(check.job.records, ignore_errors=True)
    return 1 if any(verdict.difference is not None for verdict in verdicts) else 3
