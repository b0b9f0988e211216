"""The points of a space -> the best of them.

Where all can be planned, they are, in the order of a guess at their time. Those of a deep program
are bounded by what a layer takes (deep/), and only those are planned that may be the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import SingleLayers
from shardlang.plan.planner import laid_out
from shardlang.search.deep.best_first import BestFirst
from shardlang.search.fit_memory import AGAIN, FittedPoint, Fitting, Short, costs
from shardlang.search.layers import arrays
from shardlang.search.profiles import Profiles, without_stages
from shardlang.search.recursive import halved
from shardlang.search.request import DYNAMIC, EXACT, RECURSIVE, SearchRequest
from shardlang.search.rough_time import Guess
from shardlang.search.space import Open, Point, points
from shardlang.search.splits.ways import Splitting
from shardlang.syntax import ast
from shardlang.terminal.display import duration

# Of the budget, for the points of a deep program once one is found that fits.
SEARCH = 0.35
# The part of a device's memory whose price is told.
MARGIN = 0.05
# Operators of a program that is large.
LARGE = 300


@dataclass(frozen=True, eq=False)
class Outcome:
    """best: at most as many as were asked for, the fastest first. short: the point that lacks
    least, where nothing fits. looked: how many points were planned or simulated; total: how many
    there are. all: whether nothing else that is open can be faster. open: seconds that all other
    points take at least, if that is known. stopped: by what the search was ended before its time,
    "" if it was not. spare: the fastest that leaves a part of the device's memory free, where one
    was found."""

    best: Sequence[FittedPoint]
    short: Short | None
    looked: int
    total: int
    all: bool = False
    open: float | None = None
    stopped: str = ""
    spare: FittedPoint | None = None


@dataclass
class _Best:
    """The best so far."""

    fitting: Fitting
    wanted: SearchRequest
    found: list[FittedPoint]
    short: Short | None = None
    total: int = 0

    def tell(self, text: str) -> None:
        """Tells what goes on, with the best so far."""
        least = f", the best takes {duration(self.found[0].seconds)}" if self.found else ""
        self.wanted.tell(f"{text}{least}")

    def add(self, made: FittedPoint | Short | None) -> float:
        """Keeps what may be told; the least seconds so far."""
        if isinstance(made, Short) and (self.short is None or made.memory < self.short.memory):
            self.short = made
        if isinstance(made, FittedPoint):
            self.found = sorted([*self.found, made], key=lambda found: found.seconds)[: 2 * self.wanted.count]
        return self.found[0].seconds if self.found else math.inf

    def outcome(self, looked: int, total: int, profiles: Profiles | None = None, **more: Any) -> Outcome:
        """The best whose programs can be emitted; of large programs only the first is looked at."""
        found, large = list[FittedPoint](), len(self.fitting.of.program.graph.ops) > LARGE
        for made in self.found:
            if len(found) < self.wanted.count and ((found and large) or self._sound(made)):
                found.append(made)
        return Outcome(found, self.short, looked, total, spare=self._spare(found, profiles), **more)

    def _sound(self, made: FittedPoint) -> bool:
        """Whether the program of a plan can be emitted: where it has lines of single layers, of the
        plan that has each by itself."""
        try:
            return self.wanted.sound(made.plan)
        except SingleLayers:
            whole = laid_out(self.fitting.of.program, made.strategy, self.wanted.ranks, Sink())
            return whole is not None and self.wanted.sound(whole)

    def _spare(self, found: Sequence[FittedPoint], profiles: Profiles | None) -> FittedPoint | None:
        """The fastest of the best that leaves `MARGIN` of the memory free; where the budget lasts,
        the first is planned so too."""
        fitting, wanted = self.fitting, self.wanted
        if wanted.limit is None or not found:
            return None
        limit, first = int((1 - MARGIN) * wanted.limit), found[0]
        fits = [each for each in found if each.memory <= limit]
        if (
            first not in fits
            and first.strategy not in fitting.of.program.strategies
            and fitting.spent() < wanted.budget
        ):
            less, point = replace(fitting, limit=limit), replace(first.point, layers=())
            room, again = replace(wanted, limit=limit).room, point.again or AGAIN[0]
            guess = profiles.estimate(point, again, room) if profiles is not None else None
            made = less.near(replace(guess.point, bucket=point.bucket), guess.plain) if guess else less.best(point)
            made = less.between(first, made) if isinstance(made, FittedPoint) and guess else made
            fits += [made] if isinstance(made, FittedPoint) else []
        return min(fits, key=lambda each: each.seconds, default=None)


def searched(fitting: Fitting, given: Iterable[FittedPoint], wanted: SearchRequest) -> Outcome:
    """The best points. given: strategies of the file that fit."""
    best = _Best(fitting, wanted, [])
    try:
        for found in given:
            best.add(found)
        return _searched(best, fitting, wanted)
    except KeyboardInterrupt as signal:
        if not best.found:
            raise
        looked = sum(fitting.plans.values())
        return best.outcome(looked, max(looked, best.total), stopped=str(signal) or "Ctrl-C")


def _searched(best: _Best, fitting: Fitting, wanted: SearchRequest) -> Outcome:
    guess = Guess(fitting.of, wanted.hardware, wanted.room or math.inf)
    profiles = _profiles(fitting.of, wanted.room)
    array = profiles.array if profiles is not None else None
    splitting = Splitting(fitting.of, without_stages(fitting.of), wanted, array)
    if wanted.mode == RECURSIVE:
        looked = sum(1 for made in halved(fitting, splitting, wanted) for _ in [best.add(made)])
        return best.outcome(looked, looked)
    cost = costs(fitting.of.told)
    most = int(wanted.budget / cost) if profiles is not None else None
    few_points = list(islice(points(fitting.of, splitting), None if most is None else most + 1))
    if profiles is not None and most is not None and len(few_points) > most:
        search = BestFirst(profiles, replace(wanted, tell=best.tell), guess, fitting, best.add)
        reached = search.run(splitting, SEARCH)
        return best.outcome(reached.looked, reached.total, profiles, open=reached.open)
    waiting = sorted(few_points, key=guess)
    if wanted.mode == EXACT and len(waiting) * cost > wanted.budget:
        # Of more points than are planned, those come first that `dynamic_programming` looks at.
        ahead = points(fitting.of, replace(splitting, wanted=replace(wanted, mode=DYNAMIC), known={}))
        waiting = list(dict.fromkeys([*sorted(ahead, key=guess), *waiting]))
    looked = _whole(best, waiting)
    return best.outcome(looked, len(waiting), all=looked == len(waiting) and splitting.all and not fitting.of.large)


def _whole(best: _Best, waiting: Sequence[Point]) -> int:
    """Plans points whole; how many."""
    for looked, point in enumerate(waiting):
        if best.fitting.spent() > best.wanted.budget:
            return looked
        best.total = len(waiting)
        best.tell(f"{looked} of {len(waiting):,} points")
        best.add(best.fitting.best(point))
    return len(waiting)


def _profiles(of: Open, limit: int | None) -> Profiles | None:
    """For bounds, if the program has one array of equal layers, of which the strategy names none by
    its number."""
    found = arrays(of.told.graph)
    named = any(isinstance(s.index, int | tuple) for at in of.ats for x in at.selectors for s in x.segments)
    written = of.stages is not None and not of.stages.balanced
    hosts = any(isinstance(rule, ast.Place) and rule.where is not None for rule in of.rules)
    usable = len(found) == 1 and found[0].equal and not named and not written and not hosts
    return Profiles(of, found[0], limit) if usable else None
