"""`split vocab over mp sizes (4, 20, 8)`: from rules to the sizes of each dim's parts, and what
operators have of them.

A dim that is cut in as many parts as sizes are given has those, whatever axes cut it; cut otherwise
it has torch.chunk's. Dims that operators take for one (`relabel` makes one of another) have the
same sizes. Cutting is others' matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph
from shardlang.ops.python_text import tuple_text
from shardlang.plan.demand import Demand
from shardlang.plan.dim_factors import in_products, uneven_dims
from shardlang.plan.strategy.axis_sizes import evaluate
from shardlang.plan.strategy.dims_over_axes import Axes
from shardlang.plan.strategy.rules import SplitRule
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim
from shardlang.types.layout import PartSizes


def read_part_sizes(
    rules: Sequence[SplitRule], graph: Graph, axes: Axes, statics: Mapping[str, int | float], sink: Sink
) -> PartSizes:
    """The sizes of every dim that a rule lists; reports what is wrong (SH324, SH309)."""
    found: dict[Dim, tuple[tuple[int, ...], SplitRule]] = {}
    for rule in rules:
        sizes = _read(rule, axes, statics, sink) if rule.sizes is not None else None
        if sizes is None:
            continue
        for dim in uneven_dims(rule.dims, graph):
            before = found.setdefault(dim, (sizes, rule))
            if before[0] != sizes:
                _report_two(dim, before[1], rule, sink)
    _check_others(rules, found, axes, sink)
    return {dim: sizes for dim, (sizes, _) in found.items()}


def _read(rule: SplitRule, axes: Axes, statics: Mapping[str, int | float], sink: Sink) -> tuple[int, ...] | None:
    """The numbers of a rule, if they are sizes, as many as parts, and make up each of its dims."""
    assert rule.sizes is not None
    numbers = [_size(node, statics, sink) for node in rule.sizes]
    if None in numbers:
        return None
    sizes = tuple(n for n in numbers if n is not None)
    degree = axes.degree(rule.axes)
    if degree is not None and degree != len(sizes):
        _report_count(rule, sizes, degree, axes, sink)
        return None
    wrong = [(dim, span) for dim, span in rule.dims.items() if dim.size is not None and dim.size != sum(sizes)]
    for dim, span in wrong:
        _report_sum(rule, dim, span, sizes, sink)
    return None if wrong else sizes


def _size(node: ast.Expr, statics: Mapping[str, int | float], sink: Sink) -> int | None:
    value = evaluate(node, statics)
    if isinstance(value, int) and value >= 0:
        return value
    shown = "" if value is None or str(value) == node.span.text else f", which is {value},"
    fact = f"`{node.span.text}`{shown} is no size of a part"
    help = "write a number, a dim of the file, or an expression of them"
    sink.report("SH324", fact, node.span, "a whole number from 0 is needed", help=help)
    return None


def _report_count(rule: SplitRule, sizes: tuple[int, ...], degree: int, axes: Axes, sink: Sink) -> None:
    over = f"axis `{rule.axes[0]}`" if len(rule.axes) == 1 else f"axes `({', '.join(rule.axes)})`"
    sink.report(
        "SH324", f"{len(sizes)} size{'s' * (len(sizes) != 1)} for the {degree} parts over {over}", _place(rule), "",
        labels=[(axes.declared[a].span, f"`{a}` has {axes.declared[a].size} ranks") for a in rule.axes],
        help=f"give {degree} sizes, a part each",
    )  # fmt: skip


def _report_sum(rule: SplitRule, dim: Dim, span: Span, sizes: tuple[int, ...], sink: Sink) -> None:
    size = dim.size or 0
    last = size - sum(sizes[:-1])
    fit = f"`sizes {tuple_text((*sizes[:-1], last))}` would fit" if last >= 0 else f"they must sum to {size}"
    sink.report(
        "SH324", f"the sizes {tuple_text(sizes)} sum to {sum(sizes)}, and `{dim.name}` is {size}", _place(rule),
        f"{' + '.join(map(str, sizes))} = {sum(sizes)}", labels=[(span, f"`{dim.name}` is {size}")], help=fit,
    )  # fmt: skip


def _place(rule: SplitRule) -> Span:
    assert rule.sizes is not None
    return rule.sizes[0].span.to(rule.sizes[-1].span)


def _report_two(dim: Dim, one: SplitRule, other: SplitRule, sink: Sink) -> None:
    sink.report(
        "SH309", f"two rules cut `{dim.name}` in different sizes", other.span, "one rule",
        labels=[(one.span, "the other")], help="a dim has one list of sizes: keep one of them",
    )  # fmt: skip


def _check_others(
    rules: Sequence[SplitRule], found: Mapping[Dim, tuple[tuple[int, ...], SplitRule]], axes: Axes, sink: Sink
) -> None:
    """A rule without sizes that cuts such a dim in as many parts would mean others."""
    for rule in rules:
        for dim in rule.dims if rule.sizes is None else ():
            if dim in found and axes.degree(rule.axes) == len(found[dim][0]):
                _report_two(dim, found[dim][1], rule, sink)
                break


def check_products(demands: Mapping[int, Demand], graph: Graph, by_hand: PartSizes, sink: Sink) -> None:
    """Reports a pin or positional rule that cuts such a product (`split` leaves it whole)."""
    for number, demand in demands.items() if by_hand else ():
        op = graph.ops[number]
        for f in in_products(op, graph, by_hand):
            if demand.factors[f]:
                name = op.rule.factors[f].name
                fact = f"`{name}` has listed sizes, and here it is part of a product"
                label = f"`{op.called}` takes it with other dims as one"
                sink.report("SH324", fact, demand.span, label, help=f"leave `{name}` whole here")
