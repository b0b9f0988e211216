"""Rules of strategies as syntax trees that nobody wrote, each with the text that stands for it.

A node's span is of a text of its own, so a strategy of written and of found rules prints in one
way: rule by rule, each by the text of its span."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.plan.strategy.instead import rules_of
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast

_SEGMENT = re.compile(r"([^.\[\]]+)(?:\[([^\]]*)\])?")


# The name of the source of what nobody wrote; no file that is read has it.
FOUND = "<found>"


def _span(text: str) -> Span:
    return Span(Source(FOUND, text), 0, len(text))


def name(text: str) -> ast.Name:
    return ast.Name(text, span=_span(text))


def number(value: int, text: str = "", unit: str = "") -> ast.Number:
    written = text or str(value)
    return ast.Number(written, value, unit, span=_span(written))


def _names(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def mesh(axes: Sequence[tuple[str, int]]) -> ast.Mesh:
    """`mesh pp = 2, dp = 4`."""
    made = tuple(ast.MeshAxis(name(axis), number(size), span=_span(f"{axis} = {size}")) for axis, size in axes)
    return ast.Mesh(made, span=_span(f"mesh {', '.join(axis.span.text for axis in made)}"))


def split(dims: Sequence[str], uses: Sequence[tuple[str, bool]], uneven: bool) -> ast.Split:
    """`split heads, ffn over (cp, tp?)`; uses: an axis, and whether it yields."""
    paths = tuple(ast.DimPath(tuple(map(name, dim.split("."))), span=_span(dim)) for dim in dims)
    texts = [axis + "?" * yields for axis, yields in uses]
    named = zip(uses, texts, strict=True)
    made = tuple(ast.AxisUse(name(axis), yields, span=_span(text)) for (axis, yields), text in named)
    text = f"split {', '.join(dims)} over {_names(texts)}{' uneven' * uneven}"
    return ast.Split(paths, made, uneven, None, span=_span(text))


def balanced(axis: str, virtual: int) -> ast.Stages:
    """`stages over pp balanced, virtual = 2`."""
    text = f"stages over {axis} balanced" + (f", virtual = {virtual}" if virtual > 1 else "")
    return ast.Stages(name(axis), True, number(virtual) if virtual > 1 else None, (), span=_span(text))


def microbatches(count: int) -> ast.Microbatches:
    return ast.Microbatches(number(count), span=_span(f"microbatches {count}"))


def schedule(text: str) -> ast.Schedule:
    written = f'"{text}"'
    return ast.Schedule(ast.String(text, span=_span(written)), span=_span(f"schedule {written}"))


def zero(level: int, axes: Sequence[str], keep: bool) -> ast.Zero:
    """`zero 3 over (dp, cp), keep`."""
    text = f"zero {level} over {_names(axes)}{', keep' * keep}"
    return ast.Zero(number(level), tuple(map(name, axes)), name("keep") if keep else None, span=_span(text))


def bucket(megabytes: int) -> ast.Bucket:
    written = f"{megabytes}MB"
    size = number(megabytes * 1_000_000, written, "MB")
    return ast.Bucket(size, span=_span(f"bucket gradients {written}"))


def recompute(what: str) -> ast.Recompute:
    text = f"recompute {what}".rstrip()
    return ast.Recompute(tuple(map(name, what.split())), span=_span(text))


def on_host() -> ast.Place:
    return ast.Place(name("host"), span=_span("place on host"))


def at(paths: Sequence[str], rule: ast.Narrow) -> ast.At:
    """`at blocks[0..12], head: recompute`."""
    return at_selectors(tuple(map(selector, paths)), (rule,))


def at_selectors(selectors: tuple[ast.Selector, ...], rules: Sequence[ast.Rule]) -> ast.At:
    """`at` as somebody wrote it, with other rules."""
    where = ", ".join(" ".join(selector.span.text.split()) for selector in selectors)
    texts = [rule.span.text for rule in rules]
    text = f"at {where}: {texts[0]}" if len(texts) == 1 else "\n".join([f"at {where} {{", *texts, "}"])
    return ast.At(selectors, tuple(rules), span=_span(text))


def pins(of: Sequence[tuple[str, str]]) -> list[ast.Rule]:
    """`at a, b: [batch@dp, d@tp]` for each layout of these paths."""
    by_layout: dict[str, list[str]] = {}
    for path, layout in of:
        by_layout.setdefault(layout, []).append(path)
    found: list[ast.Rule] = []
    for layout, paths in by_layout.items():
        text = f"at {', '.join(paths)}: {layout}"
        found += rules_of(text, FOUND)
    return found


def selector(path: str) -> ast.Selector:
    """`encoder.blocks[0..6]`."""
    segments = tuple(ast.Segment(match[1], _index(match[2]), span=_span(match[0])) for match in _SEGMENT.finditer(path))
    return ast.Selector(segments, span=_span(path))


def _index(text: str | None) -> str | int | tuple[int, int] | None:
    if text is None or text == "*":
        return text
    first, dots, last = text.partition("..")
    return (int(first), int(last)) if dots else int(first)


def strategy(title: str, rules: Sequence[ast.Rule]) -> ast.Strategy:
    """The strategy of these rules, a line for each."""
    text = "\n".join([f"strategy {title} {{", *(rule.span.text for rule in rules), "}"])
    return ast.Strategy(name(title), tuple(rules), span=_span(text))
