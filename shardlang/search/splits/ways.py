"""`split auto`: which dims are split over which axes, and which values lie otherwise.

Few ways are all points of the space. Where there are many, the operators of a few layers choose, by
an integer program or as the search mode says, and what they choose is written as rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import product

from shardlang.check.program import CheckedProgram
from shardlang.cost.planned import work
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan
from shardlang.plan.strategy.holes import holes
from shardlang.search.deep.usual import usual
from shardlang.search.fill_holes import filled
from shardlang.search.fit_memory import costs
from shardlang.search.layers import ArrayOfLayers
from shardlang.search.request import EXACT, RECURSIVE, SearchRequest
from shardlang.search.space import Cuts, Open, Pins, Point, all_sizes, splittable
from shardlang.search.splits.choices import resolved
from shardlang.search.splits.finders import Assigned, assigned
from shardlang.search.splits.seconds import SplitPrices
from shardlang.search.splits.written import Writing
from shardlang.step.parameters import all_held

# More ways than these are not all tried.
FEW = 64
# Plans to find and write one way.
PLANS = 20


@dataclass
class Splitting:
    """few: the strategy without stages. array: that of equal layers which the program is made of,
    if it is. all: whether all ways that there are have been given. plans: those by rules that were
    written, by ranks and point."""

    of: Open
    few: Open
    wanted: SearchRequest
    array: ArrayOfLayers | None
    known: dict[tuple[tuple[str, int], ...], Sequence[Cuts]] = field(default_factory=dict)
    all: bool = True
    plans: dict[tuple[int, Point], Plan | None] = field(default_factory=dict)

    def __call__(self, degrees: dict[str, int]) -> Sequence[Cuts]:
        """The ways to fill `split auto` on axes of such sizes."""
        is_exact = self.wanted.mode == EXACT and not is_whole(self.of)
        if is_exact and _count(self.of, degrees) <= FEW:
            options = [[(group, dim, uses) for uses in ways] for group, dim, ways in splittable(self.of, degrees)]
            every = product(*([(0, "", ()), *o] for o in options))
            return [Cuts(tuple(one for one in each if one[2])) for each in every]
        self.all = False
        return self.found(degrees)

    def found(self, degrees: dict[str, int]) -> Sequence[Cuts]:
        """The rules by which operators choose on axes of such sizes."""
        sizes = self._unstaged(degrees)
        if self.wanted.mode != RECURSIVE and self._many:
            open = self._open([axis for axis, size in sizes if size > 1])
            sizes = tuple((axis, 2 if axis in open and size > 1 else 1) for axis, size in sizes)
        if sizes not in self.known:
            on = ", ".join(f"{axis} = {size}" for axis, size in sizes if size > 1) or "1 rank"
            self.wanted.tell(f"ways to split on {on}")
            found = self.of.program.in_runs(lambda program: self.on(program)._cuts(sizes))
            # A strategy without holes is tried as it is, too; ZeRO may use an axis that cuts
            # nothing.
            bare = is_whole(self.of) or not found or (self.of.zeros and not self.of.large)
            self.known[sizes] = tuple(dict.fromkeys([*([Cuts()] if bare else []), *found]))
        # Large programs fit in no other way than that which keeps least.
        least = usual(self.of, self.array, degrees) if self.array is not None else ()
        return tuple(dict.fromkeys([*self.known[sizes], *least]))

    def _unstaged(self, degrees: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """The sizes of axes for one stage."""
        return tuple((a.name, degrees.get(a.name, 1) if a.name != self.of.staged else 1) for a in self.few.axes)

    @cached_property
    def _many(self) -> bool:
        """Whether operators choose as on two ranks of each axis: on all meshes it would take longer
        than the whole budget."""
        if self.of.large:
            return True
        meshes = {self._unstaged(dict(sizes)) for sizes in all_sizes(self.of)}
        return len(meshes) * PLANS * costs(self.few.program) > self.wanted.budget

    def _open(self, axes: Sequence[str]) -> Sequence[str]:
        """The axes over which operators choose: those of `split auto`, else all."""
        named = self.of.open_axes
        return [axis for axis in axes if axis != self.of.staged and (axis in named or not named)]

    def _cuts(self, sizes: tuple[tuple[str, int], ...]) -> Sequence[Cuts]:
        """The best way to write what operators choose. Where memory is short, another one too, in
        which parameters take less; with equal layers that is `usual`, and no answer had another."""
        lean = self.wanted.mode == EXACT and self.wanted.limit is not None and self.array is None
        both = (self.chosen(sizes), False), (self.chosen(sizes, True) if lean else None, True)
        ways = [self._written(sizes, found, lean) for found, lean in both if found is not None]
        return [cuts for cuts in dict.fromkeys(ways) if cuts is not None]

    def on(self, program: CheckedProgram) -> Splitting:
        """The same on the program with other cuts of its runs of equal layers."""
        return replace(self, few=replace(self.few, program=program), plans={})

    def _written(self, sizes: tuple[tuple[str, int], ...], found: Assigned, lean: bool) -> Cuts | None:
        meshes, few = found.of.planning.meshes, replace(self.few, ranks=found.of.planning.strategy.ranks or 1)
        unnamed = () if sizes else tuple((axis.name, axis.size) for axis in meshes[0].timeless.axes)
        point = Point(sizes or unnamed, zero=((0, False),) * len(self.few.zeros))
        open = self._open([axis.name for axis in meshes[0].timeless.axes])
        writing = Writing(few, point, open, found.of, self.plans)
        ways = [replace(cuts, sizes=unnamed) for cuts in writing.rules(found.chosen)]
        return _best(writing, ways, self.wanted, lean)

    def chosen(self, sizes: tuple[tuple[str, int], ...], lean: bool = False) -> Assigned | None:
        """The choices of operators on axes of such sizes; None where that is nothing, or cannot be
        written. lean: so that parameters take less."""
        ranks = math.prod(size for _, size in sizes) if sizes else self.few.ranks
        point = Point(sizes, zero=((0, False),) * len(self.few.zeros))
        few = replace(self.few, ranks=ranks)
        read = resolved(few.program, filled(few, point, "few"), ranks)
        if read is None:
            return None
        axes = [axis.name for mesh in read[0].meshes for axis in mesh.timeless.axes]
        if len(read[0].meshes) > 1 or (sizes and not set(axes) <= {axis for axis, _ in sizes}):
            return None  # what rules by position have cut has no name
        rates = SplitPrices(self.wanted.hardware, read[0].meshes, ranks)
        return assigned(read, self._open(axes), rates, self.wanted.mode, self.wanted.room, lean)


def needs_solver(of: Open) -> bool:
    """Whether operators choose by an integer program on axes of some sizes."""
    return is_whole(of) or any(_count(of, dict(sizes)) > FEW for sizes in all_sizes(of))


def _count(of: Open, degrees: dict[str, int]) -> int:
    return math.prod(1 + len(ways) for _, _, ways in splittable(of, degrees))


def is_whole(of: Open) -> bool:
    """Whether a strategy leaves nothing open but what propagation finds."""
    return not holes(of.strategy, of.program.axis_overrides.get(of.strategy.name.text, {}))


def _best(writing: Writing, ways: Sequence[Cuts], wanted: SearchRequest, lean: bool) -> Cuts | None:
    """The way with which few layers take least, times what they hold where it is to be lean; pins
    that change nothing are left out."""

    def cost(cuts: Cuts) -> float:
        plan = writing.plan(cuts)
        held = sum(map(sum, all_held(plan).values())) if plan is not None and lean else 1
        return wanted.seconds(work(plan)) * held if plan is not None else math.inf

    best, least = None, math.inf
    for cuts in ways:
        mine = cost(cuts)
        if mine == math.inf and writing.plan(replace(cuts, pins=())) is not None:  # pins that cannot be together
            cuts = _more(replace(cuts, pins=()), cuts.pins, lambda more: writing.plan(more) is not None)
            mine = cost(cuts)
        if mine < least:
            best, least = cuts, mine
    return None if best is None else _fewer(best, best.pins, lambda fewer: cost(fewer) <= least)


def _more(cuts: Cuts, pins: Pins, fits: Callable[[Cuts], bool]) -> Cuts:
    """With as many pins more as can be, those that cannot found by halving."""
    more = replace(cuts, pins=(*cuts.pins, *pins))
    if not pins or fits(more):
        return more
    middle = len(pins) // 2
    return _more(_more(cuts, pins[:middle], fits), pins[middle:], fits) if middle else cuts


def _fewer(cuts: Cuts, pins: Pins, fits: Callable[[Cuts], bool]) -> Cuts:
    """Without as many of some pins as can be."""
    fewer = replace(cuts, pins=tuple(pin for pin in cuts.pins if pin not in pins))
    if not pins or fits(fewer):
        return fewer
    middle = len(pins) // 2
    return _fewer(_fewer(cuts, pins[middle:], fits), pins[:middle], fits) if middle else cuts
