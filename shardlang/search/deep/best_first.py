"""All points of a deep program -> those that are planned whole, and what any other takes at least.

Points are bounded in the order of a guess, for a part of the budget; those that may be the best are
then planned in the order of their bounds, which no simulation undercuts, until no bound is below
the best."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import count

from shardlang.frozen.records import dataclass
from shardlang.search.deep.estimates import Estimates
from shardlang.search.fit_memory import AGAIN, FittedPoint, Fitting, Short
from shardlang.search.request import SearchRequest
from shardlang.search.rough_time import Guess
from shardlang.search.space import Cuts, Point, course_facts, courses, heads, zeros

# Of the budget: for bounds, and for all, once a point is found that fits.
BOUNDS, SEARCH = 0.24, 0.36
# Seconds of a processor for the guess at a point, to simulate an action of a plan, and for what is
# around that.
A_GUESS, AN_ACTION, A_SIMULATION = 1e-4, 1.5e-5, 15e-3


@dataclass
class Reached:
    """best: the least seconds of what was planned; short: of what does not fit, the least memory.
    looked: points that were planned, or lack memory."""

    best: float = math.inf
    short: tuple[int, Point] | None = None
    looked: int = 0
    total: int = 0
    spent: float = 0.0


@dataclass
class BestFirst:
    """The search. add: keeps what is planned; the least seconds so far. guessed: points in the
    order of a guess, and meshes with their splits by that of their best point. bounded: points by
    their bounds, each with how layers are computed again (None: none is)."""

    estimates: Estimates
    wanted: SearchRequest
    guess: Guess
    fitting: Fitting
    add: Callable[[FittedPoint | Short | None], float]
    guessed: list[tuple[float, int, float, Point, bool]] = field(default_factory=list)
    bounded: list[tuple[float, int, Point, str | None, bool]] = field(default_factory=list)
    number: Iterator[int] = field(default_factory=count)
    reached: Reached = field(default_factory=Reached)
    times: dict[object, float] = field(default_factory=dict)

    def run(self, ways: Callable[[dict[str, int]], Sequence[Cuts]]) -> Reached:
        """The search through all points, for a part of the budget of seconds of a processor, which
        are counted by what is done; as long as nothing fits, for all of it."""
        found, budget = self.reached, self.wanted.budget
        for head in filter(self._used, heads(self.estimates.of, ways)):
            self._head(head)
        for bounds, all in ((BOUNDS, SEARCH), (0.5, 0.7), (0.8, 1.0)):
            while self.guessed and self._spent() < bounds * budget:
                self._open()
            while self.bounded and self._spent() < all * budget and self.bounded[0][0] < found.best:
                self.wanted.tell(f"{found.looked} of {found.total:,} points")
                self._next()
            if found.best < math.inf:
                return found
        if found.short is not None:
            self.add(self.fitting.best(replace(found.short[1], layers=())))
        return found

    @property
    def open(self) -> float:
        """Seconds that all that was not planned takes at least."""
        first = self.bounded[0][0] if self.bounded else math.inf
        return min(first, self.estimates.floor) if self.guessed else first

    def _spent(self) -> float:
        return self.reached.spent + self.estimates.plans.spent + self.fitting.spent()

    def _used(self, head: Point) -> bool:
        """Whether every axis of `split auto` that has ranks splits anything."""
        named = {axis for _, _, uses in head.splits for axis, _ in uses}
        pinned = " ".join(layout for _, layout in head.pins)
        open = self.estimates.of.open_axes
        return all(n == 1 or axis in named or axis in pinned for axis, n in head.sizes if axis in open)

    def _head(self, head: Point) -> None:
        """A mesh with its splits, whose turn comes by a guess at the best of it: with as many
        stages as it can have."""
        every, levels = course_facts(self.estimates.of, head), list(zeros(self.estimates.of, head))
        self.reached.total += len(every) * len(levels)
        deepest = [*{count: virtual for virtual, count, _ in every}.items()][::2]
        points = [replace(level, virtual=v, microbatches=n) for n, v in deepest for level in levels]
        if points:
            self._guess(min(map(self.guess, points)), head, True)

    def _open(self) -> None:
        """The next guess: the points of a mesh are guessed, a point is bounded."""
        turn, _, guess, point, is_head = heapq.heappop(self.guessed)
        corrected = guess * self.times.get(self._like(point), 1.0)
        if corrected > turn:
            self._guess(guess, point, is_head)
        elif not is_head:
            self._bound(guess, point)
        else:
            of = self.estimates.of
            for course in courses(of, point):
                for each in zeros(of, course) if self.estimates.pipe(course) is not None else ():
                    self._guess(self.guess(each), each, False)

    def _guess(self, guess: float, point: Point, is_head: bool) -> None:
        """Keeps a point, or a mesh, until its turn comes."""
        self.reached.spent += A_GUESS
        turn = guess * self.times.get(self._like(point), 1.0)
        heapq.heappush(self.guessed, (turn, next(self.number), guess, point, is_head))

    def _bound(self, guess: float, point: Point) -> None:
        """A point with nothing computed again; if that does not fit, in each way to do so. It says
        by how much guesses at points like it are too low."""
        seconds = self.estimates.seconds(point)
        if seconds is not None:
            self.times[self._like(point)] = max(self.times.get(self._like(point), 1.0), seconds / guess)
            ways = (None,) if self.estimates.fits(point) else self._ways
            self._push(*((seconds, point, what, what is None) for what in ways))

    def _like(self, point: Point) -> object:
        """The same for points whose guesses are too low by as much: those with the same pins, else
        with the same sizes of the axes that split layers."""
        of = self.estimates.of
        return point.pins or tuple(size for axis, size in point.sizes if axis not in (of.staged, *of.batch_axes))

    @property
    def _ways(self) -> Sequence[str]:
        return AGAIN if self.estimates.of.layers else ()

    def _push(self, *bounds: tuple[float, Point, str | None, bool]) -> None:
        for seconds, point, what, close in bounds:
            heapq.heappush(self.bounded, (seconds, next(self.number), point, what, close))

    def _close(self, point: Point, what: str) -> None:
        """A point with the layers counted that have to be computed again."""
        least = self.estimates.seconds(point, what)
        if least is not None:
            self._push((least, point, what, True))
        elif (estimate := self.estimates.estimate(point, what)) is not None:
            self._lacks(estimate.memory, point)

    def _next(self) -> None:
        """The point with the least bound is bounded more closely, or planned."""
        seconds, _, point, what, close = heapq.heappop(self.bounded)
        if what is not None and not close:
            self._close(point, what)
            return
        estimate, reached, found = self.estimates.estimate(point, what), self.reached, self.estimates.pipe(point)
        if estimate is None or found is None:
            return
        if self.estimates.limit is not None and estimate.memory > self.estimates.limit:
            self._lacks(estimate.memory, point)
            self._push(*((seconds, point, each, False) for each in self._ways if what is None))
            return
        reached.looked += 1
        reached.spent += A_SIMULATION + 2 * found.count * len(found.layers) * AN_ACTION
        reached.best = self.add(self.fitting.near(estimate.point))

    def _lacks(self, memory: int, point: Point) -> None:
        self.reached.looked += 1
        if self.reached.short is None or memory < self.reached.short[0]:
            self.reached.short = memory, point
