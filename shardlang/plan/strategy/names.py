"""Mistakes of a strategy, found where nothing is known of the graph -> those that are mistakes
whatever the graph is, with the dims and paths of its rules that no model can have, by their names
alone."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.check.program import CheckedProgram, DeclaredNames
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.hints.nearest import nearest
from shardlang.plan.strategy.rules import NAME
from shardlang.syntax import ast

# What may be wrong because an expression has no number, and because nothing is covered.
_OF_NUMBERS = ("SH319", "SH324", "SH329", "SH411", "SH420")
_OF_GRAPHS = ("SH307", "SH308")


def tell_sure(found: Sink, strategy: ast.Strategy, program: CheckedProgram, sink: Sink) -> None:
    """Tells the mistakes of a strategy of a program of which only names are known."""
    assert program.names is not None
    sizeless = program.names.dims - program.statics.keys()

    def sure(mistake: Diagnostic) -> bool:
        written = mistake.primary.span.text if mistake.primary is not None else ""
        unknown = mistake.code in _OF_NUMBERS and not sizeless.isdisjoint(NAME.findall(written))
        return mistake.code not in _OF_GRAPHS and not unknown

    _check_names(strategy, program.names, mine := Sink())
    for mistake in sorted((*filter(sure, found.found), *mine.found), key=_start):
        sink.add(mistake)


def _start(mistake: Diagnostic) -> int:
    return mistake.primary.span.start if mistake.primary is not None else 0


def _check_names(strategy: ast.Strategy, names: DeclaredNames, sink: Sink) -> None:
    """Reports dims and selectors of which a name is declared nowhere."""
    for node in ast.nodes_of(strategy.rules):
        match node:
            case ast.DimPath(parts=(*layers, dim)):
                unknown = _unknown([layer.text for layer in layers], names)
                if dim.text not in names.dims and (names.sure is None or len(layers) < names.sure):
                    unknown = unknown or dim.text
                if unknown:
                    fact = f"the model has no dim `{node.text}`"
                    known = names.dims if unknown == dim.text else names.values
                    sink.report("SH307", fact, node.span, help=_help(node.text, unknown, known))
            case ast.Selector():
                unknown = _unknown([segment.name for segment in node.segments], names)
                if unknown:
                    fact = f"`{node.span.text}` matches nothing of the model"
                    sink.report("SH308", fact, node.span, help=_help(node.span.text, unknown, names.values))


def _unknown(path: list[str], names: DeclaredNames) -> str:
    """The first name of a path that nothing has, "" where all may be there."""
    sure = path[: names.sure] if names.values else ()
    return next((name for name in sure if "*" not in name and name not in names.values), "")


def _help(path: str, unknown: str, known: Iterable[str]) -> str:
    near = nearest(unknown, known)
    return f"did you mean `{path.replace(unknown, near)}`?" if near is not None else ""
