"""Selectors: what they cover and which is more specific."""

from __future__ import annotations

import pytest

from shardlang.check.selectors import select, specificity
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from tests.check.checked import checked, net

PROGRAM = net(
    "h = x |> blocks\nreturn norm(h)", "layer blocks[3] = Linear(d, d)\nlayer norm = Linear(d, d, bias = false)"
)


def selectors(*texts: str) -> list[ast.Selector]:
    sink = Sink()
    file = parse(Source("s.shard", f"strategy s {{\n  at {', '.join(texts)}: recompute\n}}\n"), sink)
    assert not sink.failed
    (strategy,) = file.items
    assert isinstance(strategy, ast.Strategy)
    (rule,) = strategy.rules
    assert isinstance(rule, ast.At)
    return list(rule.selectors)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blocks[1]", ["blocks[1].bias", "blocks[1].weight"]),
        ("blocks[0..2].weight", ["blocks[0].weight", "blocks[1].weight"]),
        ("blocks[*].bias", ["blocks[0].bias", "blocks[1].bias", "blocks[2].bias"]),
        ("**.bias", ["blocks[0].bias", "blocks[1].bias", "blocks[2].bias"]),
        ("*orm.weight", ["norm.weight"]),
        ("norm", ["norm.weight"]),
    ],
)
def test_what_a_selector_covers(text: str, expected: list[str]) -> None:
    graph, sink = checked(PROGRAM).graph, Sink()
    scope = select(graph, selectors(text), sink)
    params = [graph.values[v].path for v in graph.params]
    assert sorted(p for p, v in zip(params, graph.params, strict=True) if v in scope.values) == expected
    assert not sink.found


def test_a_statement_covers_the_operators_within_it() -> None:
    graph, sink = checked(net("h = relu(x) + norm(x)\nreturn h", "layer norm = Linear(d, d)")).graph, Sink()
    paths = {graph.values[v].path for v in select(graph, selectors("h"), sink).values}
    assert paths == {"h", "h:1"}
    paths = {graph.values[v].path for v in select(graph, selectors("norm"), sink).values}
    assert paths == {"norm.weight", "norm.bias", "norm.return", "norm.return:1"}
    assert {graph.values[v].path for v in select(graph, selectors("h"), sink).named} == {"h"}


def test_removed_members_match_and_unknown_ones_do_not() -> None:
    graph, sink = checked(PROGRAM).graph, Sink()
    select(graph, selectors("norm.bias"), sink)
    assert not sink.found
    select(graph, selectors("norm.wieght"), sink)
    assert [d.help for d in sink.found] == [("did you mean `norm.weight`?",)]


def test_more_exact_names_then_fewer_stars() -> None:
    order = ["**", "**.weight", "*.weight", "blocks[*].weight", "blocks[1].weight"]
    ranks = [specificity(s) for s in selectors(*order)]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
