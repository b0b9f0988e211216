"""`stages over pp balanced`: layers cut into contiguous stages, the largest as small as can be.

What an operator costs is counted in multiply-adds, forward and backward; hardware and layouts do not enter, so the
same model always gives the same stages. Whether values then flow forward only is looked after here; how stages that
the user writes are read is stages.py's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.internal import SENT
from shardlang.plan.mesh_sizes import either
from shardlang.plan.stage_rules import StageRule
from shardlang.plan.stages import Named, ancestors, enclosing
from shardlang.records import dataclass

_ELEMENT = re.compile(r"\[\d+\]$")


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of an operator or a stage: forward, backward to the inputs, backward to the parameters."""

    forward: int = 0
    inputs: int = 0
    parameters: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forward + other.forward, self.inputs + other.inputs, self.parameters + other.parameters)

    @property
    def total(self) -> int:
        return self.forward + self.inputs + self.parameters


def cost(graph: Graph, op: Op) -> Cost:
    """Multiply-adds times two, or elements where an operator multiplies nothing; as much again for each gradient."""
    if op.operator in SENT:
        return Cost()
    tensors = [graph.values[v] for v in (*op.operands, *op.results)]
    elements = max(t.type.elements for t in tensors if t.kind is not Kind.PARAM)
    forward = REGISTRY[op.operator].flops(op.rule) or elements
    if op.section != "loss" or not any(graph.values[v].gradient for v in op.results):
        return Cost(forward)
    kinds = [graph.values[v].kind for v in op.operands if graph.values[v].gradient]
    parameters = sum(k is Kind.PARAM for k in kinds)
    return Cost(forward, forward * (len(kinds) - parameters), forward * parameters)


def balance(graph: Graph, rule: StageRule, sink: Sink) -> list[Named | None]:
    """Per operator its stage and layer; reports SH425 where there are too few layers."""
    count = rule.count or 1
    units = _units(graph, count)
    order = list(dict.fromkeys(u for u in units if u is not None))
    groups = _forward_only(graph, units, order)
    if len(groups) < count or not _repeats_divide(order, rule, sink):
        if len(groups) < count:
            _report_few(groups, order, rule, sink)
        return [None] * len(graph.ops)
    weights = _weights(graph, units, groups)
    stage_of = {u: s for s, part in enumerate(cut(weights, count)) for at in part for u in groups[at]}
    return [None if u is None else Named(stage_of[u], u, rule.span) for u in units]


def _units(graph: Graph, count: int) -> list[str | None]:
    """Per operator the layer that is not divided further: an element of an array, or a layer without arrays; finer
    where that gives too few.
    """
    chains = [ancestors(enclosing(op)) for op in graph.ops]
    divided = {a for chain in chains for i, a in enumerate(chain) if any(_ELEMENT.search(b) for b in chain[i + 1 :])}
    while True:
        units = [next((a for a in chain if a not in divided), None) for chain in chains]
        finer = {u for u, chain in zip(units, chains, strict=True) if u is not None and chain[-1] != u}
        if len(set(units) - {None}) >= count or not finer:
            return units
        divided |= finer


def _forward_only(graph: Graph, units: Sequence[str | None], order: list[str]) -> list[list[str]]:
    """The layers in order, those together between which values flow both ways."""
    place = {unit: i for i, unit in enumerate(order)}
    at: list[int] = []
    joined = list(range(len(order)))  # the first layer that must be in the same stage
    for op, unit in zip(graph.ops, units, strict=True):
        before = [at[p] for v in op.operands if (p := graph.producers.get(v)) is not None]
        latest = max(before, default=-1)
        here = latest if unit is None else place[unit]
        for later in range(here + 1, latest + 1):
            joined[later] = min(joined[later], here)
        at.append(here)
    groups: list[list[str]] = []
    for i, unit in enumerate(order):
        first = min(joined[i:], default=i)
        if groups and first < i:
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return groups


def _weights(graph: Graph, units: Sequence[str | None], groups: list[list[str]]) -> list[int]:
    """Work of each group; an operator outside of all layers counts where its last input is."""
    group = {u: i for i, us in enumerate(groups) for u in us}
    weights = [0] * len(groups)
    at: list[int] = []
    for op, unit in zip(graph.ops, units, strict=True):
        before = [at[p] for v in op.operands if (p := graph.producers.get(v)) is not None]
        at.append(group[unit] if unit is not None else max(before, default=0))
        weights[at[-1]] += cost(graph, op).total
    return weights


def cut(weights: Sequence[int], count: int) -> list[range]:
    """`weights` in `count` contiguous parts, none empty: the largest least, then the sum of squares least."""
    sums = [0, *accumulate(weights)]
    most = _least(sums, count, None)[0]
    starts = _least(sums, count, most)[1]
    return [range(a, b) for a, b in zip(starts, (*starts[1:], len(weights)), strict=True)]


def _least(sums: list[int], count: int, bound: int | None) -> tuple[int, tuple[int, ...]]:
    """The least largest part (or, with `bound` on every part, sum of squares) and where its parts begin."""
    n = len(sums) - 1
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, ())] + [None] * n
    for part in range(1, count + 1):
        now: list[tuple[int, tuple[int, ...]] | None] = [None] * (n + 1)
        for end in range(part, n - (count - part) + 1):
            for start in range(end - 1, part - 2, -1):
                size, old = sums[end] - sums[start], best[start]
                if bound is not None and size > bound:
                    break
                if old is None:
                    continue
                total = max(old[0], size) if bound is None else old[0] + size * size
                known = now[end]
                if known is None or total < known[0]:
                    now[end] = total, (*old[1], start)
        best = now
    found = best[n]
    assert found is not None
    return found


def _report_few(groups: list[list[str]], order: list[str], rule: StageRule, sink: Sink) -> None:
    n = len(groups)
    what = "1 layer" if n == 1 else f"{n} layers" if n else "no layer"
    together = max(groups, key=len, default=[])
    why = f"; values flow both ways between `{together[0]}` and `{together[-1]}`" if len(together) > 1 else ""
    size = f"`{rule.axis}` = {rule.coordinates}" + (f", virtual = {rule.virtual}" if rule.virtual > 1 else "")
    sink.report(
        "SH425", f"{what} cannot fill {rule.count} stages ({size}){why}", rule.span, "",
        help=f"at most {n} stages would fit" if n > 1 else "stages are made of layers: `layer name = Model(...)`",
    )  # fmt: skip


def _repeats_divide(order: list[str], rule: StageRule, sink: Sink) -> bool:
    """With several stages a coordinate every one is to be alike: the repeated layers must divide."""
    repeated = [u for u in order if _ELEMENT.search(u)]
    count = rule.count or 1
    if rule.virtual == 1 or len(repeated) < count or len(repeated) % count == 0:
        return True
    n, low = len(repeated), len(repeated) // count * count
    fits = [1] + [v for v in range(2, n + 1) if n % (v * (rule.coordinates or 1)) == 0]
    names = "`, `".join(dict.fromkeys(_ELEMENT.sub("", u) for u in repeated))
    offers = [f"{either([x for x in (low, low + count) if x])} layers would divide"]
    offers += [f"or `virtual` could be {either(fits)}" if fits[1:] else "or take `virtual` out: one stage a coordinate"]
    sink.report(
        "SH425", f"{n} layers `{names}` do not divide over {count} stages (`{rule.axis}` = {rule.coordinates}, "
        f"virtual = {rule.virtual})",
        rule.virtual_span or rule.span, "", help=[*offers, "or write the stages out: `0: ...`"],
    )  # fmt: skip
    return False
