"""Turns the text of a .shard file into its syntax tree, and reports what is no Shard (SH1xx).

Always gives a tree: after a mistake parsing goes on, and the tree holds what is sound. Names and
types are left to check."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.automaton import Automaton
from shardlang.syntax.prune import pruned
from shardlang.syntax.recover import Recovery
from shardlang.syntax.tables import tables
from shardlang.syntax.tokens import TokenStream


def parse(source: Source, sink: Sink) -> ast.File:
    """The file's tree: partial where `sink` got errors."""
    known = _library(source.name, source.text) if source.library else None
    return known or _file(source, sink)


@lru_cache(16)
def _library(name: str, text: str) -> ast.File | None:
    """The tree of a file of the standard library, made once in a process; None if it has
    mistakes."""
    sink = Sink()
    made = _file(Source(name, text, library=True), sink)
    return None if sink.found else made


def parse_expression(source: Source, sink: Sink) -> ast.Expr | None:
    """The tree of one expression, as a command line gives them; None where it is none."""
    found: ast.Expr | None = _run(TokenStream(source, tables()), sink, "expression_only")[0]
    return None if sink.failed else found


def parse_rules(name: str, text: str) -> tuple[ast.Rule, ...] | None:
    """The rules that a text is made of, as they stand in a strategy; None where it is something
    else. `name`: of the text, in spans."""
    sink = Sink()
    file = parse(Source(name, f"strategy s {{\n  {text}\n}}\n"), sink)
    return file.strategies[0].rules if len(file.items) == 1 and not sink.failed else None


def _file(source: Source, sink: Sink) -> ast.File:
    mine = Sink()
    items, recovery = _run(TokenStream(source, tables()), mine, "start")
    of_values = [m.primary.span for m in mine.found if m.primary is not None and m not in recovery.told]
    kept, lost = pruned(items or (), of_values)
    for mistake in mine.found:
        sink.add(mistake)
    return ast.File(source, kept, (*recovery.lost, *lost))


def _run(tokens: TokenStream, sink: Sink, start: str) -> tuple[Any, Recovery]:
    """The tree, and what kept something out of it."""
    automaton = Automaton(tokens.tables, tokens.source, sink, start)
    stream = iter(tokens)
    recovery = Recovery(tokens, stream, sink)
    return automaton.run(stream, recovery), recovery
