"""Selectors of `at` -> the values they cover, and how specific they are.

A path covers what stands below it. rules.py applies rules to the values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.graph.places import MOST_LOOKED
from shardlang.paths import patterns
from shardlang.sources.source import Span
from shardlang.syntax import ast

Specificity = tuple[int, int, int]
EVERYWHERE: Specificity = (-1, 0, 0)


@dataclass(frozen=True, slots=True)
class SelectorScope:
    """values: value id -> specificity of its closest selector. named: values named by selectors.
    wrong: the places of selectors that were reported."""

    values: dict[int, Specificity]
    named: dict[int, Specificity]
    wrong: set[Span]


def specificity(selector: ast.Selector) -> Specificity:
    """More exact names and indexes, then fewer `**`, then fewer `*`: the greater tuple wins."""
    exact = sum((s.name != "**" and "*" not in s.name) + isinstance(s.index, int) for s in selector.segments)
    deep = sum(s.name == "**" for s in selector.segments)
    stars = sum(s.name.count("*") for s in selector.segments if s.name != "**")
    stars += sum(s.index == "*" for s in selector.segments)
    return exact, -deep, -stars


def select(graph: Graph, selectors: Sequence[ast.Selector], sink: Sink) -> SelectorScope:
    """The values that any of `selectors` covers; reports each that matches nothing at all, and the
    one with which all that were read were too much (SH331)."""
    scope = SelectorScope({}, {}, set())
    within, places = graph.within_statements(), graph.places()
    for selector in selectors:
        if places.looked > MOST_LOOKED:
            break
        rank, covered = specificity(selector), places.covered(text(selector))
        if places.too_many(selector.span, sink):
            break
        for path, own in covered:
            values = graph.addresses[path]
            for value in (*values, *within.get(path, ())):
                scope.values[value] = max(rank, scope.values.get(value, rank))
            for value in values if own == path else ():
                scope.named[value] = max(rank, scope.named.get(value, rank))
        if not covered and not graph.declared_places().covered(text(selector)):
            _report_nothing(graph, selector, sink)
            scope.wrong.add(selector.span)
    return scope


def matcher(selector: ast.Selector) -> Callable[[str], str]:
    """Path -> its beginning that the selector names; "" if the selector does not cover the path."""
    return patterns.matcher(text(selector))


def text(selector: ast.Selector) -> str:
    """A selector as it is written, without spaces: `encoder.blocks[0..6].**.bias`."""
    return ".".join(f"{segment.name}{_index(segment.index)}" for segment in selector.segments)


def _index(index: str | int | tuple[int, int] | None) -> str:
    if index is None:
        return ""
    return f"[{index[0]}..{index[1]}]" if isinstance(index, tuple) else f"[{index}]"


def _report_nothing(graph: Graph, selector: ast.Selector, sink: Sink) -> None:
    written = selector.span.text

    def help() -> str:
        places, below = graph.declared_places(), written.partition(".")[2]
        near = below if ":" not in below and below in places.order else places.nearest(written)
        rules = "paths begin in the model of `train`; values of `train` are `train.NAME`"
        return f"did you mean `{near}`?" if near else rules

    sink.report("SH308", f"`{written}` matches nothing of the model", selector.span, help=help)
