"""The points of a space -> the best of them.

Where all can be planned whole, they are, in the order of a guess at their time. Those of a deep
program are bounded and estimated from few layers (deep/), and only the best are planned whole. The
answer is always about whole plans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from shardlang.frozen.records import dataclass
from shardlang.search.deep.best_first import BestFirst
from shardlang.search.fit_memory import FittedPoint, Fitting, Short, costs
from shardlang.search.profiles import Estimate, Profiles, without_stages
from shardlang.search.recursive import halved
from shardlang.search.request import DYNAMIC, EXACT, RECURSIVE, SearchRequest
from shardlang.search.rough_time import Guess
from shardlang.search.space import BUCKETS, MB, Open, Point, points
from shardlang.search.splits.ways import Splitting
from shardlang.search.truncate import arrays, cut
from shardlang.syntax import ast
from shardlang.terminal.display import duration

# Of the budget, for bounds and estimates; the rest is for whole plans.
ESTIMATES = 0.35
# Operators of a program that is large.
LARGE = 300


@dataclass(frozen=True, eq=False)
class Outcome:
    """best: at most as many as were asked for, the fastest first. short: the point that lacks
    least, where nothing fits. looked: how many points were planned or simulated; total: how many
    there are. all: whether nothing else that is open can be faster. open: seconds that all other
    points take at least, if that is known. stopped: by what the search was ended before its time,
    "" if it was not."""

    best: Sequence[FittedPoint]
    short: Short | None
    looked: int
    total: int
    all: bool
    open: float | None = None
    stopped: str = ""


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
    few = profiles.cuts[2] if profiles is not None else _few(fitting.of)
    splitting = Splitting(fitting.of, few, wanted)
    if wanted.mode == RECURSIVE:
        return _halved(best, splitting)
    most = int(wanted.budget / costs(fitting.of.program)) if profiles is not None else None
    few_points = list(islice(points(fitting.of, splitting), None if most is None else most + 1))
    if profiles is not None and most is not None and len(few_points) > most:
        return _deep(best, BestFirst(profiles, wanted, guess), splitting)
    waiting = sorted(few_points, key=guess)
    if wanted.mode == EXACT and len(waiting) * costs(fitting.of.program) > wanted.budget:
        # Of more points than are planned, those come first that `dynamic_programming` looks at.
        ahead = points(fitting.of, Splitting(fitting.of, few, replace(wanted, mode=DYNAMIC)))
        waiting = list(dict.fromkeys([*sorted(ahead, key=guess), *waiting]))
    looked = _whole(best, waiting)
    every = looked == len(waiting) and splitting.all and not fitting.of.large
    return Outcome(best.checked(), best.short, looked, len(waiting), every)


def _halved(best: _Best, splitting: Splitting) -> Outcome:
    """The outcome of halving the ranks: no other points are looked at."""
    made = halved(best.fitting, splitting, best.wanted)
    for found in made.found:
        best.add(found)
    return Outcome(best.checked(), made.short, made.looked, made.looked, False)


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
    """For estimates, if the program has one array of layers that are alike, of which the strategy
    names none by its number."""
    found = arrays(of.program.graph)
    named = _names_layers(of)
    written = of.stages is not None and not of.stages.balanced
    hosts = any(isinstance(rule, ast.Place) and rule.where is not None for rule in of.rules)
    usable = len(found) == 1 and not named and not written and not hosts
    return Profiles(of, found[0], limit) if usable else None


def _names_layers(of: Open) -> bool:
    """Whether the strategy names a layer of an array by its number."""
    return any(isinstance(s.index, int | tuple) for at in of.ats for x in at.selectors for s in x.segments)


def _few(of: Open) -> Open:
    """The strategy without stages, on two layers of each array if it names none of them."""
    found = [] if _names_layers(of) else arrays(of.program.graph)
    return without_stages(of, cut(of.program, found, 2) if found else of.program)


def _deep(best: _Best, search: BestFirst, splitting: Splitting) -> Outcome:
    """Estimates points, and plans the best of them whole."""
    wanted, reached = best.wanted, search.run(splitting, ESTIMATES * best.wanted.budget, best.wanted.budget)
    if not reached.made and reached.short is not None:
        best.add(best.fitting.best(replace(reached.short[1], layers=())))
    every = sorted(reached.made, key=_first)
    every = sorted([*every, *(each for known in every[:1] for each in _buckets(best, known))], key=_first)
    for tried, (seconds, _, estimate) in enumerate(every):
        full = len(best.found) >= wanted.count and seconds >= best.found[wanted.count - 1].seconds
        if full or (tried and best.fitting.spent() > (1 - ESTIMATES) * wanted.budget):
            break
        best.tell(f"planning whole: {tried + 1}")
        best.add(best.fitting.near(estimate.point, estimate.plain))
    return Outcome(best.checked(), best.short, reached.looked, reached.total, False, reached.open)


def _first(made: tuple[float, int, Estimate]) -> tuple[float, int]:
    return made[:2]


def _buckets(best: _Best, known: tuple[float, int, Estimate]) -> Iterator[tuple[float, int, Estimate]]:
    """An estimate with smaller and smaller buckets, as long as that takes less."""
    seconds, looked, estimate = known
    sizes = sorted((n for n in BUCKETS if n < estimate.point.bucket), reverse=True) if best.fitting.of.large else ()
    for size in sizes:
        work = replace(estimate.work, bucket_bytes=size * MB)
        before, seconds = seconds, best.wanted.seconds(work)
        if seconds >= before:
            return
        yield seconds, looked, replace(estimate, point=replace(estimate.point, bucket=size), work=work)
