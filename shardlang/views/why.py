"""A plan and the name of a value or a layer -> the reasons for its layout, as plain data
(`shardc why --json`): what decided, how it is made and read, and what else it could be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shardlang.check.selectors import select
from shardlang.check.selectors import text as selector_text
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.traffic import conversion_bytes, sent
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.hints.nearest import offer
from shardlang.ops.rule import Split
from shardlang.paths.runs import called, in_runs
from shardlang.plan.demand import ResolvedStrategy
from shardlang.plan.plan import Plan
from shardlang.plan.resolve import resolve
from shardlang.plan.strategy.instead import rules_of, without
from shardlang.syntax import ast
from shardlang.types.layout import Layout
from shardlang.views import layers
from shardlang.views.alternatives import Entry, StrategyCase, head, place
from shardlang.views.values import forms, written
from shardlang.views.waits import Waits

# The name of the model's result.
RESULT = "return"
_PATH = re.compile(r"(?:\w+(?:\[\d+\])?\.)+(\w+)")


def why(asked: StrategyCase, name: str, sink: Sink) -> Entry | None:
    """The answer for a value, several alike, or a layer; None after reporting that nothing has the
    name."""
    graph = asked.plan.graph
    found = _named(graph, name, sink)
    if found is None:
        return None
    selector, values, whole = found
    resolved = resolve(asked.program, asked.strategy, asked.plan.ranks, Sink())
    assert resolved is not None
    layouts = {asked.plan.produced.get(value) for value in values}
    if whole or len(layouts) > 1:
        return _layer(asked, resolved, name, values)
    first = values[0]
    return {
        **head(asked), "kind": "value", "name": name, "values": in_runs(called(graph.values[v].path) for v in values),
        **_made(asked.plan, first),
        "decided": decided(resolved, graph, first, asked.plan),
        "read": list(_reads(asked.plan, first)),
        "sent": list(_sent(asked, first)),
        "alternatives": _alternatives(asked, selector, first),
    }  # fmt: skip


def _named(graph: Graph, name: str, sink: Sink) -> tuple[ast.Selector, list[int], bool] | None:
    """The selector that a name is, the values that it names, or those of the layers that it names,
    and whether it names layers."""
    for text in (name, f"train.{name}"):
        selector = _selector(text)
        scope = select(graph, [selector], Sink()) if selector is not None else None
        if selector is not None and scope is not None and scope.values:
            return selector, sorted(scope.named or scope.values), not scope.named
    names = dict.fromkeys(called(path) for path in (*graph.addresses, *graph.declared))
    otherwise = "name a value as the plan does (`shardc plan`), a layer, or `mesh`, `stages`, `zero` or `recompute`"
    sink.report("SH308", f"`{name}` matches nothing of the model", None, help=offer(name, names, otherwise))
    return None


def _selector(text: str) -> ast.Selector | None:
    """The selector that a text is; None for what is none. The model's result can be asked for, and
    no rule can name it."""
    from shardlang.sources.source import Source, Span
    from shardlang.syntax.parse import parse_rules

    if text == RESULT:
        span = Span(Source("why", text), 0, len(text))
        return ast.Selector((ast.Segment(text, None, span=span),), span=span)

    rules = parse_rules("why", f"at {text}: recompute") or ()
    if len(rules) != 1 or not isinstance(rules[0], ast.At) or len(rules[0].selectors) != 1:
        return None
    return rules[0].selectors[0]


def _layer(asked: StrategyCase, resolved: ResolvedStrategy, name: str, values: Sequence[int]) -> Entry:
    """The answer for a layer, or for values of one name that are laid out in different ways."""
    plan = asked.plan
    reasons = {value: decided(resolved, plan.graph, value, plan) for value in values if value in plan.produced}
    return {
        **head(asked), "kind": "layer", "name": name, "values": layers.rows(plan, reasons),
        "decided": layers.decided_by(reasons),
        "takes": layers.takes(asked, values),
        "sent": layers.sends(plan, values),
        "alternatives": sorted(layers.others(asked, name, values), key=_order),
    }  # fmt: skip


def _made(plan: Plan, value: int) -> Entry:
    """The statement that makes a value, and the layout in which it does."""
    op, it = plan.graph.producers.get(value), plan.graph.values[value]
    span = plan.graph.ops[op].statement or plan.graph.ops[op].span if op is not None else it.span
    return {"made": place(span), "layout": forms(plan)[called(it.path)].made, "kind_of": it.kind.value}


def decided(resolved: ResolvedStrategy, graph: Graph, value: int, plan: Plan) -> Entry:
    """The kind of rule that decided, with the rules: `reader` for what is stored as it is read,
    `propagated` where no rule speaks of it, `alone` on one rank."""
    if plan.ranks == 1 or not resolved.name:
        return {"by": "alone", "rules": []}
    op = graph.producers.get(value)
    zero = [place(resolved.zero[value].span)] if value in resolved.zero else []
    demand = resolved.demands.get(op) if op is not None else None
    if op is not None:
        rules = [place(span) for span in demand.spans or (demand.span,)] if demand is not None else []
        return {"by": demand.chosen if demand is not None else "propagated", "rules": rules}
    if value in resolved.pinned:
        return {"by": "pin", "rules": [place(resolved.pinned[value]), *zero]}
    readers = [d for d in (resolved.demands.get(op.id) for op in graph.ops if value in op.operands) if d is not None]
    spans = dict.fromkeys(span for d in readers for span in d.spans or (d.span,))
    return {"by": "reader", "rules": [*(place(span) for span in spans), *zero]}


def _reads(plan: Plan, value: int) -> Iterator[Entry]:
    """The forms in which operators read a value, each with their results' names."""
    found: dict[str, dict[str, None]] = {}
    for planned in plan.ops:
        for use in planned.operands:
            if use.value == value:
                by = called(plan.graph.values[plan.graph.ops[planned.op].results[0]].path)
                found.setdefault(written(plan, value, use.layout), {})[by] = None
    return ({"layout": layout, "by": in_runs(by)} for layout, by in found.items())


def _sent(asked: StrategyCase, value: int) -> Iterator[Entry]:
    """The collectives of a value: conversions, and what the operator that makes it sends itself.
    Those of parameters, in buckets with others, have no seconds of their own."""
    plan = asked.plan
    sizes, waits = conversion_bytes(plan), Waits(plan, asked.hardware) if asked.hardware is not None else None
    for c in plan.conversions:
        if c.value == value and any(sizes[c.id]):
            by = c.move.kind.collectives
            axes = plan.meshes[c.to.mesh].ranked(c.move.axes)
            seconds = waits.conversion(c.id) if waits is not None else None
            yield layers.collective(by, axes, written(plan, value, c.to), sizes[c.id], seconds)
    op = plan.graph.producers.get(value)
    if op is not None:
        for factor, over, *both in plan.ops[op].inside:
            kind = plan.graph.ops[op].rule.factors[factor].collective
            seconds = waits.operator(op) if waits is not None and len(plan.ops[op].inside) == 1 else None
            yield layers.collective((kind, kind), over, None, (both[0], both[1]), seconds)
    path = plan.graph.values[value].path
    for each in sent(plan):
        if each.path == path and each.what != "values" and each.axes:
            yield layers.collective(each.collectives, each.axes, None, (each.forward_bytes, each.backward_bytes))


# --- alternatives ---


def _alternatives(asked: StrategyCase, selector: ast.Selector, value: int) -> list[Entry]:
    """Each other way in which one axis could lie on the value, all else being laid out by the same
    rules; the one that sends least is the first."""
    plan = asked.plan
    if selector_text(selector) == RESULT or asked.strategy is None:
        return []
    if plan.graph.values[value].kind is Kind.CONSTANT or plan.ranks == 1:
        return []
    rules = without(asked.rules, (ast.Pin, ast.Shard), selector_text(selector))
    if not any(isinstance(rule, ast.Mesh) for rule in rules):
        axes = plan.meshes[0].timeless.axes
        mesh = ", ".join(f"{axis.name} = {axis.size}" for axis in axes)
        rules = [*rules_of(f"mesh {mesh}"), *rules] if len(plan.meshes) == 1 and axes else []
    pins = [f"at {selector_text(selector)}: {text}" for text in (_pins(asked, value) if rules else ())]
    return sorted((asked.instead(text, [*rules, *rules_of(text)]) for text in pins), key=_order)


def _order(one: Entry) -> tuple[bool, float, int, int]:
    """Those that are refused last, in the order in which they are found."""
    return one["sent_bytes"] is None, one["step_s"] or 0, one["sent_bytes"] or 0, one["peak_bytes"] or 0


def _pins(asked: StrategyCase, value: int) -> Iterator[str]:
    """The layouts in which one axis lies elsewhere, as pins: on each other dim, on none, pending
    where the operator sums."""
    plan = asked.plan
    now, it = plan.produced[value], plan.graph.values[value]
    mesh = plan.meshes[now.mesh]
    timeless = {axis.name for axis in mesh.timeless.axes}
    dims = tuple(tuple(a for a in axes if a in timeless) for axes in now.dims)
    op = plan.graph.producers.get(value)
    sums = op is not None and _sums(plan.graph.ops[op])
    marks = it.kind is Kind.RESULT
    pending = tuple(a for a in now.pending if a in timeless) if marks else ()
    replicated = tuple(a for a in now.replicated if a in timeless) if marks else ()
    known = {Layout(dims, pending, replicated, now.mesh)}
    for axis in mesh.timeless.axes:
        bare = [tuple(a for a in axes if a != axis.name) for axes in dims]
        others = tuple(a for a in pending if a != axis.name), tuple(a for a in replicated if a != axis.name)
        ways = [(tuple((*axes, axis.name) if at == dim else axes for at, axes in enumerate(bare)), *others)
                for dim in range(len(bare))]  # fmt: skip
        ways.append((tuple(bare), *others))
        if sums:
            ways.append((tuple(bare), (*others[0], axis.name), others[1]))
        for way in ways:
            layout = Layout(*way, mesh=now.mesh)
            if layout not in known and Layout(*way[:2], mesh=now.mesh) != Layout(dims, pending, (), now.mesh):
                known.add(layout)
                yield _PATH.sub(r"\1", written(plan, value, layout))


def _sums(op: Op) -> bool:
    """Whether the result of an operator can be pending: it sums over a dim, or passes a sum on."""
    kept = {f for dims in op.rule.results for d in dims for f in d}
    summed = [f for f, x in enumerate(op.rule.factors) if f not in kept and x.split is Split.FREE and x.size > 1]
    return len(summed) == 1 or (not summed and bool(op.rule.through))
