"""A point -> its plan with as little computed again as fits, and as much on the host as is best;
or the least memory that it needs.

Each coordinate of the pipeline has layers of its own, so that the fewest are found for all of them
at once, by halving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import pairwise

from shardlang.check.program import CheckedProgram
from shardlang.cost.planned import work
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import is_table, needed
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import Cuts, places
from shardlang.plan.pipeline.stages import ancestors, enclosing
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.search.fill_holes import filled
from shardlang.search.space import BUCKETS, MB, Open, Point, Seconds
from shardlang.step.parameters import held_bytes
from shardlang.syntax import ast

# Ways to compute layers again.
AGAIN = ("all but products", "")
# Layers of a coordinate that are computed again, and the bytes that it needs so.
Again = tuple[int, int]
# Plans that are kept for points that differ in nothing but ZeRO and buckets.
ALIKE = 16
# What an estimate has beyond a device's memory by so much does not fit.
SURELY = 1.1
# Seconds of a processor to plan a point, and to predict its time.
A_PLAN, AN_OPERATOR = 4e-3, 4e-4


def costs(program: CheckedProgram) -> float:
    """Seconds of a processor to plan a point of a program."""
    return A_PLAN + len(program.graph.ops) * AN_OPERATOR


def planned(
    program: CheckedProgram, layout: Callable[[CheckedProgram], Plan | None], layers: Sequence[str] = ()
) -> Plan | None:
    """The plan that `layout` makes, with runs of equal layers told once. layers: those for which it
    has rules of their own."""

    def made(program: CheckedProgram) -> Plan | None:
        plan = layout(program)
        if plan is not None:
            needed(plan), work(plan)  # ask for single layers now, if they do
        return plan

    return program.in_runs(made, _edges(layers))


def _edges(layers: Sequence[str]) -> Cuts:
    """Array -> the numbers at which some of its layers begin or end."""
    found: dict[str, frozenset[int]] = {}
    for array, _, index in (layer[:-1].rpartition("[") for layer in layers if layer.endswith("]")):
        found[array] = found.get(array, frozenset()) ^ {int(index), int(index) + 1}
    return found


@dataclass(frozen=True, eq=False)
class FittedPoint:
    """A point that fits: its strategy, its plan, seconds of a step, bytes that it needs of a
    device."""

    point: Point
    strategy: ast.Strategy
    plan: Plan
    seconds: float
    memory: int


@dataclass(frozen=True, eq=False)
class Short:
    """A point that does not fit, however little it keeps: the bytes that it needs at least."""

    point: Point
    memory: int


@dataclass(frozen=True)
class Fitting:
    """How points become plans. limit: the bytes of a device, where that is known."""

    of: Open
    title: str
    seconds: Seconds
    limit: int | None
    plans: Counter[int] = field(default_factory=Counter)
    _laid: dict[tuple[int, Point], Plan] = field(default_factory=dict)

    def plan(self, point: Point) -> Plan | None:
        """The plan of a point; None where it is illegal. In a large space smaller buckets are
        taken, as long as that takes less."""
        sizes = sorted((n for n in BUCKETS if n <= point.bucket and self.of.large), reverse=True)

        def layout(program: CheckedProgram) -> Plan | None:
            self.plans[len(program.graph.ops)] += 1
            plan, size = self._laid_out(program, point), point.bucket
            if plan is None:
                return None
            times = ((n, self.seconds(replace(work(plan), bucket_bytes=n * MB))) for n in sizes)
            for (_, before), (less, seconds) in pairwise(times):
                if seconds >= before:
                    break
                size = less
            return plan if size == point.bucket else self._laid_out(program, replace(point, bucket=size))

        return planned(self.of.program, layout, point.layers)

    def _laid_out(self, program: CheckedProgram, point: Point) -> Plan | None:
        """The plan, with the layouts of one that differs in nothing but ZeRO and buckets."""
        of, laid, key = self.of, self._laid, (id(program.graph), replace(point, zero=(), bucket=0))
        plan = laid_out(program, filled(of, point, self.title), of.ranks, Sink(), laid.get(key), of.known)
        if plan is not None and laid.setdefault(key, plan) is plan and len(laid) > ALIKE:
            del laid[next(iter(laid))]
        return plan

    def spent(self) -> float:
        """Seconds of a processor for the plans so far: counted by operators and not measured, so
        that the same program has the same answer everywhere."""
        return sum(often * (A_PLAN + ops * AN_OPERATOR) for ops, often in self.plans.items())

    def best(self, point: Point) -> FittedPoint | Short | None:
        """The fastest way to have a point; None where it is illegal."""
        plan = self.plan(point)
        if plan is None:
            return None
        ways = list(self._ways(point, plan))
        fits = [way for way in ways if isinstance(way, FittedPoint)]
        if fits:
            return min(fits, key=lambda found: found.seconds)
        return min((way for way in ways if isinstance(way, Short)), key=lambda short: short.memory)

    def near(self, point: Point, needs: int) -> FittedPoint | Short | None:
        """A point whose layers are an estimate: without any if that fits, with more of them where
        these are too few. needs: the bytes that it takes without any, about."""
        plain = replace(point, layers=())
        if not point.layers or self.limit is None or needs <= SURELY * self.limit:
            plan = self.plan(plain)
            made = self.made(plain, plan) if plan is not None else None
            if made is None or isinstance(made, FittedPoint):
                return made
        plan = self.plan(point) if point.layers else None
        if plan is not None:
            made = self.made(point, plan)
            made = (
                made if isinstance(made, FittedPoint) else self._fewest_of(point, plan, _layers(plan, self.of.layers))
            )
            if isinstance(made, FittedPoint):
                return made
        return self.best(plain)

    def _ways(self, point: Point, plan: Plan) -> Iterator[FittedPoint | Short]:
        """With more and more tables on the host, and with each kind of computing again."""
        tables = self._tables(plan) if self.of.hole(ast.Place) else []
        for some in range(len(tables) + 1):
            hosting = replace(point, hosted=tuple(tables[:some]))
            here = self.plan(hosting) if some else plan
            if here is not None:
                yield from self._fewest(hosting, here)

    def _tables(self, plan: Plan) -> list[str]:
        """Tables that may be on the host, the largest first."""
        graph = plan.graph
        params = [p for p in plan.params.values() if is_table(plan, p) and p.value not in plan.memory_of]
        params.sort(key=lambda p: -sum(held_bytes(plan, p)))
        paths = [path for p in params for path in places(graph.values[p.value].path)]
        return [path for path in paths if self.of.covered(ast.Place, path) and not self.of.written(ast.Place, path)]

    def _fewest(self, point: Point, plan: Plan) -> Iterator[FittedPoint | Short]:
        """With the fewest layers computed again."""
        made = self.made(point, plan)
        if isinstance(made, FittedPoint) or not self.of.layers:
            yield made
            return
        on = _layers(plan, self.of.layers)
        for what in AGAIN:
            yield self._fewest_of(replace(point, again=what), plan, on)

    def _fewest_of(self, point: Point, plan: Plan, on: Sequence[Sequence[str]]) -> FittedPoint | Short:
        """With the fewest layers of each coordinate computed again beside those of a point."""
        least, low = self.made(point, plan), _again(point, plan, on)
        every = [some if self._fits(needs) else len(mine) for mine, (some, needs) in zip(on, low, strict=True)]
        most, needs = self._at(point, every, on)
        if not isinstance(most, FittedPoint):
            return min((each for each in (least, most) if each is not None), key=lambda each: each.memory)
        return self._narrowed(most, low, [*zip(every, needs, strict=True)], on)

    def between(self, less: FittedPoint, most: FittedPoint) -> FittedPoint:
        """With as few layers computed again as fit: no fewer than of a point that needs too much,
        and no more than of one that fits."""
        on = _layers(most.plan, self.of.layers)
        low, high = (_again(each.point, each.plan, on) for each in (less, most))
        high = [a if self._fits(a[1]) else b for a, b in zip(low, high, strict=True)]
        return self._narrowed(most, low, high, on)

    def _fits(self, needs: int) -> bool:
        return self.limit is None or needs <= self.limit

    def _narrowed(
        self, best: FittedPoint, low: list[Again], high: list[Again], on: Sequence[Sequence[str]]
    ) -> FittedPoint:
        """The fewest layers between those that are too few and those that are enough, which the
        best so far has."""
        point, turn, needs = best.point, 0, [0]
        while needs and any(b - a > 1 for (a, _), (b, _) in zip(low, high, strict=True)):
            middle = [_between(a, b, self.limit or 0, turn) for a, b in zip(low, high, strict=True)]
            made, needs = self._at(point, middle, on)
            for at, both in enumerate(zip(middle, needs, strict=bool(needs))):
                (high if self._fits(both[1]) else low)[at] = both
            best, turn = made if isinstance(made, FittedPoint) else best, turn + 1
        enough = [some for some, _ in high]
        tested = _with(point, enough, on).layers == best.point.layers
        last = best if tested else self._at(point, enough, on)[0]
        return last if isinstance(last, FittedPoint) else best

    def _at(
        self, point: Point, counts: Sequence[int], on: Sequence[Sequence[str]]
    ) -> tuple[FittedPoint | Short | None, list[int]]:
        """A point with so many layers of each coordinate computed again, and the bytes that each
        needs; (None, []) where it is illegal."""
        here = _with(point, counts, on)
        plan = self.plan(here)
        return (self.made(here, plan), [*needed(plan)]) if plan is not None else (None, [])

    def made(self, point: Point, plan: Plan) -> FittedPoint | Short:
        """A point by its plan."""
        point = replace(point, bucket=plan.bucket_bytes // MB if point.bucket else 0)
        memory = max(needed(plan))
        if self.limit is not None and memory > self.limit:
            return Short(point, memory)
        return FittedPoint(point, filled(self.of, point, self.title), plan, self.seconds(work(plan)), memory)


def _with(point: Point, counts: Sequence[int], on: Sequence[Sequence[str]]) -> Point:
    layers = tuple(layer for mine, some in zip(on, counts, strict=True) for layer in mine[:some])
    return replace(point, layers=layers)


def _again(point: Point, plan: Plan, on: Sequence[Sequence[str]]) -> list[Again]:
    """How many layers each coordinate computes again, and the bytes that it needs so."""
    return [(len({*mine} & {*point.layers}), needs) for mine, needs in zip(on, needed(plan), strict=True)]


def _between(low: Again, high: Again, limit: int, turn: int) -> int:
    """The layers at which a line between too few and enough of them meets the limit; in later turns
    those in the middle, as it was no line."""
    (a, most), (b, least) = low, high
    if b - a <= 1:
        return b
    line = a - (limit - most) * (b - a) // (most - least)
    return (a + b) // 2 if turn > 2 else min(max(line, a + 1), b - 1)


def _layers(plan: Plan, layers: Sequence[str]) -> list[list[str]]:
    """The layers of each coordinate, in order."""
    pipeline, wanted = plan.pipeline, set(layers)
    found: list[dict[str, None]] = [{} for _ in range(pipeline.mesh.axis_size(pipeline.axis) if pipeline else 1)]
    for op in plan.graph.ops:
        mine = next((layer for layer in ancestors(enclosing(op)) if wanted.issuperset(places(layer))), None)
        if mine is not None and op.section == "loss":
            at = pipeline.coordinates[pipeline.op_stage[op.id]] if pipeline else 0
            found[at].update(dict.fromkeys(places(mine)))
    return [list(each) for each in found]
