"""`shardc run --simulate`: prepares the plan, and the program that loads, evaluates and saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shardlang import driver
from shardlang.cli import options, output
from shardlang.cli.files import write_files
from shardlang.diagnostics.diagnostic import Sink
from shardlang.scratch import scratch


def run(
    file: str, ranks: int, strategy: str | None, overrides: Mapping[str, str], base: Path, metrics: Path | None,
    save_weights: Path | None,
) -> int:  # fmt: skip
    """Trains on ranks simulated in this process; the exit code."""
    sink = Sink()
    program = driver.check_source(options.source(file), sink, overrides, strategy)
    plan = driver.plan_program(program, strategy, ranks, sink) if program is not None else None
    alone = driver.plan_program(replace(program, strategies=()), None, 1, sink) if program and plan else None
    files = driver.emit_plan(alone, sink) if alone is not None else None
    if plan is None or files is None:
        return output.show(sink)
    from shardlang.interpret.meaning.elements import in_type
    from shardlang.interpret.ranks.limits import check_size

    training = plan.program.training
    if training is not None and training.precision in ("bf16", "f16"):
        plan = in_type(plan, "f32")
    if not check_size(plan, sink):
        return output.show(sink)
    output.show(sink)
    from shardlang.interpret.ranks.simulate import simulate

    with scratch("simulate") as folder:
        write_files(folder.path, files)
        return simulate(plan, folder.path / "main.py", base, metrics, save_weights)
