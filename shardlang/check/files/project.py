"""The project file beside a program or above it, `shard.toml`, and `--extension` -> the
declarations of Python that the program may load.

Where neither names any, a program may load what it imports."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.declared import DECLARED
from shardlang.sources.files import STDIN, Unreadable, beneath, folder_of, read_text
from shardlang.sources.source import Source, Span

PROJECT = "shard.toml"


class _Wrong(Exception):
    """The mistake in a project file, and what helps."""

    def __init__(self, fact: str, help: str = "") -> None:
        super().__init__(fact)
        self.help = help


def require_named(source: Source, program: CheckedProgram, sink: Sink) -> None:
    """Reports SH623 where a program uses a declaration that the project does not name, or the
    project file is wrong."""
    path = None if source.name == STDIN else _found(source.name)
    shown = "" if path is None else _shown(source.name, path)
    try:
        named = _listed(path) if path is not None else None
    except _Wrong as wrong:
        sink.report("SH623", f"{shown}: {wrong}", None, help=wrong.help)
        return
    if named is None and not source.extensions:
        return
    allowed = {os.path.realpath(name) for name in (*(named or ()), *source.extensions)}
    lists = " and ".join([f"`{shown}`"] * (named is not None) + ["--extension"] * bool(source.extensions))
    verb = "do" if " and " in lists else "does"
    for kind, name, home, span in _used(program):
        if os.path.realpath(home) not in allowed:
            fact = f"{kind} `{name}` is declared in `{home}`, which {lists} {verb} not name"
            help = f"add it to `files` of `[extensions]` in {PROJECT}, or say `--extension {home}`"
            sink.report("SH623", fact, span, "not to be loaded", help=help)


def _shown(program: str, path: Path) -> str:
    """A path as the user would write it, who has named the program so."""
    return os.path.normpath(os.path.join(os.path.dirname(program), os.path.relpath(path, folder_of(program))))


def _used(program: CheckedProgram) -> list[tuple[str, str, str, Span]]:
    """Each declaration of Python that a program uses, once: kind, name, file, and where."""
    found: dict[tuple[str, str], tuple[str, str, str, Span]] = {}
    for op in program.graph.ops:
        mine = op.attrs.get(DECLARED)
        if mine is not None:
            found.setdefault((mine.home, mine.name), ("operator", mine.name, mine.home, op.span))
    for own in program.training.own if program.training is not None else ():
        found.setdefault((own.home, own.name), (own.kind, own.name, own.home, own.span))
    return list(found.values())


def _found(program: str) -> Path | None:
    """The project file of a program: the nearest, in its folder or above."""
    folder = folder_of(program)
    return next((each / PROJECT for each in (folder, *folder.parents) if (each / PROJECT).is_file()), None)


def _listed(path: Path) -> list[str] | None:
    """The files of declarations that a project names; None where it says nothing of them."""
    try:
        told = tomllib.loads(read_text(path))
    except Unreadable as reason:
        raise _Wrong(f"the file {reason}") from None
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"the file is no TOML: {error}") from None
    example = '`[extensions]`, and below it `files = ["my_ops.shard"]`'
    # A slip in the name must not let everything be loaded.
    unknown = next((name for name in told if name != "extensions"), None)
    if unknown is not None:
        raise _Wrong(f"`{unknown}` says nothing: a project has `extensions` and nothing else", f"write {example}")
    if not told:
        return None
    table = told["extensions"]
    files: Any = table.get("files") if isinstance(table, dict) else None
    if not isinstance(table, dict) or set(table) != {"files"}:
        raise _Wrong("`extensions` is a table with `files` and nothing else", f"write {example}")
    if not isinstance(files, list) or not all(isinstance(each, str) for each in files):
        raise _Wrong("`files` of `extensions` is a list of texts", f"write {example}")
    return [_declared(path, name) for name in files]


def _declared(project: Path, name: str) -> str:
    if not name.endswith(".shard") or "\0" in name or not beneath(str(project), name):
        raise _Wrong(f"`{name}` is no .shard file beside the project file or below it")
    place = folder_of(str(project)) / name
    if not place.is_file():
        raise _Wrong(f"there is no file `{name}`", "leave it out, or mend its name")
    return str(place)
