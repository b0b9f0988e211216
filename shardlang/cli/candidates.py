"""The words of a command so far -> the words that may stand at the cursor, read from the program
that the command names.

Parses that program, and of its imports those that declare what is asked for; checks and reports
nothing. Each kind of word imports what it needs when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from shardlang.sources.files import Files
    from shardlang.syntax import ast

PROGRAM = "program"  # the type of an item that stands for `.shard` files


def programs(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The `.shard` files that a path may lead to, which each shell finds in its way."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, PROGRAM)]


def strategies(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    return _begun(typed, (strategy.name.text for file in _files(ctx) for strategy in file.strategies))


def settings(ctx: click.Context, param: click.Parameter, typed: str) -> list[str]:
    """The paths of `--set`, with the `=` that stands behind them."""
    return _begun(typed, (f"{path}=" for file in _files(ctx) for path in _paths(file)))


def clusters(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The clusters that the program declares or imports, those of `std.clusters`, and files, of
    which the first cluster counts."""
    from click.shell_completion import CompletionItem

    from shardlang.sources.files import Files

    files, library = Files(), "std.clusters"
    shipped = _imported("-", library, False, files)
    named = [item.name.text for file in _files(ctx) for item in _hardware(file, files)]
    named += [f"{library}.{item.name.text}" for item in _hardware(shipped, files)]
    return [*map(CompletionItem, _begun(typed, named)), *programs(ctx, param, typed)]


def explained(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The codes of diagnostics, and all else that `explain` explains, each with a sentence."""
    from click.shell_completion import CompletionItem

    from shardlang.diagnostics import explain_pages

    # `s` begins many names, and codes are seldom wanted there.
    coded = [code for code in explain_pages.pages() if typed not in ("", "s") and code.startswith(typed.upper())]
    codes = [CompletionItem(code, help=explain_pages.title(code)) for code in coded]
    if coded and typed[2:]:
        return codes
    from shardlang.cli import reference

    return [*codes, *(CompletionItem(name, help=reference.summary(name)) for name in _begun(typed, reference.names()))]


def _begun(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(typed)]


def _files(ctx: click.Context) -> Iterator[ast.File]:
    """The trees of the programs that the command names: partial where they have mistakes."""
    from shardlang.diagnostics.diagnostic import Sink
    from shardlang.sources.files import Unreadable, read_program
    from shardlang.syntax.parse import parse

    # While the value of an option lacks, click has not sorted the other words.
    names = [ctx.params.get("file"), *(ctx.params.get("files") or ()), *ctx.args]
    for name in names:
        if not name or name == "-":  # the standard input is the terminal's
            continue
        try:
            yield parse(read_program(os.path.expandvars(os.path.expanduser(name))), Sink())
        except Unreadable:
            continue


def _imported(home: str, path: str, is_file: bool, files: Files) -> ast.File:
    """The tree of what `use` names; an empty one where it cannot be read."""
    from shardlang.diagnostics.diagnostic import Sink
    from shardlang.sources.source import Source
    from shardlang.syntax.parse import parse

    source = files.load(home, path, is_file)
    return parse(source if isinstance(source, Source) else Source(home, ""), Sink())


def _declared(file: ast.File, name: str, files: Files, seen: tuple[str, ...] = ()) -> Iterator[ast.Item]:
    """The item that a name of a file is, through its imports; circles of these end."""
    from shardlang.syntax import ast

    for item in file.items if file.source.name not in seen else ():
        match item:
            case ast.Model() | ast.Hardware() if item.name.text == name:
                yield item
            case ast.Use() if name in [each.text for each in item.names]:
                other = _imported(file.source.name, item.path, item.file, files)
                yield from _declared(other, name, files, (*seen, file.source.name))


def _hardware(file: ast.File, files: Files) -> Iterator[ast.Hardware]:
    """The clusters that a file declares or imports."""
    from shardlang.syntax import ast

    for item in file.items:
        names = item.names if isinstance(item, ast.Use) else [item.name] if isinstance(item, ast.Hardware) else []
        found = (each for name in names for each in _declared(file, name.text, files))
        yield from (each for each in found if isinstance(each, ast.Hardware) and each.keyword == "cluster")


def _paths(file: ast.File) -> Iterator[str]:
    """The paths of `--set`: what the file writes, what an imported model has, and the arguments
    that are left to their defaults."""
    from shardlang.check.declared import called
    from shardlang.check.train import overrides
    from shardlang.check.train.data_sources import SOURCES
    from shardlang.check.train.optimizers import KINDS
    from shardlang.check.train.settings import SCHEDULES
    from shardlang.sources.files import Files
    from shardlang.syntax import ast

    # What is a dim of the file is set there, for all that have it.
    yield from (path for path in overrides.places(file) if overrides.shared(file, path) is None)
    root, files = overrides.root_model(file), Files()
    models = _declared(file, root, files) if root else ()
    yield from (path for model in models if isinstance(model, ast.Model) for path in overrides.of_model(model))
    kinds = {"optimizer": KINDS, "lr_schedule": SCHEDULES, "data": SOURCES, "eval": SOURCES}
    for name, call in overrides.calls(file):
        kind = kinds.get(name, {}).get(called(call))
        written = [keyword.name.text for keyword in call.keywords]
        yield from (f"train.{name}.{p.name}" for p in (kind.params if kind else ()) if p.name not in written)
