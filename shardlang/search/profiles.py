"""A deep program and a point -> its work and its memory, from plans of 2 and of 3 layers.

The difference of the two is a layer, the rest are the ends. A stage is a sum of these, and so is
what its ranks keep: so a point costs what few layers cost, however many the program has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

from shardlang.check.program import Program
from shardlang.cost.items import class_of
from shardlang.cost.planned import run, work
from shardlang.cost.work import Coordinate, Gather, Segment, Stage, Transfer, Work
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.bytes.memory import all_held
from shardlang.plan.bytes.peak.step import step_peaks
from shardlang.plan.bytes.saved_activations import saved_activations
from shardlang.plan.pipeline.actions import most_alive
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.records import dataclass
from shardlang.search.cut import Array, cut
from shardlang.search.filled import filled
from shardlang.search.pipelines import Pipe, pipe
from shardlang.search.space import Open, Point
from shardlang.syntax import ast
from shardlang.types.mesh import Axis, Mesh

LEFT = 3


def without_stages(of: Open, program: Program) -> Open:
    """The strategy without stages, on another program."""
    kept = [rule for rule in of.strategy.rules if not isinstance(rule, ast.Stages | ast.Schedule)]
    return Open(program, replace(of.strategy, rules=tuple(kept)), of.ranks)


Part = tuple[Sequence[Segment], Sequence[Segment], Sequence[Segment]]


@dataclass(frozen=True, eq=False)
class Profile:
    """A microbatch of few layers on the ranks of one stage. less, more: with 2 and with 3.
    forward, backward: the segments of what is before the layers, of the first, the second and the
    last, and of what is after them, in the order of the forward."""

    less: Plan
    more: Plan
    forward: Part
    backward: Part

    @cached_property
    def held(self) -> tuple[int, int]:
        """Bytes of the parameters of a layer and of the ends, and of all that belongs to them."""
        return _both([sum(map(sum, all_held(plan).values())) for plan in (self.less, self.more)])

    @cached_property
    def kept(self) -> tuple[int, int]:
        """Bytes that a microbatch keeps for a layer and for the ends."""
        return _both([saved_activations(plan).of(0) for plan in (self.less, self.more)])

    @cached_property
    def beside(self) -> tuple[int, int]:
        """The bytes beside these at the peak, for a layer and for the ends."""
        layer, ends = _both([step_peaks(plan)[0].bytes for plan in (self.less, self.more)])
        return layer - self.held[0] - self.kept[0], ends - self.held[1] - self.kept[1]

    @cached_property
    def boundary(self) -> int:
        """Bytes of what a layer hands to the next."""
        graph, plan = self.more.graph, self.more
        layer = [op.path.partition("]")[0] for op in graph.ops]
        first, second = list(dict.fromkeys(p for p, op in zip(layer, graph.ops, strict=True) if "]" in op.path))[:2]
        read = {v for op in graph.ops if layer[op.id] == second for v in op.operands}
        made = {v for op in graph.ops if layer[op.id] == first for v in op.results}
        return sum(plan.local_bytes(value, plan.produced[value]) for value in read & made)


def _both(of: Sequence[int]) -> tuple[int, int]:
    """The parts of a layer and of the ends, from what 2 and 3 layers have with the ends."""
    layer = of[1] - of[0]
    return layer, of[0] - (LEFT - 1) * layer


@dataclass(frozen=True)
class Estimate:
    """A point with the layers that are computed again: its work, and bytes at its peak."""

    point: Point
    work: Work
    memory: int


@dataclass
class Profiles:
    """Those of a program with one array of layers that are alike. cuts: the programs with few of
    them, by how many. plans: how many were made."""

    of: Open
    array: Array
    limit: int | None
    known: dict[object, Profile | None] = field(default_factory=dict)
    plans: int = 0

    @cached_property
    def cuts(self) -> Mapping[int, Open]:
        made = {left: cut(self.of.program, [self.array], left) for left in (LEFT - 1, LEFT)}
        return {left: without_stages(self.of, program) for left, program in made.items()}

    def estimate(self, point: Point) -> Estimate | None:
        """The estimate with the fewest layers computed again; None where the point is illegal."""
        plain, found = self.profile(point, None), pipe(self.of, self.array, point)
        if plain is None or found is None:
            return None
        made = self._made(point, plain, plain, found)
        if self.limit is None or made.memory <= self.limit or not self.of.layers:
            return made
        again = self.profile(point, "")
        return made if again is None else self._made(point, plain, again, found)

    def _made(self, point: Point, plain: Profile, again: Profile, found: Pipe) -> Estimate:
        chosen, memory = list[int](), 0
        for mine in found.on:
            layers, needs = self._again(mine, plain, again, found)
            chosen += layers
            memory = max(memory, needs)
        paths = tuple(self.array.paths[at] for at in sorted(chosen))
        return Estimate(replace(point, layers=paths), self._work(point, plain, again, found, set(chosen)), memory)

    def _again(self, mine: Sequence[int], plain: Profile, again: Profile, found: Pipe) -> tuple[list[int], int]:
        """The fewest layers of a coordinate that are computed again, and its memory then."""
        alive = most_alive(found.actions)
        layers = [(at, alive.get(stage, 1)) for stage in mine for at in found.layers[stage]]
        memory = (plain.held[0] + plain.beside[0]) * len(layers) + sum(plain.kept[0] * count for _, count in layers)
        memory += sum(round(found.ends(stage) * plain.held[1]) for stage in mine)
        if len(found.layers) - 1 in mine:  # the loss, and most of what is there at the peak
            memory += plain.beside[1] + plain.kept[1] * alive.get(mine[-1], 1)
        chosen: list[int] = []
        for at, count in layers if again is not plain else ():
            if self.limit is not None and memory <= self.limit:
                break
            memory += max(0, again.beside[1] - plain.beside[1]) * (not chosen)
            memory -= (plain.kept[0] - again.kept[0]) * count
            chosen.append(at)
        return chosen, memory

    def _work(self, point: Point, plain: Profile, again: Profile, found: Pipe, chosen: set[int]) -> Work:
        few, total = work(plain.more), len(self.array.paths)
        count = total - LEFT
        each = {at: (again if at in chosen else plain, 0 if at == 0 else 2 if at == total - 1 else 1)
                for at in range(total)}  # fmt: skip
        stages = []
        for stage, mine in enumerate(found.layers):
            forward = [source.forward[1][where] for source, where in map(each.__getitem__, mine)]
            backward = [source.backward[1][where] for source, where in map(each.__getitem__, mine)]
            if stage == 0:
                forward, backward = [*plain.forward[0], *forward], [*plain.backward[0], *backward]
            if stage == len(found.layers) - 1:
                forward, backward = [*forward, *plain.forward[2]], [*backward, *plain.backward[2]]
            ways = ("forward", "inputs") if found.sends(stage) else ()
            sent = tuple(Transfer(way, plain.boundary) for way in ways)
            stages.append(Stage(run(forward), run(backward[::-1]), sent))
        less = work(plain.less)
        axes = tuple(Axis(name, size) for name, size in point.sizes if size > 1)
        return replace(
            few, ranks=self.of.ranks, meshes=(Mesh(axes, few.meshes[0].name),), stages=tuple(stages),
            coordinates=tuple(_once(mine, less, few, found) for mine in found.on), actions=found.actions,
            axis=found.axis, schedule=found.schedule, flops=few.flops + count * (few.flops - less.flops),
            hidden=few.hidden + count * (few.hidden - less.hidden),
        )  # fmt: skip

    def profile(self, point: Point, again: str | None) -> Profile | None:
        """The profile of a point; None where it is illegal, or where layers are not all alike."""
        staged = self.of.stages.axis.text if self.of.stages is not None else ""
        sizes = tuple((name, size) for name, size in point.sizes if name != staged)
        here = replace(point, sizes=sizes, virtual=0, schedule="", bucket=0)
        key = here, again
        if key not in self.known:
            self.known[key] = self._profile(here, again)
        return self.known[key]

    def _profile(self, point: Point, again: str | None) -> Profile | None:
        plans = []
        for left, of in self.cuts.items():
            layers = tuple(self.array.paths[:left]) if again is not None else ()
            here = replace(point, layers=layers, again=again or "")
            ranks = 1
            for _, size in point.sizes:
                ranks *= size
            self.plans += 1
            plan = laid_out(of.program, filled(of, here, "few"), ranks, Sink())
            if plan is None or len(plan.meshes) > 1:
                return None
            plans.append(plan)
        stage, name = work(plans[1]).stages[0], class_of(self.array.paths[0])
        forward, backward = (_parts(segments, name) for segments in (stage.forward, stage.backward[::-1]))
        return Profile(plans[0], plans[1], forward, backward) if forward and backward else None


def _parts(segments: Sequence[Segment], name: str) -> Part | None:
    """The segments before the layers, of the layers, and after them; None where a layer is not one
    segment. A cast beside the array that a layer's result needs is named as a layer, too: layers
    are those in which most is done."""
    each = [replace(segment, times=1) for segment in segments for _ in range(segment.times)]
    runs = [n for n in range(len(each) - LEFT + 1) if all(s.layer == name for s in each[n : n + LEFT])]
    at = max(runs, key=lambda n: sum(len(segment.items) for segment in each[n : n + LEFT]), default=None)
    return None if at is None else (each[:at], each[at : at + LEFT], each[at + LEFT :])


def _once(mine: Sequence[int], less: Work, more: Work, found: Pipe) -> Coordinate:
    """The work of a coordinate's ranks once a step: that of its layers, and of the ends."""
    a, b = less.coordinates[0], more.coordinates[0]
    layers, ends = sum(len(found.layers[stage]) for stage in mine), sum(map(found.ends, mine))

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
    return Coordinate(tuple(mine), ahead, after, updates, tuple(_gathers(a.gathers, b.gathers, more, of)))


def _gathers(two: Sequence[Gather], three: Sequence[Gather], more: Work, of: object) -> Iterator[Gather]:
    """The gathers of ZeRO 1 and 2, a collective for each bucket."""
    if not three:
        return
    assert callable(of)
    size, whole = (round(of(sum(f(g) for g in two), sum(f(g) for g in three))) for f in (_sent, _whole))
    count = max(1, -(-whole // more.bucket_bytes))
    for _ in range(count):
        yield replace(three[0], bytes=size // count, whole=whole // count)


def _sent(gather: Gather) -> int:
    return gather.bytes


def _whole(gather: Gather) -> int:
    return gather.whole
