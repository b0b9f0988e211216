"""`stages over pp balanced`: layers cut into contiguous stages, the largest as small as can be.

The cost of an operator is counted in multiply-adds, forward and backward; hardware and layouts do
not enter, so the same model always gives the same stages. Whether values then flow forward only is
looked after here; how stages that the user writes are read is stages.py's."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.internal import SENT
from shardlang.paths import patterns
from shardlang.paths.patterns import SingleLayers
from shardlang.plan.pipeline.rules import StageRule
from shardlang.plan.pipeline.stages import StageAssignment, ancestors, enclosing


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of an operator or a stage: forward, backward to inputs, backward to parameters."""

    forward: int = 0
    inputs: int = 0
    parameters: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forward + other.forward, self.inputs + other.inputs, self.parameters + other.parameters)

    def times(self, count: int) -> Cost:
        """The work of so many such operators."""
        return Cost(self.forward * count, self.inputs * count, self.parameters * count)

    @property
    def total(self) -> int:
        return self.forward + self.inputs + self.parameters


def cost(graph: Graph, op: Op) -> Cost:
    """Multiply-adds times two, or elements without products; as much again for each gradient."""
    if op.operator in SENT:
        return Cost()
    tensors = [graph.values[v] for v in (*op.operands, *op.results)]
    products, given = REGISTRY[op.operator].flops(op.rule, op.attrs), len(op.operands)
    forward = products or max([t.type.elements for t in tensors if t.kind is not Kind.PARAM])
    if op.section != "loss" or not any([t.gradient for t in tensors[given:]]):
        return Cost(forward)
    kinds = [t.kind for t in tensors[:given] if t.gradient]
    parameters = kinds.count(Kind.PARAM)
    return Cost(forward, forward * (len(kinds) - parameters), forward * parameters)


def balance(graph: Graph, rule: StageRule, sink: Sink) -> list[StageAssignment | None]:
    """Per operator its stage and layer; reports SH425 where there are too few layers."""
    count = rule.count or 1
    units, groups = parts(graph, count)
    starts = stage_starts(graph, units, groups, count)
    if not starts:
        _report_few(groups, sum(map(_layers, groups)), rule, sink)
        return [None] * len(graph.ops)
    _require_cuts([(groups[at][0], turn) for at, turn in starts if turn])
    stage_of = {unit: bisect_right(starts, (at, 0)) - 1 for at, group in enumerate(groups) for unit in group}
    return [None if u is None else StageAssignment(stage_of[u], u, rule.span) for u in units]


def stage_starts(
    graph: Graph, units: Sequence[str | None], groups: list[list[str]], count: int
) -> list[tuple[int, int]]:
    """Where each of `count` stages begins: the number of its first group, and how many layers of
    that, if it is a run, are in the stage before; none where there are fewer layers than stages.
    units, groups: of `parts`."""
    layers = [(at, turn) for at, group in enumerate(groups) for turn in range(_layers(group))]
    if len(layers) < count:
        return []
    weights = _weights(graph, units, groups)
    return [layers[part.start] for part in cut([weights[at] for at, _ in layers], count)]


def _layers(group: Sequence[str]) -> int:
    """How many layers a group is that can be cut apart: those of a run."""
    times = max(map(patterns.count, group))
    if times > 1 and (len(group) > 1 or not group[0].endswith("]")):
        raise SingleLayers
    return times


def _require_cuts(inside: Sequence[tuple[str, int]]) -> None:
    """SingleLayers where a stage begins within a run: with so many of its layers before."""
    cuts: dict[str, frozenset[int]] = {}
    for run, turn in inside:
        array, _, numbers = run[:-1].rpartition("[")
        cuts[array] = cuts.get(array, frozenset()) | {patterns.indexes(numbers).start + turn}
    if cuts:
        raise SingleLayers(cuts)


def parts(graph: Graph, count: int) -> tuple[list[str | None], list[list[str]]]:
    """The layers of which `count` stages are made: per operator its own, and all in order, those
    together that are never cut."""
    units = _units(graph, count)
    return units, _forward_only(graph, units, list(dict.fromkeys(u for u in units if u is not None)))


def _units(graph: Graph, count: int) -> list[str | None]:
    """Per operator the layer that is not divided further: an element of an array, or a layer
    without arrays; finer where that gives too few."""
    layers = [enclosing(op) for op in graph.ops]
    chains = {layer: ancestors(layer) for layer in layers}
    elements = {a for chain in chains.values() for a in chain if a.endswith("]")}
    divided = {a for chain in chains.values() for i, a in enumerate(chain) if not elements.isdisjoint(chain[i + 1 :])}
    while True:
        units = {layer: next((a for a in chain if a not in divided), None) for layer, chain in chains.items()}
        finer = {unit for layer, unit in units.items() if unit is not None and unit != layer}
        if sum(patterns.count(unit) for unit in {*units.values()} if unit is not None) >= count or not finer:
            return [units[layer] for layer in layers]
        divided |= finer


def _forward_only(graph: Graph, units: Sequence[str | None], order: list[str]) -> list[list[str]]:
    """The layers in order, those together between which values flow both ways."""
    place = {unit: i for i, unit in enumerate(order)}
    at: list[int] = []
    joined = list(range(len(order)))  # the first layer that this and those between must be in a stage with
    for op, unit in zip(graph.ops, units, strict=True):
        before = [at[p] for v in op.operands if (p := graph.producers.get(v)) is not None]
        latest = max(before, default=-1)
        here = latest if unit is None else place[unit]
        if latest > here:
            joined[latest] = min(joined[latest], here)
        at.append(here)
    groups: list[list[str]] = []
    firsts = list(accumulate(reversed(joined), min))[::-1]
    for i, (unit, first) in enumerate(zip(order, firsts, strict=True)):
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
        before = [at[p] for v in op.operands if (p := graph.producers.get(v)) is not None] if unit is None else []
        at.append(group[unit] if unit is not None else max(before, default=0))
        weights[at[-1]] += cost(graph, op).total
    return weights


def cut(weights: Sequence[int], count: int) -> list[range]:
    """`weights` in `count` contiguous parts, none empty: the largest least, then the sum of squares
    least.

    Where several cuts are as good, the last part is the smallest that it can be, then the one
    before it, and so on."""
    sums = [0, *accumulate(weights)]
    low, most = max(weights), sums[-1]
    while low < most:
        middle = (low + most) // 2
        low, most = (low, middle) if _latest(sums, count, middle)[-1] == len(weights) else (middle + 1, most)
    turned = _latest([sums[-1] - s for s in reversed(sums)], count, most)
    earliest = [len(weights) - end for end in reversed(turned)]
    ends = _evenest(sums, most, list(zip(earliest, _latest(sums, count, most), strict=True)))
    return [range(a, b) for a, b in pairwise(ends)]


def _latest(sums: Sequence[int], count: int, most: int) -> list[int]:
    """The last possible end of each of `count` parts (0 first), none over `most` or empty."""
    ends = [0]
    for left in reversed(range(count)):
        ends.append(min(bisect_right(sums, sums[ends[-1]] + most), len(sums) - left) - 1)
    return ends


def _evenest(sums: Sequence[int], most: int, windows: Sequence[tuple[int, int]]) -> list[int]:
    """Where parts of at most `most` end so that the sum of their squares is least; each end is in
    its window.

    Squares of sums are a Monge array: the later a part ends, the later it begins best. So the best
    begin of the middle end bounds those of the ends on both sides of it, and a part takes n log n.
    """
    best, begins = {0: 0}, []
    for starts, (first, last) in pairwise(windows):
        now: dict[int, int] = {}
        chosen: dict[int, int] = {}
        waiting = [(first, last, *starts)]
        while waiting:
            first, last, low, high = waiting.pop()
            end = (first + last) // 2
            fits = range(max(low, bisect_left(sums, sums[end] - most)), min(high, end - 1) + 1)
            now[end], negative = min((best[start] + (sums[end] - sums[start]) ** 2, -start) for start in fits)
            chosen[end] = -negative
            waiting += [(first, end - 1, low, chosen[end])] * (first < end)
            waiting += [(end + 1, last, chosen[end], high)] * (end < last)
        best = now
        begins.append(chosen)
    ends = [len(sums) - 1]
    for chosen in reversed(begins):
        ends.append(chosen[ends[-1]])
    return ends[::-1]


def _report_few(groups: list[list[str]], n: int, rule: StageRule, sink: Sink) -> None:
    what = "1 layer" if n == 1 else f"{n} layers"
    together = max(groups, key=len, default=[])
    why = f"; values flow both ways between `{together[0]}` and `{together[-1]}`" if len(together) > 1 else ""
    size = f"`{rule.axis}` = {rule.coordinates}" + (f", virtual = {rule.virtual}" if rule.virtual > 1 else "")
    fact = f"{what} cannot fill {rule.count} stages ({size}){why}"
    sink.report(
        "SH425", fact if n else f"there is no layer, and {rule.count} stages ({size}) need one each", rule.span, "",
        help=f"at most {n} stages would fit" if n > 1 else "stages are made of layers: `layer name = Model(...)`",
    )  # fmt: skip
