"""All points of a deep program -> those that are planned whole, and what any other takes at least.

Points wait in the order of a bound that no simulation undercuts. The next is bounded closer, and in
the end planned, until nothing that waits can be faster than the best."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import count

from shardlang.frozen.records import dataclass
from shardlang.search.deep.priced import Priced
from shardlang.search.fit_memory import AGAIN, FittedPoint, Fitting, Short
from shardlang.search.pipelines import Pipe, pipe
from shardlang.search.profiles import Profiles
from shardlang.search.request import SearchRequest
from shardlang.search.rough_time import Guess
from shardlang.search.space import Cuts, Point, course_facts, courses, heads, zeros
from shardlang.syntax import ast

# Seconds of a processor for the bound of a point, to simulate an action of a plan, and for what is
# around that.
A_BOUND, AN_ACTION, A_SIMULATION = 1e-4, 1.5e-5, 15e-3


@dataclass(frozen=True, slots=True)
class SearchNode:
    """A point, as far as it is chosen. level: -1 a mesh, 0 without a profile, 1 with its level of
    ZeRO, 2 with what is computed again, if anything is."""

    level: int
    point: Point
    again: str | None = None


@dataclass
class Reached:
    """best: the least seconds of what was planned; short: of what does not fit, the least memory.
    open: the least that anything else takes; looked: points that were planned, or lack memory."""

    best: float = math.inf
    short: tuple[int, Point] | None = None
    open: float = 0.0
    looked: int = 0
    total: int = 0
    spent: float = 0.0


@dataclass
class BestFirst:
    """The search. guess: at the seconds of a point, for which there is no profile yet. add: keeps
    what is planned; the least seconds so far."""

    profiles: Profiles
    wanted: SearchRequest
    guess: Guess
    fitting: Fitting
    add: Callable[[FittedPoint | Short | None], float]
    waiting: list[tuple[float, float, int, SearchNode]] = field(default_factory=list)
    number: Iterator[int] = field(default_factory=count)
    reached: Reached = field(default_factory=Reached)

    def run(self, ways: Callable[[dict[str, int]], Sequence[Cuts]], part: float) -> Reached:
        """The search through all points, for a part of the budget of seconds of a processor, which
        are counted by what is done; as long as nothing fits, for all of it."""
        found, budget = self.reached, self.wanted.budget
        for head in filter(self._used, heads(self.profiles.of, ways)):
            self._add(head)
        while self.waiting and self._spent() < budget * (part if found.best < math.inf else 1):
            _, bound, _, node = heapq.heappop(self.waiting)
            if bound < found.best:
                self.wanted.tell(f"{found.looked} of {found.total:,} points")
                self._open(bound, node)
        found.open = min((max(bound, self.priced.floor) for _, bound, _, _ in self.waiting), default=math.inf)
        if found.best == math.inf and found.short is not None:
            self.add(self.fitting.best(replace(found.short[1], layers=())))
        return found

    def _used(self, head: Point) -> bool:
        """Whether every axis of `split auto` that has ranks splits anything."""
        named = {axis for _, _, uses in head.splits for axis, _ in uses}
        pinned = " ".join(layout for _, layout in head.pins)
        open = self.profiles.of.open_axes
        return all(n == 1 or axis in named or axis in pinned for axis, n in head.sizes if axis in open)

    @cached_property
    def priced(self) -> Priced:
        """The prices, by a point on one rank, of one example a microbatch."""
        of = self.profiles.of
        sizes = tuple((axis.name, 1) for axis in of.axes)
        share = of.share(dict(sizes)) if of.hole(ast.Microbatches) else 0
        reference = Point(sizes, microbatches=share, zero=((0, False),) * len(of.zeros))
        return Priced(self.profiles, self.wanted.hardware, reference)

    def _spent(self) -> float:
        return self.reached.spent + self.profiles.spent + self.fitting.spent()

    def _push(self, bound: float, node: SearchNode, levels: Sequence[Point] = (), known: float | None = None) -> None:
        """Keeps what may be better than the best. A guess at levels of ZeRO says when its turn is:
        before the last the bound knows nothing of what is sent, or of memory. known: seconds of
        what is not its parameters'."""
        self.reached.spent += A_BOUND
        if bound < self.reached.best:
            turn = max(bound, self.guess(node.point, levels, known)) if levels else bound
            heapq.heappush(self.waiting, (turn, bound, next(self.number), node))

    def _pipe(self, point: Point) -> Pipe | None:
        return pipe(self.profiles.of, self.profiles.array, point)

    def _add(self, head: Point) -> None:
        """A mesh with its splits, whose turn comes by a guess at the best of it: with as many
        stages as it can have."""
        every, levels = course_facts(self.profiles.of, head), list(zeros(self.profiles.of, head))
        self.reached.total += len(every) * len(levels)
        deepest = [*{count: virtual for virtual, count, _ in every}.items()][::2]
        points = (replace(head, virtual=virtual, microbatches=count) for count, virtual in deepest)
        turn = min((self.guess(point, levels) for point in points), default=None)
        if turn is not None:
            heapq.heappush(self.waiting, (turn, 0.0, next(self.number), SearchNode(-1, head)))

    def _add_courses(self, head: Point) -> None:
        levels = list(zeros(self.profiles.of, head))
        for point in courses(self.profiles.of, head):
            found = self._pipe(point)
            if found is not None:
                self._push(self.priced.ideal(point, found), SearchNode(0, point), levels)

    def _open(self, bound: float, node: SearchNode) -> None:
        if node.level < 0:
            self._add_courses(node.point)
            return
        found = self._pipe(node.point)
        assert found is not None
        if node.level == 0:
            self._add_levels(bound, node.point, found)
        elif node.level == 1:
            self._bounded(bound, node.point, found)
        else:
            self._planned(node, found)

    def _add_levels(self, bound: float, point: Point, found: Pipe) -> None:
        """A point with each level of ZeRO, whose turn comes by the seconds without it."""
        levels = list(zeros(self.profiles.of, point))
        profile = self.profiles.profile(levels[0], None)
        if profile is None:
            return
        first = self.priced.first(levels[0], profile, found)
        for each in levels:
            self._push(max(bound, first), SearchNode(1, each), [each], first)

    def _bounded(self, bound: float, point: Point, found: Pipe) -> None:
        """A point with its level of ZeRO, with nothing computed again; if that does not fit, in
        each way to do so."""
        profile = self.profiles.profile(point, None)
        if profile is None:
            return
        least = self.priced.least(point, profile, found, None)
        if least is not None:
            self._push(max(bound, least), SearchNode(2, point))
        else:
            self._again(bound, point, found)

    def _again(self, bound: float, point: Point, found: Pipe) -> None:
        """A point that does not fit, with each way to compute layers again. All levels of ZeRO have
        the same profile for that: a layer keeps and computes once more as much."""
        profiles, priced = self.profiles, self.priced
        profile, least_zero = profiles.profile(point, None), next(zeros(profiles.of, point))
        plain = profiles.profile(least_zero, None)
        assert profile is not None
        for what in AGAIN if profiles.of.layers else ():
            again = profiles.profile(least_zero, what)
            if again is None or plain is None:
                continue
            least = priced.least(point, profile, found, (plain, again))
            if least is not None:
                self._push(max(bound, least), SearchNode(2, point, what))
            elif self.reached.best == math.inf:
                self._lacks(priced.needs(point, profile, found, again), point)

    def _planned(self, node: SearchNode, found: Pipe) -> None:
        estimate, reached = self.profiles.estimate(node.point, node.again), self.reached
        if estimate is None:
            return
        limit = self.profiles.limit
        if limit is not None and estimate.memory > limit:
            self._lacks(estimate.memory, node.point)
            if node.again is None:
                self._again(0.0, node.point, found)
            return
        reached.looked += 1
        reached.spent += A_SIMULATION + 2 * found.count * len(found.layers) * AN_ACTION
        reached.best = self.add(self.fitting.near(estimate.point, estimate.plain))

    def _lacks(self, memory: int, point: Point) -> None:
        self.reached.looked += 1
        if self.reached.short is None or memory < self.reached.short[0]:
            self.reached.short = memory, point
