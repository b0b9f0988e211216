"""The options and arguments that several commands share, and how what they name is read."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlang import driver
from shardlang.cli import candidates
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.run_files import LOGS
from shardlang.frozen.records import dataclass
from shardlang.hints.paths import beside
from shardlang.sources.files import Unreadable, read_program
from shardlang.sources.source import Source

if TYPE_CHECKING:
    from shardlang.check.program import CheckedProgram
    from shardlang.paths.patterns import Cuts
    from shardlang.plan.plan import Plan

# Where a command keeps what `--extension` gives.
_EXTENSIONS = "shardlang.extensions"
# What `--set` may name.
PATH = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(\[\d+\])?(\.[A-Za-z_][A-Za-z_0-9]*(\[\d+\])?)*")


def source(name: str) -> Source:
    """The program a user named; a mistake in the name is one in using the command."""
    try:
        found = read_program(name)
        context = click.get_current_context(silent=True)
        given = context.meta.get(_EXTENSIONS, ()) if context is not None else ()
        return replace(found, extensions=given) if given else found
    except Unreadable as reason:
        text = f"`{name}` {reason}"
        close = beside(Path(name), ".shard") if str(reason) == "does not exist" else None
        there = os.path.join(os.path.dirname(name), close or "")
        raise click.UsageError(f"{text}; did you mean `{there}`?" if close else text) from reason


@dataclass(frozen=True)
class Asked:
    """The program that a command is given, and what its options say of the plan."""

    file: str = ""
    ranks: Any = None
    strategy: str | None = None
    cluster: str | None = None
    overrides: Mapping[str, str] | None = None

    @cached_property
    def _source(self) -> Source:
        """The file, read once: the standard input has nothing the second time."""
        return source(self.file)

    def program(self, sink: Sink, runs: Cuts | None = None) -> CheckedProgram | None:
        """The checked program; None after errors. runs: as of `driver.in_runs`."""
        return driver.check_source(self._source, sink, self.overrides, self.strategy, runs, self.cluster)

    def plan(self, sink: Sink, memory: Sink | None = None, runs: Cuts | None = None) -> Plan | None:
        """The plan of the program; None after errors. memory: as of `driver.plan_program`."""
        program = self.program(sink, runs)
        return driver.plan_program(program, self.strategy, self.ranks, sink, memory) if program is not None else None


def plans(every: Iterable[Asked], sink: Sink, memory: Sink, runs: Cuts | None) -> list[Plan]:
    """The plans that are asked for, each with mistakes of its own; none of those that have any."""
    found = []
    for each in every:
        mine = Sink()
        found.append(each.plan(mine, memory, runs))
        for diagnostic in mine.found:
            sink.add(diagnostic)
    return [plan for plan in found if plan is not None]


def asked(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with those of its options that `Asked` has as one value, its first argument."""

    @wraps(command)
    def found(**given: Any) -> Any:
        own = {name: given.pop(name) for name in Asked.__dataclass_fields__ if name in given}
        return command(Asked(**own), **given)

    return found


class There(click.Path):
    """A path of what is there; a `*` in its last part stands for files that are."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.exists() or ("*" in path.name and any(path.parent.glob(path.name))):
            return path
        program = (ctx.params.get("file") if ctx is not None else None) or ""
        close, moved = beside(path), os.path.join(os.path.dirname(program), path)
        close = moved if close is None and os.path.exists(moved) else close and os.path.join(path.parent, close)
        help = f"did you mean `{close}`?" if close else "paths in a command are relative to the current folder"
        return self.fail(f"`{path}` does not exist; {help}", param, ctx)


def _overrides(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for text in given:
        path, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value or PATH.fullmatch(path) is None:
            example = "batch=64, model.d=256 or three_d.mp=4"
            raise click.BadParameter(f"`{text}` is not PATH=VALUE, as in {example}", ctx, param)
        if path in found and found[path] != value:
            raise click.BadParameter(f"`{path}` is given twice, as {found[path]} and as {value}", ctx, param)
        found[path] = value
    return found


class Finite(click.FloatRange):
    """A number of a range, and neither infinite nor none at all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"{value} is no finite number.", param, ctx)


def _extensions(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> None:
    for name in given:
        if not name.endswith(".shard") or not os.path.isfile(name):
            raise click.BadParameter(f"`{name}` is no .shard file", ctx, param)
    ctx.meta[_EXTENSIONS] = given


extension_option = click.option(
    "--extension", multiple=True, metavar="FILE.shard", expose_value=False, callback=_extensions,
    shell_complete=candidates.programs,
    help="A file of declarations that the program may load Python by. May be repeated. "
    "[default: those of shard.toml]",
)  # fmt: skip
_ranks = partial(
    click.option, "--ranks", type=click.IntRange(1), metavar="N", help="How many ranks (processes) run it."
)
ranks_option, ranks_if_wanted = _ranks(required=True), _ranks()
strategy_option = click.option(
    "--strategy", metavar="NAME", shell_complete=candidates.strategies,
    help="One of the file's strategies; the first by default.",
)  # fmt: skip
cluster_option = click.option(
    "--cluster", metavar="NAME", shell_complete=candidates.clusters,
    help="The cluster to plan for: of the file, of a library (std.clusters.h100_pod), or the first of FILE.shard.",
)  # fmt: skip
device_option = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="By default CUDA if there is a GPU per rank, else the CPU."
)
log_dir_option = click.option(
    "--log-dir", type=click.Path(path_type=Path), metavar="DIR",
    help=f"Where the compiled program and each rank's log go. [default: a new folder of {LOGS}, its link `latest`]",
)  # fmt: skip
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", callback=_overrides, shell_complete=candidates.settings,
    help="Set a dim, an argument of the model, an axis or a setting: batch=64, train.optimizer.lr=0.1. May be "
    "repeated. `shardc explain set` lists all.",
)  # fmt: skip


def file_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    # Eager: what an option names may lie beside the program.
    argument = click.argument("file", metavar="FILE", is_eager=True, shell_complete=candidates.programs)
    return argument(extension_option(asked(command)))
