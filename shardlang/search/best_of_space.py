"""The points of a space -> the best of them.

Where all can be planned, they are, in the order of a guess at their time. Those of a deep program
are bounded by what a layer takes (deep/), and only those are planned that may be the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from shardlang.frozen.records import dataclass
from shardlang.search.deep.best_first import AGAIN, BestFirst
from shardlang.search.fit_memory import FittedPoint, Fitting, Short, costs
from shardlang.search.layers import arrays
from shardlang.search.profiles import Estimate, Profiles, without_stages
from shardlang.search.recursive import halved
from shardlang.search.request import DYNAMIC, EXACT, RECURSIVE, SearchRequest
from shardlang.search.rough_time import Guess
from shardlang.search.space import Open, Point, points
from shardlang.search.splits.ways import Splitting
from shardlang.syntax import ast
from shardlang.terminal.display import duration

# Of the budget, for the search among the points of a deep program once one was found that fits; the
# rest is for its buckets, and for a plan that leaves memory free.
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
    all: bool
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

    def add(self, made: FittedPoint | Short | None) -> None:
        if isinstance(made, Short) and (self.short is None or made.memory < self.short.memory):
            self.short = made
        if isinstance(made, FittedPoint):
            self.found = sorted([*self.found, made], key=lambda found: found.seconds)[: 2 * self.wanted.count]

    def checked(self) -> list[FittedPoint]:
        """The best whose programs can be emitted; of large programs only the first is looked at."""
        found = list[FittedPoint]()
        for made in self.found:
            known = found and len(made.plan.graph.ops) > LARGE
            if len(found) < self.wanted.count and (known or self.wanted.sound(made.plan)):
                found.append(made)
        return found


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
        return Outcome(best.checked(), None, looked, max(looked, best.total), False, stopped=str(signal) or "Ctrl-C")


def _searched(best: _Best, fitting: Fitting, wanted: SearchRequest) -> Outcome:
    guess = Guess(fitting.of, wanted.hardware, wanted.room or math.inf)
    profiles = _profiles(fitting.of, wanted.room)
    array = profiles.array if profiles is not None else None
    splitting = Splitting(fitting.of, without_stages(fitting.of), wanted, array)
    if wanted.mode == RECURSIVE:
        return _halved(best, splitting)
    cost = costs(fitting.of.told)
    most = int(wanted.budget / cost) if profiles is not None else None
    few_points = list(islice(points(fitting.of, splitting), None if most is None else most + 1))
    if profiles is not None and most is not None and len(few_points) > most:
        return _deep(best, profiles, guess, splitting)
    waiting = sorted(few_points, key=guess)
    if wanted.mode == EXACT and len(waiting) * cost > wanted.budget:
        # Of more points than are planned, those come first that `dynamic_programming` looks at.
        ahead = points(fitting.of, replace(splitting, wanted=replace(wanted, mode=DYNAMIC), known={}))
        waiting = list(dict.fromkeys([*sorted(ahead, key=guess), *waiting]))
    looked = _whole(best, waiting)
    every = looked == len(waiting) and splitting.all and not fitting.of.large
    return Outcome(best.checked(), best.short, looked, len(waiting), every, spare=_spare(best, None))


def _halved(best: _Best, splitting: Splitting) -> Outcome:
    """The outcome of halving the ranks: no other points are looked at."""
    made = halved(best.fitting, splitting, best.wanted)
    for found in made.found:
        best.add(found)
    return Outcome(best.checked(), made.short, made.looked, made.looked, False, spare=_spare(best, None))


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


def _deep(best: _Best, profiles: Profiles, guess: Guess, splitting: Splitting) -> Outcome:
    """Bounds points, and plans those whole that may be the best."""
    wanted, fitting = best.wanted, best.fitting

    def whole(estimate: Estimate) -> tuple[float, float]:
        best.add(fitting.near(estimate.point, estimate.plain))
        return best.found[0].seconds if best.found else math.inf, fitting.spent()

    search = BestFirst(profiles, wanted, guess, whole)
    reached = search.run(splitting, SEARCH * wanted.budget, wanted.budget)
    if reached.best == math.inf and reached.short is not None:
        best.add(fitting.best(replace(reached.short[1], layers=())))
    spare = _spare(best, profiles)
    return Outcome(best.checked(), best.short, reached.looked, reached.total, False, reached.open, spare=spare)


def _spare(best: _Best, profiles: Profiles | None) -> FittedPoint | None:
    """The fastest of the best that leaves `MARGIN` of the memory free; where the budget lasts, the
    first is planned so too."""
    found, wanted, fitting = best.checked(), best.wanted, best.fitting
    if wanted.limit is None or not found:
        return None
    limit, first = int((1 - MARGIN) * wanted.limit), found[0]
    fits = [each for each in found if each.memory <= limit]
    written = first.strategy in fitting.of.program.strategies
    if first not in fits and not written and fitting.spent() < wanted.budget:
        point, room = replace(first.point, layers=()), replace(wanted, limit=limit).room
        made = _nearer(replace(fitting, limit=limit), point, profiles, room)
        fits += [made] if isinstance(made, FittedPoint) else []
    return min(fits, key=lambda each: each.seconds, default=None)


def _nearer(fitting: Fitting, point: Point, profiles: Profiles | None, room: int | None) -> FittedPoint | Short | None:
    """A point within less memory, by an estimate where there are profiles."""
    guessed = profiles.estimate(point, point.again or AGAIN[0], room) if profiles is not None else None
    if guessed is None:
        return fitting.best(point)
    return fitting.near(replace(guessed.point, bucket=point.bucket), guessed.plain)
