"""A point -> its plan with as little computed again as fits, and as much on the host as is best;
or the least memory that it needs.

Each coordinate of the pipeline has layers of its own, so that the fewest are found for all of them
at once, by halving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from shardlang.check.program import CheckedProgram
from shardlang.cost.planned import work
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import is_table, needed
from shardlang.frozen.records import dataclass
from shardlang.plan.pipeline.stages import ancestors, enclosing
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.search.fill_holes import filled
from shardlang.search.space import Open, Point, Seconds
from shardlang.step.parameters import held_bytes
from shardlang.syntax import ast

AGAIN = ("", "all but products")
# Plans that are kept for points that differ in nothing but ZeRO and buckets.
ALIKE = 16
# What an estimate has beyond a device's memory by so much does not fit.
SURELY = 1.1
# Seconds of a processor to plan a point, and to predict its time.
A_PLAN, AN_OPERATOR = 4e-3, 4e-4


def costs(program: CheckedProgram) -> float:
    """Seconds of a processor to plan a point of a program."""
    return A_PLAN + len(program.graph.ops) * AN_OPERATOR


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
    _laid: dict[Point, Plan] = field(default_factory=dict)

    def plan(self, point: Point) -> Plan | None:
        """The plan of a point; None where it is illegal."""
        self.plans[len(self.of.program.graph.ops)] += 1
        key, laid = replace(point, zero=(), bucket=0), self._laid
        of, strategy = self.of, filled(self.of, point, self.title)
        plan = laid_out(of.program, strategy, of.ranks, Sink(), laid.get(key), of.known)
        if plan is not None and laid.setdefault(key, plan) is plan and len(laid) > ALIKE:
            del laid[next(iter(laid))]
        return plan

    def spent(self) -> float:
        """Seconds of a processor for the plans so far: counted by operators and not measured, so
        that the same program has the same answer everywhere."""
        return sum(count * (A_PLAN + ops * AN_OPERATOR) for ops, count in self.plans.items())

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
        surely = point.layers and self.limit is not None and needs > SURELY * self.limit
        for each in (plain, point)[bool(surely) :] if point.layers else (plain,):
            plan = self.plan(each)
            if plan is None:
                return None
            made = self._made(each, plan)
            if isinstance(made, FittedPoint):
                return made
        return self.best(plain)

    def _ways(self, point: Point, plan: Plan) -> Iterator[FittedPoint | Short]:
        """With more and more tables on the host, and with each kind of computing again."""
        tables = self._tables(plan) if self.of.hole(ast.Place) else []
        for count in range(len(tables) + 1):
            hosting = replace(point, hosted=tuple(tables[:count]))
            here = self.plan(hosting) if count else plan
            if here is not None:
                yield from self._fewest(hosting, here)

    def _tables(self, plan: Plan) -> list[str]:
        """Tables that may be on the host, the largest first."""
        graph = plan.graph
        params = [p for p in plan.params.values() if is_table(plan, p) and p.value not in plan.memory_of]
        params.sort(key=lambda p: -sum(held_bytes(plan, p)))
        paths = [graph.values[p.value].path for p in params]
        return [path for path in paths if self.of.covered(ast.Place, path) and not self.of.written(ast.Place, path)]

    def _fewest(self, point: Point, plan: Plan) -> Iterator[FittedPoint | Short]:
        """With the fewest layers computed again."""
        made = self._made(point, plan)
        if isinstance(made, FittedPoint) or not self.of.layers:
            yield made
            return
        on = _layers(plan, self.of.layers)
        for what in AGAIN:
            yield self._halved(replace(point, again=what), plan, on)

    def _halved(self, point: Point, plan: Plan, on: Sequence[Sequence[str]]) -> FittedPoint | Short:
        """low: layers of each coordinate that are too few; high: enough, if any are. The last that
        fits is taken."""
        over = self._over(plan)
        low, high = [0] * len(on), [len(mine) if bad else 0 for mine, bad in zip(on, over, strict=True)]
        least = self._made(point, plan)
        best = self._at(point, high, on)
        if isinstance(best, Short):
            return min((least, best), key=lambda each: each.memory)
        while isinstance(best, FittedPoint) and any(b - a > 1 for a, b in zip(low, high, strict=True)):
            middle = [(a + b) // 2 if b - a > 1 else b for a, b in zip(low, high, strict=True)]
            tried = self.plan(_with(point, middle, on))
            if tried is None:
                break
            for at, bad in enumerate(self._over(tried)):
                if bad:
                    low[at] = middle[at]
                else:
                    high[at] = middle[at]
            made = self._at(point, high, on)
            best = made if isinstance(made, FittedPoint) else best
        return best or least

    def _at(self, point: Point, counts: Sequence[int], on: Sequence[Sequence[str]]) -> FittedPoint | Short | None:
        point = _with(point, counts, on)
        plan = self.plan(point)
        return self._made(point, plan) if plan is not None else None

    def _over(self, plan: Plan) -> list[bool]:
        """Which coordinates need more than there is."""
        return [self.limit is not None and needs > self.limit for needs in needed(plan)]

    def _made(self, point: Point, plan: Plan) -> FittedPoint | Short:
        memory = max(needed(plan))
        if self.limit is not None and memory > self.limit:
            return Short(point, memory)
        return FittedPoint(point, filled(self.of, point, self.title), plan, self.seconds(work(plan)), memory)


def _with(point: Point, counts: Sequence[int], on: Sequence[Sequence[str]]) -> Point:
    layers = tuple(layer for mine, count in zip(on, counts, strict=True) for layer in mine[:count])
    return replace(point, layers=layers)


def _layers(plan: Plan, layers: Sequence[str]) -> list[list[str]]:
    """The layers of each coordinate, in order."""
    pipeline, wanted = plan.pipeline, set(layers)
    found: list[dict[str, None]] = [{} for _ in range(pipeline.mesh.axis_size(pipeline.axis) if pipeline else 1)]
    for op in plan.graph.ops:
        mine = next((layer for layer in ancestors(enclosing(op)) if layer in wanted), None)
        if mine is not None and op.section == "loss":
            found[pipeline.coordinates[pipeline.op_stage[op.id]] if pipeline else 0][mine] = None
    return [list(each) for each in found]
