"""`shardc verify`: a plan, executed on simulated ranks, against one device. Comparing is interpret's."""

from __future__ import annotations

from collections.abc import Mapping

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.diagnostics.diagnostic import Sink


@click.command(
    "verify",
    epilog="Examples: shardc verify examples/digits.shard --ranks 8 --strategy both; "
    "shardc verify model.shard --ranks 64 --steps 2",
)
@options.file_argument
@options.ranks_option(required=True)
@options.strategy_option
@options.set_option
@click.option("--steps", type=click.IntRange(1, 100), default=1, show_default=True, help="Training steps to compare.")
@click.pass_context
def command(
    ctx: click.Context, file: str, ranks: int, strategy: str | None, overrides: Mapping[str, str], steps: int
) -> None:
    """Compare a plan with one device: every value, gradient and parameter.

    In float64, on data drawn at random, on ranks simulated in this process: no process is started and no data file is
    read.
    """
    sink = Sink()
    program = driver.check_source(options.source(file), sink, overrides)
    plan = driver.plan_program(program, strategy, ranks, sink) if program is not None else None
    if plan is None or plan.graph.loss is None or plan.program.training is None:
        if plan is not None:
            driver.emit_plan(plan, sink)  # says that there is nothing to run
        ctx.exit(output.show(sink))
    from shardlang.interpret.compare import verify_plan

    found = verify_plan(plan, steps=steps)
    if found.difference is not None:
        sink.report(
            "SH900", f"a fault of shardc, not of your program: {found.difference}", None,
            help="please report it with the program and this command",
        )  # fmt: skip
        output.show(sink)
        ctx.exit(3)
    print(
        f"{file}: {ranks} simulated rank{'s' * (ranks != 1)} compute what one device does "
        f"({found.values} values, {found.gradients} gradients, {_steps(steps)}; largest relative error "
        f"{found.largest:.1e}, float64)"
    )
    if found.ties:
        print(f"not compared, as rounding decides them: {', '.join(found.ties)}")


def _steps(steps: int) -> str:
    return f"{steps} step{'s' * (steps != 1)}"
