"""The options and arguments that several commands share, and how what they name is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from shardlang.diagnostics.nearest import nearest
from shardlang.files import Unreadable, read_program
from shardlang.run_files import LOGS
from shardlang.source import Source

Command = TypeVar("Command", bound=Callable[..., Any])
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
        close = _beside(name) if str(reason) == "does not exist" else None
        raise click.UsageError(f"{text}; did you mean `{close}`?" if close else text) from reason


def _beside(name: str) -> str | None:
    """The file in the same folder that a name may be a misspelling of."""
    head, tail = os.path.split(name)
    try:
        others = os.listdir(head or ".")
    except OSError:
        return None
    programs = [other for other in others if other.endswith(".shard")]
    close = f"{tail}.shard" if f"{tail}.shard" in programs else nearest(tail, programs)
    return os.path.join(head, close) if close else None


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


def file_argument(command: Command) -> Command:
    return click.argument("file", metavar="FILE")(extension_option(command))


def extension_option(command: Command) -> Command:
    text = "A file of declarations that the program may load Python by. May be repeated. [default: those of shard.toml]"
    return click.option(
        "--extension", multiple=True, metavar="FILE.shard", expose_value=False, callback=_extensions, help=text
    )(command)


def _extensions(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> None:
    for name in given:
        if not name.endswith(".shard") or not os.path.isfile(name):
            raise click.BadParameter(f"`{name}` is no .shard file", ctx, param)
    ctx.meta[_EXTENSIONS] = given


def ranks_option(required: bool) -> Callable[[Command], Command]:
    return click.option(
        "--ranks", type=click.IntRange(1), required=required, metavar="N", help="How many ranks (processes) run it."
    )


def strategy_option(command: Command) -> Command:
    text = "One of the file's strategies; the first by default."
    return click.option("--strategy", metavar="NAME", help=text)(command)


def cluster_option(command: Command) -> Command:
    text = "The cluster to plan for: of the file, of a library (std.clusters.h100_pod), or the first of FILE.shard."
    return click.option("--cluster", metavar="NAME", help=text)(command)


def device_option(command: Command) -> Command:
    text = "By default CUDA if there is a GPU per rank, else the CPU."
    return click.option("--device", type=click.Choice(["cpu", "cuda"]), help=text)(command)


def log_dir_option(command: Command) -> Command:
    text = f"Where the compiled program and each rank's log go. [default: a new folder of {LOGS}, its link `latest`]"
    return click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help=text)(command)


def set_option(command: Command) -> Command:
    return click.option(
        "--set", "overrides", multiple=True, metavar="PATH=VALUE", callback=_overrides,
        help="Override a dim, a model's formal, a mesh axis or a setting. May be repeated.",
    )(command)  # fmt: skip
