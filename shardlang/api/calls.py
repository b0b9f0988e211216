"""The functions that `shardlang` offers: `shardlang.check`, `shardlang.plan`, and so on.

A mistake in a program is no exception of `check`; `plan`, `compile` and `format` raise
ProgramError. A wrong call is TypeError or ValueError, a file that cannot be read OSError. None of
them runs anything of the program, or imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from shardlang import driver
from shardlang.api.rows import Row
from shardlang.api.values import Compiled, Plan, Program, ProgramError, Report
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.runs import in_runs
from shardlang.sources.files import Unreadable, folder_of, read_text
from shardlang.sources.source import Source

if TYPE_CHECKING:
    from shardlang.check import program as checked
    from shardlang.plan import plan as planned
    from shardlang.syntax import ast

Found = TypeVar("Found")
Given = str | os.PathLike[str] | Source
_NONE: Mapping[str, object] = MappingProxyType({})


def read(path: str | os.PathLike[str]) -> Source:
    """A program's text, from a file. OSError where it cannot be read."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"a program is a path or a Source, not {type(path).__name__}")
    try:
        return Source(os.fspath(path), read_text(Path(path)))
    except Unreadable as reason:
        raise OSError(f"`{os.fspath(path)}` {reason}") from reason


def source(text: str, name: str = "cell.shard") -> Source:
    """A program from a text. name: what its mistakes are told with, and the folder from which it
    imports."""
    if not isinstance(text, str):
        raise TypeError(f"the text of a program is a str, not {type(text).__name__}")
    return Source(name, text)


def check(
    program: Given, *, ranks: int | None = None, strategy: str | None = None, set: Mapping[str, object] = _NONE
) -> Report:
    """All mistakes of a program. ranks: also those of its strategy on that number of ranks. set: as
    `--set`, {"batch": 64, "model.d": 256}."""
    sink = Sink()
    count = _count(ranks) if ranks is not None else None
    text, overrides = _asked(program, strategy, set, None)
    found, _ = driver.check_whole(text, sink, overrides, strategy, count)
    return _report(sink, _named(found, strategy, sink))


def plan(
    program: Given, *, ranks: int, strategy: str | None = None, set: Mapping[str, object] = _NONE,
    cluster: str | None = None, each_layer: bool = False,
) -> Plan:  # fmt: skip
    """The plan of a program on a number of ranks, by a strategy (the first by default). cluster: as
    `--cluster`; each_layer: equal layers are told one by one. ProgramError where there is none."""
    sink = Sink()
    made = _planned(program, ranks, strategy, set, cluster, sink)
    driver.prove_plan(made, sink)
    return _seen(made, sink, each_layer)


def compile(program: Given, *, ranks: int, strategy: str | None = None, set: Mapping[str, object] = _NONE) -> Compiled:
    """The torch program that each rank runs. ProgramError where there is none."""
    sink = Sink()
    made = _planned(program, ranks, strategy, set, None, sink)
    files = _required(driver.emit_plan(made, sink), sink)
    return Compiled(MappingProxyType(dict(files)), _seen(made, sink, each=True), folder_of(made.program.source.name))


def format(text: str) -> str:
    """A program's text in its one form. ProgramError where it has mistakes of syntax."""
    sink = Sink()
    return _required(driver.format_source(source(text), sink), sink)


def explain(word: str) -> str:
    """The page of a code (`SH304`), or what is declared under a name (`matmul`, `adamw`), as
    Markdown. ValueError where there is none."""
    from shardlang.cli import reference
    from shardlang.diagnostics import explain_pages

    if not isinstance(word, str):
        raise TypeError(f"a code or a name is a str, not {type(word).__name__}")
    if word.upper() in explain_pages.pages():
        return explain_pages.page(word.upper())
    if word in reference.names():
        return reference.entry(word)
    raise ValueError(reference.absent(word))


def _seen(made: planned.Plan, sink: Sink, each: bool = False) -> Plan:
    seen = driver.seen_plan(made, sink, each) if not sink.failed else None
    return Plan(_required(seen if not sink.failed else None, sink).found)


def _required(found: Found | None, sink: Sink) -> Found:
    """The outcome of a pass; ProgramError where it has none."""
    if found is None:
        raise ProgramError(_report(sink, None))
    return found


def _planned(
    program: Given, ranks: int, strategy: str | None, given: Mapping[str, object], cluster: str | None, sink: Sink
) -> planned.Plan:
    count = _count(ranks)
    found = _required(_checked(program, strategy, given, cluster, sink), sink)
    return _required(driver.plan_program(found, strategy, count, sink), sink)


def _checked(
    program: Given, strategy: str | None, given: Mapping[str, object], cluster: str | None, sink: Sink
) -> checked.CheckedProgram | None:
    text, overrides = _asked(program, strategy, given, cluster)
    return _named(driver.check_source(text, sink, overrides, strategy, cluster=cluster), strategy, sink)


def _asked(
    program: Given, strategy: object, given: Mapping[str, object], cluster: object
) -> tuple[Source, dict[str, str]]:
    """The text of a program, and what is set in it."""
    text = program if isinstance(program, Source) else read(program)
    if not isinstance(strategy, str | None) or not isinstance(cluster, str | None):
        raise TypeError("`strategy` and `cluster` are names")
    return text, {path: _value(path, value) for path, value in given.items()}


def _named(program: checked.CheckedProgram | None, name: str | None, sink: Sink) -> checked.CheckedProgram | None:
    """The program, which has the strategy that is asked for; None after a report."""
    from shardlang.plan.planner import strategy_named

    lacks = program is not None and name is not None and strategy_named(program, name, sink) is None
    return None if lacks else program


def _count(ranks: object) -> int:
    if not isinstance(ranks, int) or isinstance(ranks, bool):
        raise TypeError(f"ranks is a whole number, not {type(ranks).__name__}")
    if ranks < 1:
        raise ValueError(f"ranks is at least 1, not {ranks}")
    return ranks


def _value(path: object, value: object) -> str:
    """A value of Python as `--set` takes it."""
    from shardlang.cli.options import PATH

    if not isinstance(path, str):
        raise TypeError(f"`set` is by paths, not by {type(path).__name__}")
    if PATH.fullmatch(path) is None:
        raise ValueError(f"`set`: {path!r} is no path, as `batch` or `model.d`")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    raise TypeError(f"`set`: the value of `{path}` is {type(value).__name__}, not a number, a bool or a text")


def _report(sink: Sink, found: checked.CheckedProgram | None) -> Report:
    return Report(tuple(in_runs(sink.found)), _shown(found) if found is not None and not sink.failed else None)


def _shown(found: checked.CheckedProgram) -> Program:
    from shardlang.syntax import ast

    graph, tree = found.graph, driver.parse_source(found.source, Sink())
    models = [item for item in tree.items if isinstance(item, ast.Model)]
    parameters = [graph.values[at] for at in graph.params]
    return Program(
        found.source.name,
        tuple(Row({"name": s.name.text, "axes": _axes(s)}) for s in found.strategies),
        tuple(Row({"name": m.name.text, "line": m.name.span.line}) for m in models),
        tuple(
            Row({"path": p.path, "shape": list(p.type.shape), "dtype": p.type.dtype, "trained": p.gradient})
            for p in parameters
        ),
        tuple(Row({"name": name, "size": size}) for name, size in found.statics.items()),
        found.training is not None,
    )


def _axes(strategy: ast.Strategy) -> list[str]:
    from shardlang.syntax import ast

    return [axis.name.text for rule in strategy.rules if isinstance(rule, ast.Mesh) for axis in rule.axes]
