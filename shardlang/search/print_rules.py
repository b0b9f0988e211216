"""Texts of rules that nobody wrote -> rules of strategies as syntax trees.

A node's span is of a text of its own, so a strategy of written and of found rules prints in one
way: rule by rule, each by the text of its span."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from shardlang.plan.strategy.instead import rules_of
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast

# The name of the source of what nobody wrote; no file that is read has it.
FOUND = "<found>"


@lru_cache(maxsize=4096)
def rule(text: str) -> ast.Rule:
    """The rule of a text; points share most of theirs."""
    (found,) = rules_of(text, FOUND)
    return found


def _span(text: str) -> Span:
    return Span(Source(FOUND, text), 0, len(text))


def either(names: Sequence[str]) -> str:
    """`dp`, or `(dp, cp)`: the names behind `over`."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def split(dims: Sequence[str], uses: Sequence[tuple[str, bool]], uneven: bool) -> ast.Rule:
    """`split heads, ffn over (cp, tp?)`; uses: an axis, and whether it yields."""
    return rule(f"split {', '.join(dims)} over {either([axis + '?' * may for axis, may in uses])}{' uneven' * uneven}")


def at(paths: Sequence[str], inner: str) -> ast.Rule:
    """`at blocks[0..12], head: recompute`."""
    return rule(f"at {', '.join(paths)}: {inner}")


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
    return [at(paths, layout) for layout, paths in by_layout.items()]


def strategy(title: str, rules: Sequence[ast.Rule]) -> ast.Strategy:
    """The strategy of these rules, a line for each."""
    text = "\n".join([f"strategy {title} {{", *(rule.span.text for rule in rules), "}"])
    return ast.Strategy(ast.Name(title, span=_span(title)), tuple(rules), span=_span(text))
