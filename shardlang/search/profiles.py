"""A deep program and a point -> its work and its memory, from plans of 2 and of 3 layers.

The difference of the two is a layer, the rest are the ends. A stage is a sum of these, and so is
what its ranks keep: so a point costs what few layers cost, however many the program has. Plans are
made for few ranks along the axes that only share the batch; more ranks, stages, the schedule and
which layers are computed again are arithmetic (deep/)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise

from shardlang.check.program import CheckedProgram
from shardlang.cost.items import class_of
from shardlang.cost.planned import run, work
from shardlang.cost.work import Coordinate, Segment, StageWork, Workload
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import Device, device
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.reserved.communicators import Communicator, channels, communicators
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.plan.reads import inputs
from shardlang.plan.rewrite.derived import rearranges
from shardlang.search.deep.degrees import Degrees, published
from shardlang.search.deep.memory import CoordinateMemory, MemoryEstimate, moments
from shardlang.search.fill_holes import filled
from shardlang.search.pipelines import Pipe, pipe
from shardlang.search.space import BUCKETS, MB, Open, Point
from shardlang.search.truncate import Elements, cut
from shardlang.step.parameters import all_held, held_bytes, local_bytes
from shardlang.step.saved_activations import saved_activations
from shardlang.syntax import ast
from shardlang.types.mesh import Axis, Mesh

LEFT = 3
# Seconds of a processor for a profile, for one that differs from another in ZeRO alone, and for the
# first on a mesh of so many axes.
A_PROFILE, ALIKE, A_MESH, MANY = 30e-3, 12e-3, 200e-3, 3


def without_stages(of: Open, program: CheckedProgram) -> Open:
    """The strategy without stages, on another program."""
    kept = [rule for rule in of.strategy.rules if not isinstance(rule, ast.Stages | ast.Schedule)]
    return Open(program, replace(of.strategy, rules=tuple(kept)), of.ranks, of.known)


# The segments of a forward and of its backward, both in the order of the forward.
Run = tuple[Sequence[Segment], Sequence[Segment]]


@dataclass(frozen=True, eq=False)
class Probe:
    """A microbatch of few layers on the ranks of one stage. less, more: with 2 and with 3. runs: of
    what is before the layers, of the first, the second and the last, and of what is after them."""

    less: Plan
    more: Plan
    runs: Sequence[Run]
    layer: str
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
        return {axis.name: axis.size for axis in self.more.meshes[0].timeless.axes}

    @cached_property
    def params(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Parameters and states: those that are read first before the layers, of the second layer,
        and of what comes after."""
        plan, first = self.more, dict[int, int]()
        at = {step: n for n, step in enumerate(plan.steps)}
        for step in plan.steps:
            for value, _ in inputs(plan)[step]:
                if value in plan.params:
                    first.setdefault(value, at[step])
        paths = {value: plan.graph.values[value].path for value in first}
        layers = {value for value, path in paths.items() if path.startswith(f"{self.layer}[")}
        begin = min((first[value] for value in layers), default=0)
        ends = [value for value in first if value not in layers]
        middle = [value for value in layers if paths[value].startswith(f"{self.layer}[{LEFT - 2}]")]
        return [v for v in ends if first[v] < begin], sorted(middle), [v for v in ends if first[v] >= begin]

    @cached_property
    def kept(self) -> tuple[int, int]:
        """Bytes that a microbatch keeps for a layer and for the ends."""
        few, many = (saved_activations(plan).of(0) for plan in (self.less, self.more))
        return many - few, few - (LEFT - 1) * (many - few)

    def held(self, degrees: Degrees) -> Sequence[MemoryEstimate]:
        """The bytes of each of the runs."""
        plan, found = self.more, list[MemoryEstimate]()
        for values, kept in zip(self.params, (0, *self.kept), strict=True):
            total = MemoryEstimate(0, 0, kept)
            for value in values:
                param = plan.params[value]
                if value not in plan.memory_of:
                    it = held_bytes(plan, param, degrees.of(param.zero_axes)[1])
                    whole = local_bytes(plan, param) if it.gradient else 0
                    total = total.plus(MemoryEstimate(it.itself + it.copy + it.optimizer, it.gradient, 0, whole))
            found.append(total)
        return [found[0], *[found[1]] * LEFT, found[2]]

    @cached_property
    def beside(self) -> tuple[int, int]:
        """The bytes beside these at the peak: of a layer, and where the ends are."""
        whole = MemoryEstimate()
        for each in self.held(Degrees(self.sizes, self.sizes)):
            whole = whole.plus(each)
        alone = CoordinateMemory([whole], [LEFT], moments("", 1, 1, self.more.microbatches, 0))
        ends = step_peaks(self.more)[0].bytes - max(alone.most, alone.summed(self.more.bucket_bytes))
        widest = max((sum(all_held(self.more)[v][1:3]) for v in self.params[1]), default=0)
        return min(ends, widest + 4 * self._widest), ends

    @property
    def _widest(self) -> int:
        """Bytes of the largest value of a layer."""
        plan = self.more
        mine = (v for op in plan.graph.ops if op.path.startswith(f"{self.layer}[{LEFT - 2}]") for v in op.results)
        return max((plan.local_bytes(v, plan.produced[v]) for v in mine if v in plan.produced), default=0)

    @cached_property
    def cut(self) -> Sequence[str]:
        """The axes over which ZeRO cuts parameters."""
        return max((param.zero_axes for param in self.more.params.values() if param.zero), key=len, default=())

    @cached_property
    def boundary(self) -> int:
        """Bytes of what a layer hands to the next."""
        graph, plan = self.more.graph, self.more
        layer = [op.path.partition("]")[0] for op in graph.ops]
        first, second = list(dict.fromkeys(p for p, op in zip(layer, graph.ops, strict=True) if "]" in op.path))[:2]
        read = {v for op in graph.ops if layer[op.id] == second for v in op.operands}
        made = {v for op in graph.ops if layer[op.id] == first for v in op.results}
        both, sizes = read & made, dict[int, int]()
        for value in both:  # a cast or a view of what crosses is made again behind the border
            op = graph.ops[graph.producers[value]]
            root = op.operands[0] if rearranges(graph, op) and op.operands[0] in made else value
            size = plan.local_bytes(value, plan.produced[value])
            sizes[root] = min(size, sizes.get(root, size), plan.local_bytes(root, plan.produced[root]))
        return sum(sizes.values())


@dataclass(frozen=True)
class Estimate:
    """A point with the layers that are computed again: its work, and bytes at its peak. plain: the
    bytes where none are."""

    point: Point
    work: Workload
    memory: int
    plain: int


@dataclass
class Profiles:
    """Those of a program with one array of layers that are alike. cuts: the programs with few of
    them, by how many. spent: seconds of a processor for all, counted."""

    of: Open
    array: Elements
    limit: int | None
    known: dict[object, Probe | None] = field(default_factory=dict)
    spent: float = 0.0
    _laid: dict[object, list[Plan]] = field(default_factory=dict)
    _meshes: set[object] = field(default_factory=set)

    @cached_property
    def cuts(self) -> Mapping[int, Open]:
        made = {left: cut(self.of.program, [self.array], left) for left in (LEFT - 1, LEFT)}
        return {left: without_stages(self.of, program) for left, program in made.items()}

    def estimate(self, point: Point, what: str | None = "") -> Estimate | None:
        """The estimate with the fewest layers computed again, in a way (None: none is); None where
        the point is illegal."""
        plain, found = self.profile(point, None), pipe(self.of, self.array, point)
        if plain is None or found is None:
            return None
        made = self._made(point, plain, plain, found)
        if self.limit is None or made.memory <= self.limit or not self.of.layers or what is None:
            return made
        again = self.profile(point, what)
        return made if again is None else self._made(replace(point, again=what), plain, again, found)

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
        crossing = found.sends(stage) + found.sends(stage + 1)
        made = MemoryEstimate(0, 0, crossing * boundary)
        for at, times in found.runs(stage).items():
            made = made.plus(held[at].times(times))
        return made

    def of_nccl(self, profile: Probe, found: Pipe, at: int) -> int:
        """The bytes that NCCL takes on a coordinate's ranks, where the device says what is
        reserved: for the groups of the profile; with stages, for that of all and for messages."""
        if self.device is None or not self.device.reserved:
            return 0
        on, more = found.coordinates, [Communicator(self.of.ranks)] * (found.size > 1)
        crossed = {edge for pair in pairwise(on) if pair[0] != pair[1] for edge in (pair, pair[::-1])}
        more += [Communicator(2)] * len(channels(on, crossed, at))
        node = self.device.node or self.of.ranks
        return sum(each.bytes(self.device.group, node) for each in (*communicators(profile.more)[0], *more))

    @cached_property
    def device(self) -> Device | None:
        return device(self.of.program)

    def _made(self, point: Point, plain: Probe, again: Probe, found: Pipe) -> Estimate:
        chosen, memory, whole, last = set[int](), 0, 0, len(found.layers) - 1
        every, less = self.coordinates(point, plain, found, range(found.size)), plain.kept[0] - again.kept[0]
        bucket = self._bucket(point, plain, every)
        for mine, held in zip(found.on, every, strict=True):
            beside = again.beside[last in mine]
            needs = held.most + beside
            whole = max(whole, needs)
            if again is not plain and self.limit is not None and needs > self.limit:
                few = held.fewest(less, self.limit - beside) or held.layers
                needs = held.again(less, few).most + beside
                chosen.update(n for stage, some in zip(mine, few, strict=True) for n in found.layers[stage][:some])
            memory = max(memory, needs, held.summed(bucket))
        point = replace(point, layers=tuple(self.array.paths[at] for at in sorted(chosen)))
        point = replace(point, bucket=bucket // MB if point.bucket else 0)
        return Estimate(point, self._work(point, bucket, plain, again, found, chosen), memory, whole)

    def _bucket(self, point: Point, plain: Probe, every: Sequence[CoordinateMemory]) -> int:
        """The size of buckets: of a large space the largest that fits, where that is open."""
        written = point.bucket * MB or plain.more.bucket_bytes
        sizes = [size * MB for size in BUCKETS] if self.of.large and point.bucket else [written]
        fits = (n for n in sizes if self.limit is None or all(each.summed(n) <= self.limit for each in every))
        return max(fits, default=written)

    def _work(self, point: Point, bucket: int, plain: Probe, again: Probe, found: Pipe, chosen: set[int]) -> Workload:
        few, less, degrees = work(plain.more), work(plain.less), self.degrees(point, plain)
        count = len(self.array.paths) - LEFT
        stages = [self._stage_work(plain, again, degrees, found, stage, chosen) for stage in range(len(found.layers))]
        axes = tuple(Axis(name, size) for name, size in point.sizes if size > 1)
        shares = self._shares(plain, degrees)
        once = tuple(_once(mine, plain, degrees, found, shares, bucket) for mine in found.on)
        return replace(
            few, ranks=self.of.ranks, meshes=(Mesh(axes, few.meshes[0].name),), stages=tuple(stages),
            microbatches=found.count, coordinates=once, actions=found.actions,
            axis=found.axis, schedule=found.schedule, flops=few.flops + count * (few.flops - less.flops),
            hidden=few.hidden + count * (few.hidden - less.hidden),
            bucket_bytes=bucket,
        )  # fmt: skip

    @staticmethod
    def _stage_work(
        plain: Probe, again: Probe, degrees: Degrees, found: Pipe, stage: int, chosen: set[int]
    ) -> StageWork:
        runs = [(again if layer in chosen else plain).widened(degrees)[at] for at, layer in found.pieces(stage)]
        forward = [segment for each, _ in runs for segment in each]
        backward = [segment for _, each in runs for segment in each]
        sent = plain.boundary * found.sends(stage)
        return StageWork(run(forward), run(backward[::-1]), (sent, sent))

    def _shares(self, plain: Probe, degrees: Degrees) -> tuple[float, float]:
        """The shares that the first and the last stage have of what is outside of the layers."""
        first, *_, last = (each.always + each.gradient for each in plain.held(degrees))
        return (first / (first + last), last / (first + last)) if first + last else (0.5, 0.5)

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

    def _costs(self, point: Point) -> float:
        """Seconds of a processor for a profile: the first on a mesh of many axes finds all ways
        between layouts there."""
        sizes = [size for _, size in point.sizes if size > 1]
        mesh = point.sizes, math.gcd(self.of.share(dict(point.sizes)) // (point.microbatches or 1), math.prod(sizes))
        known = mesh in self._meshes or len(sizes) < MANY
        self._meshes.add(mesh)
        return A_PROFILE if known else A_MESH

    def _profile(self, point: Point, again: str | None) -> Probe | None:
        plans, key = list[Plan](), (replace(point, zero=()), again)
        like = self._laid.get(key, (None, None))
        self.spent += self._costs(point) if key not in self._laid else ALIKE
        for (left, of), alike in zip(self.cuts.items(), like, strict=True):
            layers = tuple(self.array.paths[:left]) if again is not None else ()
            here = replace(point, layers=layers, again=again or "")
            ranks = math.prod(size for _, size in point.sizes)
            plan = laid_out(of.program, filled(of, here, "few"), ranks, Sink(), alike, of.known)
            if plan is None or len(plan.meshes) > 1:
                return None
            plans.append(plan)
        self._laid.setdefault(key, plans)
        stage, name = work(plans[1]).stages[0], class_of(self.array.paths[0])
        forward, backward = (_parts(segments, name) for segments in (stage.forward, stage.backward[::-1]))
        layer = self.array.paths[0].rpartition("[")[0]
        runs = list(zip(forward, backward, strict=True)) if forward and backward else None
        return Probe(plans[0], plans[1], runs, layer) if runs is not None else None


def _parts(segments: Sequence[Segment], name: str) -> list[Sequence[Segment]] | None:
    """The segments before the layers, of the layers, and after them; None where a layer is not one
    segment. A cast beside the array that a layer's result needs is named as a layer, too: layers
    are those in which most is done."""
    each = [replace(segment, times=1) for segment in segments for _ in range(segment.times)]
    runs = [n for n in range(len(each) - LEFT + 1) if all(s.layer == name for s in each[n : n + LEFT])]
    at = max(runs, key=lambda n: sum(len(segment.items) for segment in each[n : n + LEFT]), default=None)
    return None if at is None else [each[:at], *([layer] for layer in each[at : at + LEFT]), each[at + LEFT :]]


def _once(
    mine: Sequence[int], profile: Probe, degrees: Degrees, found: Pipe, shares: tuple[float, float], bucket: int
) -> Coordinate:
    """The work of a coordinate's ranks once a step: that of its layers, and of the ends."""
    a, b = (work(plan).coordinates[0] for plan in (profile.less, profile.more))
    layers, last = sum(len(found.layers[stage]) for stage in mine), len(found.layers) - 1
    ends = shares[0] * (0 in mine) + shares[1] * (last in mine)

    def of(two: float, three: float) -> float:
        return layers * (three - two) + ends * (two - (LEFT - 1) * (three - two))

    updates = tuple(
        replace(y, elements=round(of(x.elements, y.elements)), tensors=max(1, round(of(x.tensors, y.tensors))))
        for x, y in zip(a.updates, b.updates, strict=True)
    )
    ahead, after = (
        {item: n for item, count in y.items() if (n := round(of(x.get(item, 0), count)))}
        for x, y in ((a.ahead, b.ahead), (a.after, b.after))
    )
    made = degrees.once(Coordinate(tuple(mine), ahead, after, updates), profile.cut)
    first, layer, after_them = profile.params
    values = [*(first if 0 in mine else ()), *(v for _ in range(layers) for v in layer)]
    values += after_them if last in mine else ()
    return replace(made, gathers=tuple(published(profile.more, values, degrees, bucket)))
