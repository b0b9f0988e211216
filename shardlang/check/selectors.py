"""Selectors of `at` -> the values they cover, and how specific they are.

A path covers what stands below it. rules.py applies rules to the values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from shardlang import patterns
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.nearest import offer
from shardlang.graph.graph import Graph
from shardlang.records import dataclass
from shardlang.syntax import ast

Specificity = tuple[int, int, int]
EVERYWHERE: Specificity = (-1, 0, 0)
_INNER = re.compile(r"(.*):\d+(?:#\d+)?")


@dataclass(frozen=True, slots=True)
class Scope:
    """values: value id -> specificity of its closest selector. named: values named by selectors."""

    values: dict[int, Specificity]
    named: dict[int, Specificity]


def specificity(selector: ast.Selector) -> Specificity:
    """More exact names and indexes, then fewer `**`, then fewer `*`: the greater tuple wins."""
    exact = sum((s.name != "**" and "*" not in s.name) + isinstance(s.index, int) for s in selector.segments)
    deep = sum(s.name == "**" for s in selector.segments)
    stars = sum(s.name.count("*") for s in selector.segments if s.name != "**")
    stars += sum(s.index == "*" for s in selector.segments)
    return exact, -deep, -stars


def select(graph: Graph, selectors: Sequence[ast.Selector], sink: Sink) -> Scope:
    """The values that any of `selectors` covers; reports each that matches nothing at all."""
    scope = Scope({}, {})
    within = _within_statements(graph)
    for selector in selectors:
        match, rank, matched = matcher(selector), specificity(selector), False
        for path, values in graph.addresses.items():
            own = match(path)
            if not own:
                continue
            matched = True
            for value in (*values, *within.get(path, ())):
                scope.values[value] = max(rank, scope.values.get(value, rank))
            for value in values if own == path else ():
                scope.named[value] = max(rank, scope.named.get(value, rank))
        if not matched and not any(map(match, graph.declared)):
            _report_nothing(graph, selector, sink)
    return scope


def matcher(selector: ast.Selector) -> Callable[[str], str]:
    """Path -> its beginning that the selector names; "" if the selector does not cover the path."""
    return patterns.matcher(text(selector))


def text(selector: ast.Selector) -> str:
    """A selector as it is written, without spaces: `encoder.blocks[0..6].**.bias`."""
    return ".".join(f"{segment.name}{_index(segment.index)}" for segment in selector.segments)


def _within_statements(graph: Graph) -> Mapping[str, list[int]]:
    """Path of a statement -> the values within it (`h:1`, `h:2` of `h`), which have no path."""
    found: dict[str, list[int]] = {}
    for value in graph.values:
        inner = _INNER.fullmatch(value.path)
        if inner is not None:
            found.setdefault(inner[1], []).append(value.id)
    return found


def _index(index: str | int | tuple[int, int] | None) -> str:
    if index is None:
        return ""
    return f"[{index[0]}..{index[1]}]" if isinstance(index, tuple) else f"[{index}]"


def _report_nothing(graph: Graph, selector: ast.Selector, sink: Sink) -> None:
    written = selector.span.text
    names = [path for path in graph.declared if ":" not in path]
    below = written.partition(".")[2]
    rules = "paths begin in the model of `train`; values of `train` are `train.NAME`"
    help = f"did you mean `{below}`?" if below in names else offer(written, names, rules)
    sink.report("SH308", f"`{written}` matches nothing of the model", selector.span, help=help)
