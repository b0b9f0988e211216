"""`shardc run`: compiles a program and trains it on ranks of this machine."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.cli.commands.compile import emitted
from shardlang.cli.files import require_folder, write_files
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.locks import Claims
from shardlang.disk.run_files import RunFiles, claim, steps_of
from shardlang.disk.scratch import scratch
from shardlang.launch.log_targets import LogTarget, target_of
from shardlang.launch.log_targets import require as require_targets
from shardlang.launch.started import require_alone
from shardlang.sources.files import folder_of
from shardlang.types.dim import low

_NO_CHECKPOINTS = "simulated ranks neither write checkpoints nor go on from them"


def _steps(ctx: click.Context, param: click.Parameter, given: str | None) -> range | None:
    """The steps of `10` or `10..13`, the end exclusive."""
    try:
        return steps_of(given) if given is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _targets(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[LogTarget, ...]:
    """The targets that `--log` names, each once."""
    try:
        return tuple(dict.fromkeys(target_of(text) for text in given))
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command(
    "run",
    epilog="Examples: shardc run examples/digits.shard --ranks 8; "
    "shardc run model.shard --ranks 4 --set train.epochs=1 --metrics figures.jsonl; "
    "shardc run model.shard --ranks 4 --log tensorboard:runs/first --log python:watch.py:on_event; "
    "shardc run model.shard --ranks 512 --simulate",
)
@options.file_argument
@options.ranks_option
@options.strategy_option
@options.set_option
@options.device_option
@click.option(
    "--compile/--no-compile", default=None, help="Compile each block by torch.compile. [default: as `train` says]"
)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint that is whole.")
@click.option("--resume-anyway", is_flag=True, help="The same, also with other data, another batch or seed.")
@click.option("--overwrite", is_flag=True, help="Begin anew where checkpoints of an earlier run are, and remove them.")
@click.option(
    "--simulate", is_flag=True, help="Simulate the ranks in this process: slow, on the CPU, for any number of them."
)
@click.option(
    "--host-storage", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Keep parameters on the host in mapped files there; they may be larger than the memory.",
)  # fmt: skip
@click.option(
    "--profile",
    metavar="STEPS",
    callback=_steps,
    help="Write a Chrome trace of these steps, as in 10 or 10..13 (without 13), to the log folder.",
)
@click.option(
    "--stall-timeout",
    type=options.Finite(0, min_open=True),
    metavar="SECONDS",
    help="A rank that makes no progress for so long ends the run. [default: 20 steps, at least 60 s]",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="After a failure, go on from the newest checkpoint, at most N times; not after the same failure twice.",
)
@click.option(
    "--log",
    "targets",
    multiple=True,
    metavar="KIND:WHERE",
    callback=_targets,
    help="Where to send figures and events of the run too: tensorboard:DIR, wandb:PROJECT, mlflow:URI, "
    "jsonl:FILE or python:FILE:NAME, a function. May be repeated.",
)
@click.option("--metrics", type=click.Path(path_type=Path), metavar="FILE", help="Write figures as JSON lines.")
@click.option(
    "--save-weights", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the final parameters as safetensors.",
)  # fmt: skip
@options.log_dir_option
def command(
    asked: options.Asked, device: str | None, compile: bool | None, resume: bool,
    resume_anyway: bool, overwrite: bool, simulate: bool, host_storage: Path | None, profile: range | None,
    stall_timeout: float | None, max_restarts: int, targets: tuple[LogTarget, ...], metrics: Path | None,
    save_weights: Path | None, log_dir: Path | None,
) -> int:  # fmt: skip
    """Train on this machine.

    Paths in the program are relative to its file."""
    _require_real(simulate, (
        (device == "cuda", "simulated ranks compute on the CPU; --device cuda is for real ones"),
        (compile is True, "simulated ranks run every operator as it is; --compile is for real ones"),
        (resume or resume_anyway or overwrite, f"{_NO_CHECKPOINTS}: leave out --resume and --overwrite"),
        (host_storage is not None, "--simulate keeps everything in memory: leave out --host-storage"),
        (profile is not None, "a trace is of real ranks: leave out --profile or --simulate"),
        (targets, "simulated ranks have no stream of events: leave out --log, or take --metrics"),
        (stall_timeout or max_restarts, "simulated ranks do not fail: leave out --stall-timeout and --max-restarts"),
    ))  # fmt: skip
    _require_start((resume or resume_anyway) and overwrite, metrics, save_weights)
    if simulate:
        return _simulate(asked, metrics, save_weights)
    files = emitted(asked)
    with output.ending(3):
        require_targets(targets)
        with Claims() as claims:
            claimed = claim(claims, asked.ranks, log_dir, metrics, save_weights, files, profile is not None)
            code = _train(
                files, claimed, asked, device=device, resume=resume, resume_anyway=resume_anyway,
                overwrite=overwrite, host_storage=host_storage, profile=profile, compile=compile,
                stall=stall_timeout, restarts=max_restarts, targets=targets,
            )  # fmt: skip
    return code


def _require_real(simulate: bool, asked: Iterable[tuple[object, str]]) -> None:
    """UsageError where ranks are simulated and something is asked for that needs real ones."""
    for given, why in asked:
        if simulate and given:
            raise click.UsageError(why)


def _require_start(contrary: bool, *written: Path | None) -> None:
    """UsageError where this is one of several tasks, or a file could not be written at the end.
    contrary: the run is to go on, and to begin anew."""
    if contrary:
        raise click.UsageError("--resume goes on from the checkpoints that --overwrite removes: leave one of them out")
    with output.ending(2):
        require_alone("`shardc run`")
    for path in (path for path in written if path is not None):
        require_folder(path)


def _train(files: Mapping[str, str], claimed: RunFiles, asked: options.Asked, **given: Any) -> int:
    """Writes the emitted files and runs them; the exit code. The caller holds what is written."""
    write_files(claimed.log_dir, files)
    from shardlang.runtime.launch.launcher import launch

    # What is alive now stays so: frozen, it is not walked in every rank, whose pages stay shared.
    gc.freeze()
    gc.enable()
    return launch(
        claimed.log_dir / "main.py", asked.ranks, base=folder_of(asked.file), log_dir=claimed.log_dir,
        metrics=claimed.metrics, save_weights=claimed.save_weights, **given,
    )  # fmt: skip


def _simulate(asked: options.Asked, metrics: Path | None, save_weights: Path | None) -> int:
    """Trains the plan on ranks simulated in this process; the program for one rank loads, evaluates
    and saves for it. The exit code."""
    gc.enable()
    sink = Sink()
    program = asked.program(sink)
    plan = driver.plan_program(program, asked.strategy, asked.ranks, sink) if program is not None else None
    # What real ranks would run is proved: where they would wait for ever, these do not begin.
    proved = driver.emit_plan(plan, sink) if plan is not None else None
    whole = driver.plan_program(replace(program, strategies=()), None, 1, sink) if program and proved else None
    files = driver.emit_plan(whole, sink) if whole is not None else None
    if plan is None or proved is None or files is None:
        return output.show(sink)
    from shardlang.interpret.meaning.elements import in_type
    from shardlang.interpret.ranks.limits import check_size

    training = plan.program.training
    if training is not None and training.eval is not None and "weights" in (training.evaluate or {}):
        raise click.UsageError("simulated ranks keep no average of the weights: leave out `weights = ema`")
    if training is not None and low(training.precision):
        plan = in_type(plan, "f32")
    if not check_size(plan, sink):
        return output.show(sink)
    output.show(sink)
    from shardlang.interpret.ranks.simulate import simulate

    with scratch("simulate") as folder:
        write_files(folder.path / "alone", files)
        write_files(folder.path / "ranks", proved)
        alone, emitted = (folder.path / name / "main.py" for name in ("alone", "ranks"))
        return simulate(plan, alone, emitted, folder_of(asked.file), metrics, save_weights)
