"""A point of a deep program -> its plan without stages, which tells equal layers once: the work of
each layer and of what is around the layers, and the bytes of these.

A stage is a slice of it, and so is what its ranks keep: the number of layers is a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property

from shardlang.check.program import CheckedProgram
from shardlang.cost.items import class_of
from shardlang.cost.planned import work
from shardlang.cost.work import Segment
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.peak.step import step_peaks
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import SingleLayers, indexes
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.plan.reads import inputs
from shardlang.plan.rewrite.derived import rearranges
from shardlang.search.deep.memory import CoordinateMemory, MemoryEstimate, moments
from shardlang.search.fill_holes import filled
from shardlang.search.layers import ArrayOfLayers
from shardlang.search.space import Open, Point
from shardlang.step.parameters import all_held, held_bytes, local_bytes
from shardlang.step.saved_activations import saved_activations
from shardlang.syntax import ast

# Seconds of a processor for a plan, for one that differs from another in ZeRO alone, for the first
# on a mesh of so many axes, which finds all ways between layouts there, and for none.
A_PLAN, ALIKE, A_MESH, MANY, REFUSED = 30e-3, 12e-3, 100e-3, 3, 5e-3


def without_stages(of: Open) -> Open:
    """The strategy without stages, on the program with equal layers told once."""
    kept = [rule for rule in of.strategy.rules if not isinstance(rule, ast.Stages | ast.Schedule)]
    return Open(of.told, replace(of.strategy, rules=tuple(kept)), of.ranks, of.known)


@dataclass(frozen=True, eq=False)
class FlatPlan:
    """A microbatch of all layers on the ranks of one stage. forward, backward: the segments of each
    pass, one for each layer, both in the order of forward; begin: the place of the first layer."""

    plan: Plan
    array: ArrayOfLayers
    forward: Sequence[Segment]
    backward: Sequence[Segment]
    begin: int

    def stage(self, layers: Sequence[range], at: int) -> slice:
        """The place of a stage's segments; the first and the last have what is around the layers.
        layers: those of each stage."""
        begin = self.begin + layers[at].start if at else None
        return slice(begin, self.begin + layers[at].stop if at < len(layers) - 1 else None)

    @cached_property
    def middle(self) -> str:
        """The path of a layer between the ends, or of the run that it is in."""
        paths = (call.path[:-1].rpartition("[") for call in self.plan.graph.calls if call.path.endswith("]"))
        middle = self.array.count // 2
        index = next(index for array, _, index in paths if array == self.array.path and middle in indexes(index))
        return f"{self.array.path}[{index}]"

    @cached_property
    def params(self) -> tuple[list[int], list[int], list[int]]:
        """Parameters and states: those that are read first before the layers, of a layer between
        the ends, and of what comes after."""
        plan, seen, behind = self.plan, set[int](), False
        before, middle, after = list[int](), list[int](), list[int]()
        for value in (value for read in inputs(plan).values() for value, _ in read):
            if value in plan.params and value not in seen:
                seen.add(value)
                path = plan.graph.values[value].path
                inside = path.startswith(f"{self.array.path}[")
                behind = behind or inside
                if not inside:
                    (after if behind else before).append(value)
                elif path.startswith(f"{self.middle}."):
                    middle.append(value)
        return before, middle, after

    @cached_property
    def kept(self) -> tuple[int, int]:
        """Bytes that a microbatch keeps for a layer and for the ends."""
        saved = saved_activations(self.plan)
        layer = sum(size for path, size, stays in saved.tensors(0) if stays and path.startswith(f"{self.middle}."))
        return layer, saved.of(0) - self.array.count * layer

    @cached_property
    def held(self) -> tuple[MemoryEstimate, MemoryEstimate, MemoryEstimate]:
        """The bytes of what is before the layers, of each layer, and of what is after them."""
        before, layer, after = (self._held(values) for values in self.params)
        return before, layer.plus(MemoryEstimate(kept=self.kept[0])), after.plus(MemoryEstimate(kept=self.kept[1]))

    def _held(self, values: Sequence[int]) -> MemoryEstimate:
        plan, total = self.plan, MemoryEstimate()
        for param in (plan.params[value] for value in values if value not in plan.memory_of):
            it = held_bytes(plan, param)
            whole = local_bytes(plan, param) if it.gradient else 0
            total = total.plus(MemoryEstimate(it.itself + it.copy + it.optimizer, it.gradient, 0, whole))
        return total

    @cached_property
    def beside(self) -> tuple[int, int]:
        """The bytes beside these at the peak: of a layer, and where the ends are."""
        before, layer, after = self.held
        whole = before.plus(layer.times(self.array.count)).plus(after)
        alone = CoordinateMemory([whole], [self.array.count], moments("", 1, 1, self.plan.microbatches, 0))
        try:
            peak = step_peaks(self.plan)[0].bytes
        except SingleLayers:
            return 0, 0  # what an estimate lacks then its plan tells
        ends = peak - max(alone.most, alone.summed(self.plan.bucket_bytes))
        widest = max((sum(all_held(self.plan)[v][1:3]) for v in self.params[1]), default=0)
        return min(ends, widest + 4 * self._widest), ends

    @property
    def _widest(self) -> int:
        """Bytes of the largest value of a layer."""
        plan = self.plan
        mine = (v for op in plan.graph.ops if op.path.startswith(f"{self.middle}.") for v in op.results)
        return max((plan.local_bytes(v, plan.produced[v]) for v in mine if v in plan.produced), default=0)

    @cached_property
    def boundary(self) -> int:
        """Bytes of what a layer hands to the next."""
        graph, plan = self.plan.graph, self.plan
        first, second = ([op for op in graph.ops if op.path.startswith(f"{path}.")] for path in self.array.paths[:2])
        read, made = {v for op in second for v in op.operands}, {v for op in first for v in op.results}
        sizes = dict[int, int]()
        for value in read & made:  # a cast or a view of what crosses is made again behind the border
            op = graph.ops[graph.producers[value]]
            root = op.operands[0] if rearranges(graph, op) and op.operands[0] in made else value
            size = plan.local_bytes(value, plan.produced[value])
            sizes[root] = min(size, sizes.get(root, size), plan.local_bytes(root, plan.produced[root]))
        return sum(sizes.values())


@dataclass
class FlatPlans:
    """Those of a program with one array of equal layers. spent: seconds of a processor for all,
    counted."""

    of: Open
    array: ArrayOfLayers
    spent: float = 0.0
    _known: dict[object, FlatPlan | None] = field(default_factory=dict)
    _laid: dict[object, Plan] = field(default_factory=dict)
    _seen: set[object] = field(default_factory=set)

    @cached_property
    def few(self) -> Open:
        return without_stages(self.of)

    def flat(self, point: Point, again: str | None) -> FlatPlan | None:
        """The plan of a point; None where it is illegal, or where layers are not all alike. again:
        how all layers are computed again (None: they are not)."""
        sizes = tuple((name, size) for name, size in point.sizes if name != self.of.staged)
        layers = self.array.paths if again is not None else ()
        here = replace(point, sizes=sizes, virtual=0, schedule="", bucket=0, again=again or "", layers=layers)
        if here not in self._known:
            self._known[here] = self._planned(here)
        return self._known[here]

    def _planned(self, point: Point) -> FlatPlan | None:
        strategy, ranks = filled(self.few, point, "flat"), math.prod(size for _, size in point.sizes)

        def planned(program: CheckedProgram) -> FlatPlan | None:
            key = id(program.graph), replace(point, zero=())
            plan = laid_out(program, strategy, ranks, Sink(), self._laid.get(key), self.few.known)
            if plan is None or len(plan.meshes) > 1:
                return None
            self._laid.setdefault(key, plan)
            return self._in_layers(plan)

        found = self.of.program.in_runs(planned)
        self.spent += self._costs(point) if found is not None else REFUSED
        return found

    def _costs(self, point: Point) -> float:
        """Seconds of a processor for a plan."""
        mesh, alike = point.sizes, replace(point, zero=())
        wide = sum(size > 1 for _, size in mesh) >= MANY and mesh not in self._seen
        found = ALIKE if alike in self._seen else A_MESH if wide else A_PLAN
        self._seen.update((mesh, alike))
        return found

    def _in_layers(self, plan: Plan) -> FlatPlan | None:
        """None where a layer is not one segment. A cast beside the array that a layer's result
        needs is named as a layer, too: layers are those in which most is done."""
        stage, name, count = work(plan).stages[0], class_of(self.array.paths[0]), self.array.count
        forward, backward = ([*_each(segments)] for segments in (stage.forward, stage.backward[::-1]))
        runs = [n for n in range(len(forward) - count + 1) if all(s.layer == name for s in forward[n : n + count])]
        begin = max(runs, key=lambda n: sum(len(segment.items) for segment in forward[n : n + count]), default=-1)
        whole = begin >= 0 and len(forward) == len(backward)
        return FlatPlan(plan, self.array, forward, backward, begin) if whole else None


def _each(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Each of the segments that are told once."""
    for segment in segments:
        yield from [replace(segment, times=1)] * segment.times
