"""A strategy and the text of rules -> the strategy with these in place of its own of their kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shardlang.check.selectors import text as selector_text
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.graph.graph import Graph
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse, parse_rules

_INDEX = re.compile(r"\[[\d-]+\]")


def rules_of(text: str, name: str = "the alternative") -> tuple[ast.Rule, ...]:
    """The rules of a text that shardc wrote. `name`: of the text, in spans."""
    rules = parse_rules(name, text)
    if rules is None:
        raise InternalError(f"`{text}` is no rule")
    return rules


def instead(strategy: ast.Strategy | None, text: str) -> ast.Strategy:
    """strategy: None for one that says nothing. Rules stand in place of all of their kind, those of
    an `at` in place of those of the same selector."""
    strategy = strategy or parse(Source("the alternative", "strategy offered {}\n"), Sink()).strategies[0]
    kept, rules = list(strategy.rules), rules_of(text)
    for rule in rules:
        if isinstance(rule, ast.At):
            kinds = tuple(map(type, rule.rules))
            for selector in rule.selectors:
                kept = without(kept, kinds, selector_text(selector))
        else:
            kept = [other for other in kept if type(other) is not type(rule)]
    return replace(strategy, rules=(*kept, *rules))


def without(rules: Sequence[ast.Rule], kinds: tuple[type, ...], selector: str = "") -> list[ast.Rule]:
    """The rules less those of some kinds; with a selector less those of just this selector."""
    kept: list[ast.Rule] = []
    for rule in rules:
        if not isinstance(rule, ast.At):
            kept += [rule] if selector or not isinstance(rule, kinds) else []
            continue
        here = [s for s in rule.selectors if not selector or selector_text(s) == selector]
        there = tuple(s for s in rule.selectors if s not in here)
        rest = tuple(inner for inner in rule.rules if not isinstance(inner, kinds))
        if not here or len(rest) == len(rule.rules):
            kept.append(rule)
            continue
        kept += [replace(rule, selectors=tuple(here), rules=rest)] if rest else []
        kept += [replace(rule, selectors=there)] if there else []
    return kept


def layers_of(graph: Graph) -> list[str]:
    """The outermost arrays of layers as selectors name them, `blocks[*]`."""
    arrays = dict.fromkeys(_INDEX.sub("[*]", call.path) for call in graph.calls if call.path.endswith("]"))
    return [a for a in arrays if not any(a.startswith(f"{b}.") for b in arrays)]


def summed_over(plan: Plan) -> tuple[str, ...]:
    """The axes along which the gradients of most parameters are summed."""
    counts = Counter(plan.meshes[p.stored.mesh].ranked(p.reduce_axes) for p in plan.params.values())
    return next((axes for axes, _ in counts.most_common() if axes), ())
