"""A deep program and a point -> the seconds and the bytes of its layers and of what is around them,
from a plan without stages that tells equal layers once.

A stage is a sum of these, and so is what its ranks keep. Plans are made for few ranks along the
axes that only share the batch; more ranks, stages, the schedule and which layers are computed again
are arithmetic (deep/)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise

from shardlang.check.program import CheckedProgram
from shardlang.cost.items import class_of
from shardlang.cost.planned import work
from shardlang.cost.work import Segment
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import Device, device
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.reserved.communicators import Communicator, channels, communicators
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import SingleLayers, indexes
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.plan.reads import inputs
from shardlang.plan.rewrite.derived import rearranges
from shardlang.search.deep.degrees import Degrees
from shardlang.search.deep.memory import CoordinateMemory, MemoryEstimate, moments
from shardlang.search.fill_holes import filled
from shardlang.search.layers import ArrayOfLayers
from shardlang.search.pipelines import Pipe, pipe
from shardlang.search.space import BUCKETS, MB, Open, Point
from shardlang.step.parameters import all_held, held_bytes, local_bytes
from shardlang.step.saved_activations import saved_activations
from shardlang.syntax import ast

# Seconds of a processor for a profile, for one that differs from another in ZeRO alone, and for the
# first on a mesh of so many axes.
A_PROFILE, ALIKE, A_MESH, MANY = 30e-3, 12e-3, 200e-3, 3


def without_stages(of: Open) -> Open:
    """The strategy without stages, on the program with equal layers told once."""
    kept = [rule for rule in of.strategy.rules if not isinstance(rule, ast.Stages | ast.Schedule)]
    return Open(of.told, replace(of.strategy, rules=tuple(kept)), of.ranks, of.known)


# The segments of a forward and of its backward, both in the order of the forward.
Run = tuple[Sequence[Segment], Sequence[Segment]]


@dataclass(frozen=True, eq=False)
class Probe:
    """A microbatch of all layers on the ranks of one stage. runs: of what is before the layers, of
    the first, the second and the last, and of what is after them."""

    plan: Plan
    runs: Sequence[Run]
    array: ArrayOfLayers
    _widened: dict[object, Sequence[Run]] = field(default_factory=dict)

    def widened(self, degrees: Degrees) -> Sequence[Run]:
        """The runs on more ranks."""
        key = tuple(degrees.many.items())
        if key not in self._widened:
            self._widened[key] = [
                ([degrees.segment(each) for each in forward], [degrees.segment(each) for each in backward])
                for forward, backward in self.runs
            ]
        return self._widened[key]

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Those of its axes."""
        return {axis.name: axis.size for axis in self.plan.meshes[0].timeless.axes}

    @cached_property
    def middle(self) -> str:
        """The path of a layer between the ends, or of the run that it is in."""
        paths = (call.path[:-1].rpartition("[") for call in self.plan.graph.calls if call.path.endswith("]"))
        middle = self.array.count // 2
        index = next(index for array, _, index in paths if array == self.array.path and middle in indexes(index))
        return f"{self.array.path}[{index}]"

    @cached_property
    def params(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Parameters and states: those that are read first before the layers, of a layer between
        the ends, and of what comes after."""
        plan, first = self.plan, dict[int, int]()
        for at, read in enumerate(inputs(plan).values()):
            for value, _ in read:
                if value in plan.params:
                    first.setdefault(value, at)
        paths = {value: plan.graph.values[value].path for value in first}
        layers = {value for value, path in paths.items() if path.startswith(f"{self.array.path}[")}
        begin = min((first[value] for value in layers), default=0)
        ends = [value for value in first if value not in layers]
        middle = [value for value in layers if paths[value].startswith(f"{self.middle}.")]
        return [v for v in ends if first[v] < begin], sorted(middle), [v for v in ends if first[v] >= begin]

    @cached_property
    def kept(self) -> tuple[int, int]:
        """Bytes that a microbatch keeps for a layer and for the ends."""
        saved = saved_activations(self.plan)
        layer = sum(size for path, size, stays in saved.tensors(0) if stays and path.startswith(f"{self.middle}."))
        return layer, saved.of(0) - self.array.count * layer

    def held(self, degrees: Degrees) -> Sequence[MemoryEstimate]:
        """The bytes of what is before the layers, of each layer, and of what is after them."""
        plan, found = self.plan, list[MemoryEstimate]()
        for values, kept in zip(self.params, (0, *self.kept), strict=True):
            total = MemoryEstimate(0, 0, kept)
            for value in values:
                param = plan.params[value]
                if value not in plan.memory_of:
                    it = held_bytes(plan, param, degrees.of(param.zero_axes)[1])
                    whole = local_bytes(plan, param) if it.gradient else 0
                    total = total.plus(MemoryEstimate(it.itself + it.copy + it.optimizer, it.gradient, 0, whole))
            found.append(total)
        return found

    @cached_property
    def beside(self) -> tuple[int, int]:
        """The bytes beside these at the peak: of a layer, and where the ends are."""
        before, layer, after = self.held(Degrees(self.sizes, self.sizes))
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


@dataclass(frozen=True)
class Estimate:
    """A point with the layers that are computed again, and bytes at its peak. plain: the bytes
    where none are."""

    point: Point
    memory: int
    plain: int


@dataclass
class Profiles:
    """Those of a program with one array of equal layers. spent: seconds of a processor for all,
    counted."""

    of: Open
    array: ArrayOfLayers
    limit: int | None
    known: dict[object, Probe | None] = field(default_factory=dict)
    spent: float = 0.0
    _laid: dict[object, Plan] = field(default_factory=dict)
    _seen: set[object] = field(default_factory=set)

    @cached_property
    def flat(self) -> Open:
        return without_stages(self.of)

    def estimate(self, point: Point, what: str | None = "", limit: int | None = None) -> Estimate | None:
        """The estimate with the fewest layers computed again, in a way (None: none is); None where
        the point is illegal. limit: of bytes, if it is another than that of all points."""
        limit = self.limit if limit is None else limit
        plain, found = self.profile(point, None), pipe(self.of, self.array, point)
        if plain is None or found is None:
            return None
        made = self._made(point, plain, plain, found, limit)
        if limit is None or made.memory <= limit or not self.of.layers or what is None:
            return made
        again = self.profile(point, what)
        return made if again is None else self._made(replace(point, again=what), plain, again, found, limit)

    def degrees(self, point: Point, profile: Probe) -> Degrees:
        return Degrees(profile.sizes, {axis: size for axis, size in point.sizes if axis != self.of.staged})

    def coordinates(self, point: Point, profile: Probe, found: Pipe, some: Iterable[int]) -> list[CoordinateMemory]:
        """The bytes of some coordinates; what is received and sent is kept too."""
        held, made = profile.held(self.degrees(point, profile)), list[CoordinateMemory]()
        for at in some:
            stages = [self._stage(held, profile.boundary, found, stage) for stage in found.on[at]]
            stages[0] = stages[0].plus(MemoryEstimate(self.of_nccl(profile, found, at)))
            layers = [len(found.layers[stage]) for stage in found.on[at]]
            moment = moments(found.schedule, len(found.layers), found.size, found.count, at)
            made.append(CoordinateMemory(stages, layers, moment))
        return made

    @staticmethod
    def _stage(held: Sequence[MemoryEstimate], boundary: int, found: Pipe, stage: int) -> MemoryEstimate:
        before, layer, after = held
        crossing = found.sends(stage) + found.sends(stage + 1)
        made = layer.times(len(found.layers[stage])).plus(MemoryEstimate(0, 0, crossing * boundary))
        made = made.plus(before) if stage == 0 else made
        return made.plus(after) if stage == len(found.layers) - 1 else made

    def of_nccl(self, profile: Probe, found: Pipe, at: int) -> int:
        """The bytes that NCCL takes on a coordinate's ranks, where the device says what is
        reserved: for the groups of the profile; with stages, for that of all and for messages."""
        if self.device is None or not self.device.reserved:
            return 0
        on, more = found.coordinates, [Communicator(self.of.ranks)] * (found.size > 1)
        crossed = {edge for pair in pairwise(on) if pair[0] != pair[1] for edge in (pair, pair[::-1])}
        more += [Communicator(2)] * len(channels(on, crossed, at))
        node = self.device.node or self.of.ranks
        return sum(each.bytes(self.device.group, node) for each in (*communicators(profile.plan)[0], *more))

    @cached_property
    def device(self) -> Device | None:
        return device(self.of.program)

    def _made(self, point: Point, plain: Probe, again: Probe, found: Pipe, limit: int | None) -> Estimate:
        chosen, memory, whole, last = set[int](), 0, 0, len(found.layers) - 1
        every, less = self.coordinates(point, plain, found, range(found.size)), plain.kept[0] - again.kept[0]
        bucket = self._bucket(point, plain, every, limit)
        for mine, held in zip(found.on, every, strict=True):
            beside = again.beside[last in mine]
            needs = held.most + beside
            whole = max(whole, needs)
            if again is not plain and limit is not None and needs > limit:
                few = held.fewest(less, limit - beside) or held.layers
                needs = held.again(less, few).most + beside
                chosen.update(n for stage, some in zip(mine, few, strict=True) for n in found.layers[stage][:some])
            memory = max(memory, needs, held.summed(bucket))
        point = replace(point, layers=tuple(self.array.paths[at] for at in sorted(chosen)))
        return Estimate(replace(point, bucket=bucket // MB if point.bucket else 0), memory, whole)

    def _bucket(self, point: Point, plain: Probe, every: Sequence[CoordinateMemory], limit: int | None) -> int:
        """The size of buckets: of a large space the largest that fits, where that is open."""
        written = point.bucket * MB or plain.plan.bucket_bytes
        sizes = [size * MB for size in BUCKETS] if self.of.large and point.bucket else [written]
        return max((n for n in sizes if limit is None or all(x.summed(n) <= limit for x in every)), default=written)

    def profile(self, point: Point, again: str | None) -> Probe | None:
        """The profile of a point; None where it is illegal, or where layers are not all alike."""
        here = self.few(point)
        key = here, again
        if key not in self.known:
            self.known[key] = self._profile(here, again)
        return self.known[key]

    def few(self, point: Point) -> Point:
        """A point with the profile of this one, on few ranks along the axes that share the batch,
        with as large a microbatch."""
        sizes = [(name, size) for name, size in point.sizes if name != self.of.staged]
        count = point.microbatches
        if count > 1:
            share = self.of.share(dict(sizes))
            sizes = [(name, 2 if name in self.of.batch_axes and size % 2 == 0 else size) for name, size in sizes]
            count = self.of.share(dict(sizes)) * count // share if share else count
        return replace(
            point, sizes=tuple(sizes), virtual=0, schedule="", bucket=0, microbatches=count, again="", layers=()
        )

    def _costs(self, point: Point, again: str | None) -> float:
        """Seconds of a processor for a profile: the first on a mesh of many axes finds all ways
        between layouts there."""
        sizes = [size for _, size in point.sizes if size > 1]
        mesh = point.sizes, math.gcd(self.of.share(dict(point.sizes)) // (point.microbatches or 1), math.prod(sizes))
        alike = replace(point, zero=()), again
        found = ALIKE if alike in self._seen else A_PROFILE if mesh in self._seen or len(sizes) < MANY else A_MESH
        self._seen.update((mesh, alike))
        return found

    def _profile(self, point: Point, again: str | None) -> Probe | None:
        layers = self.array.paths if again is not None else ()
        strategy = filled(self.flat, replace(point, layers=layers, again=again or ""), "flat")
        ranks = math.prod(size for _, size in point.sizes)
        each = self._costs(point, again) / len(self.of.told.graph.ops)

        def probed(program: CheckedProgram) -> Probe | None:
            self.spent += each * len(program.graph.ops)
            key = id(program.graph), replace(point, zero=()), again
            plan = laid_out(program, strategy, ranks, Sink(), self._laid.get(key), self.flat.known)
            if plan is None or len(plan.meshes) > 1:
                return None
            self._laid.setdefault(key, plan)
            return self._probe(plan)

        return self.of.program.in_runs(probed)

    def _probe(self, plan: Plan) -> Probe | None:
        stage = work(plan).stages[0]
        forward, backward = (_parts(each, self.array) for each in (stage.forward, stage.backward[::-1]))
        return Probe(plan, list(zip(forward, backward, strict=True)), self.array) if forward and backward else None


def _parts(segments: Sequence[Segment], array: ArrayOfLayers) -> list[Sequence[Segment]] | None:
    """The segments before the layers, of the first, the second and the last, and after them; None
    where a layer is not one segment. A cast beside the array that a layer's result needs is named
    as a layer, too: layers are those in which most is done."""
    name, count = class_of(array.paths[0]), array.count
    each = [one for segment in segments for one in [replace(segment, times=1)] * segment.times]
    runs = [n for n in range(len(each) - count + 1) if all(s.layer == name for s in each[n : n + count])]
    at = max(runs, key=lambda n: sum(len(segment.items) for segment in each[n : n + count]), default=None)
    if at is None:
        return None
    return [each[:at], *([each[at + n]] for n in (0, 1, count - 1)), each[at + count :]]
