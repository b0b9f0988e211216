"""A strategy with holes and a rank count -> the points among which the best is looked for.

A point says what stands in each hole. Which layers are computed again, and which tables the host
has, follows from the memory of a point: fit_memory.py finds it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from itertools import combinations, product

from shardlang.check.program import CheckedProgram
from shardlang.check.selectors import matcher
from shardlang.cost.work import Workload
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.plan.layouts.known import LayoutTables
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.plan.pipeline.stages import ancestors, enclosing
from shardlang.plan.strategy.axis_sizes import SizedAxis, declared, divisors, evaluate
from shardlang.plan.strategy.holes import is_hole, narrowed
from shardlang.syntax import ast
from shardlang.types.dim import Dim

MB = 1_000_000
# In MB: what DDP has by default, and sizes that wider links or smaller models want.
BUCKETS = (25, 5, 100, 400)
# Level and `keep`.
ZERO = ((0, False), (1, False), (2, False), (3, False), (3, True))
MOST_VIRTUAL = 8
_INDEX = re.compile(r"\[\d+\]")
Uses = tuple[tuple[str, bool], ...]
Splits = tuple[tuple[int, str, Uses], ...]
Pins = tuple[tuple[str, str], ...]
Seconds = Callable[[Workload], float]


@dataclass(frozen=True, slots=True)
class Point:
    """The content of each hole. sizes: of the axes, in order. virtual: 0 where stages are written.
    microbatches, schedule, bucket: 0 and "" where that is written, or left out. zero: of each
    `zero auto` in order. splits: dims that `split auto` splits, each with its axes; the number of
    the `at` before them, 0 for those of the strategy. pins: layouts of values beside them. again:
    what of a layer is computed again, where that is open. layers: paths of those; hosted: of
    tables."""

    sizes: tuple[tuple[str, int], ...]
    virtual: int = 0
    microbatches: int = 0
    schedule: str = ""
    zero: tuple[tuple[int, bool], ...] = ()
    bucket: int = 0
    splits: tuple[tuple[int, str, Uses], ...] = ()
    again: str = ""
    layers: tuple[str, ...] = ()
    hosted: tuple[str, ...] = ()
    pins: Pins = ()


@dataclass(frozen=True, slots=True)
class Cuts:
    """Rules that stand for `split auto`: dims with their axes, and pins: of a path, the layout.
    sizes: of the axes that pins name, where the strategy has no mesh."""

    splits: Splits = ()
    pins: Pins = ()
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Open:
    """A strategy on so many ranks, and what of it is open. known: what its plans share; found: what
    has been found out about its points."""

    program: CheckedProgram
    strategy: ast.Strategy
    ranks: int
    known: LayoutTables = field(default_factory=LayoutTables, compare=False)
    found: LayoutTables = field(default_factory=LayoutTables, init=False, compare=False)

    @cached_property
    def told(self) -> CheckedProgram:
        """The program with runs of equal layers told once."""
        return self.program.in_runs(lambda program: program)

    @cached_property
    def large(self) -> bool:
        """Whether the space is too large for all of it: then stages of a coordinate are a power of
        two, of schedules those that others never beat are left, and the size of buckets is found
        last."""
        return self.ranks > 32 and len(self.program.graph.ops) > 300

    @cached_property
    def open_axes(self) -> Sequence[str]:
        """The axes of `split auto`."""
        splits = (rule for rule in self.rules if isinstance(rule, ast.Split) and is_hole(rule))
        named = {use.name.text for rule in splits for use in rule.axes}
        return [axis.name for axis in self.axes if axis.name in named]

    @cached_property
    def rules(self) -> Sequence[ast.Rule]:
        return tuple(narrowed(self.strategy))

    @cached_property
    def axes(self) -> Sequence[SizedAxis]:
        """The axes, without a size where that is open."""
        overrides = self.program.axis_overrides.get(self.strategy.name.text, {})
        meshes = [rule for rule in self.strategy.rules if isinstance(rule, ast.Mesh)]
        return declared(meshes[0], self.program.statics, overrides, Sink()) if meshes else ()

    @cached_property
    def stages(self) -> ast.Stages | None:
        return next((rule for rule in self.rules if isinstance(rule, ast.Stages)), None)

    @property
    def staged(self) -> str:
        """The axis of the stages; "" without."""
        return self.stages.axis.text if self.stages is not None else ""

    def hole(self, kind: type[ast.Rule]) -> bool:
        """Whether a rule of a kind is open."""
        return any(isinstance(rule, kind) and is_hole(rule) for rule in self.rules)

    @cached_property
    def dims(self) -> dict[str, tuple[Dim, ...]]:
        """The dims that a rule may name, by their shortest names, those of the batch left out."""
        graph, found = self.program.graph, dict[tuple[Dim, ...], str]()
        types = {id(value.type): value.type for value in graph.values}
        there = {dim for type in types.values() for term in type.dims for dim in term}
        every: dict[str, dict[Dim, None]] = {}
        for name, dims in graph.dims.items():
            every.setdefault(_INDEX.sub("", name), {}).update(dict.fromkeys(dims))
        for name in sorted(every, key=lambda name: (name.count("."), name)):
            dims = tuple(every[name])
            if not there.isdisjoint(dims) and graph.batch not in dims:
                found.setdefault(dims, name)
        return {name: dims for dims, name in found.items()}

    @cached_property
    def zeros(self) -> Sequence[ast.Zero]:
        """Every `zero auto`, in order."""
        return [rule for rule in self.rules if isinstance(rule, ast.Zero) and rule.level is None]

    @cached_property
    def ats(self) -> Sequence[ast.At]:
        """Every `at`, in order: the first is number 1 of `Point.splits`."""
        return [rule for rule in self.strategy.rules if isinstance(rule, ast.At)]

    def covered(self, kind: type[ast.Rule], path: str) -> bool:
        """Whether an open rule of a kind speaks of a path: one without `at` does of all."""
        if any(isinstance(rule, kind) and is_hole(rule) for rule in self.strategy.rules):
            return True
        ats = (at for at in self.ats if any(isinstance(r, kind) and is_hole(r) for r in at.rules))
        return any(covers(at, path) for at in ats)

    def written(self, kind: type[ast.Rule], path: str) -> bool:
        """Whether a rule of a kind that is not open speaks of a path."""
        ats = (at for at in self.ats if any(isinstance(r, kind) and not is_hole(r) for r in at.rules))
        return any(covers(at, path) for at in ats)

    @cached_property
    def layers(self) -> Sequence[str]:
        """The layers that may be computed again: elements of the outermost arrays, in order; where
        there is no array, the outermost layers."""
        chains = [ancestors(enclosing(op)) for op in self.program.graph.ops if op.section == "loss"]
        elements = (next((layer for layer in chain if layer.endswith("]")), "") for chain in chains)
        found = dict.fromkeys(layer for layer in elements if layer)
        every = found or dict.fromkeys(chain[0] for chain in chains if chain)
        kind = ast.Recompute
        return [layer for layer in every if self.covered(kind, layer) and not self.written(kind, layer)]

    @cached_property
    def parts(self) -> int:
        """In how many stages the layers can be cut at most: elements of arrays and the others."""
        chains = [ancestors(enclosing(op)) for op in self.program.graph.ops]
        return len({next((x for x in chain if x.endswith("]")), chain[0]) for chain in chains if chain})

    @cached_property
    def batch_axes(self) -> frozenset[str]:
        """The axes that share the batch among ranks, and split nothing else."""
        batch, found, others = self.program.graph.batch, set[str](), set[str]()
        every = [*self.strategy.rules, *(rule for at in self.ats for rule in at.rules)]
        for rule in every:
            if isinstance(rule, ast.Split):
                mine = rule.dims and all(batch in self.program.graph.dims.get(d.text, ()) for d in rule.dims)
                (found if mine else others).update(use.name.text for use in rule.axes)
            elif isinstance(rule, ast.Pin):
                others.update(rule.span.text.replace("@", " ").replace("]", " ").replace(",", " ").split())
        return frozenset(found - others)

    @cached_property
    def batch_uses(self) -> Sequence[str]:
        """The axes of each `split` of the batch that is not in an `at`."""
        graph, splits = self.program.graph, [r for r in self.strategy.rules if isinstance(r, ast.Split)]
        mine = [r for r in splits if any(graph.batch in graph.dims.get(dim.text, ()) for dim in r.dims)]
        return [use.name.text for rule in mine for use in rule.axes]

    def share(self, sizes: dict[str, int]) -> int:
        """One rank's examples of a batch; 0 if that is no whole number."""
        batch = self.program.graph.batch
        whole = (batch.size or 0) if batch is not None else 1
        degree = math.prod(sizes.get(axis, 1) for axis in self.batch_uses)
        return whole // degree if whole % degree == 0 else 0


def covers(at: ast.At, path: str) -> bool:
    """Whether one of the selectors names a path, or what it is in."""
    return any(matcher(selector)(path) for selector in at.selectors)


def points(of: Open, ways: Callable[[dict[str, int]], Sequence[Cuts]]) -> Iterator[Point]:
    """All points, in one order; some of them are illegal, which planning tells. Layers and tables
    are not in them yet. ways: to fill `split auto`, by the sizes of axes."""
    for head in heads(of, ways):
        degrees = dict(head.sizes)
        for point in courses(of, head):
            for zero in _zeros(of, degrees, 0):
                for bucket in buckets(of):
                    yield replace(point, zero=zero, bucket=bucket)


def heads(of: Open, ways: Callable[[dict[str, int]], Sequence[Cuts]]) -> Iterator[Point]:
    """The meshes, each with what is split over its axes."""
    for sizes in all_sizes(of):
        degrees = dict(sizes)
        for cuts in ways(degrees) if of.share(degrees) else ():
            yield Point(sizes or cuts.sizes, splits=cuts.splits, pins=cuts.pins)


def courses(of: Open, head: Point) -> Iterator[Point]:
    """The stages, microbatches and schedules of one of them."""
    for virtual, count, schedule in course_facts(of, head):
        yield replace(head, virtual=virtual, microbatches=count, schedule=schedule)


def course_facts(of: Open, head: Point) -> Sequence[tuple[int, int, str]]:
    """Stages of a coordinate, microbatches and the schedule of each."""
    degrees = dict(head.sizes)
    staged, share = of.staged, of.share(degrees)
    open = of.hole(ast.Microbatches) and (of.stages is None or of.stages.virtual is None)
    key = ((staged, degrees.get(staged, 1)), ("", share)) if open else head.sizes
    return of.found.table((course_facts, key), lambda: list(_course_facts(of, degrees, share)))


def _course_facts(of: Open, degrees: dict[str, int], share: int) -> Iterator[tuple[int, int, str]]:
    for virtual in _virtuals(of, degrees):
        for count in _counts(of, share):
            yield from ((virtual, count, schedule) for schedule in _schedules(of, degrees, virtual, count))


def zeros(of: Open, point: Point) -> Iterator[Point]:
    """A point with each level of ZeRO, and the first size of buckets."""
    for zero in _zeros(of, dict(point.sizes), 0):
        yield replace(point, zero=zero, bucket=buckets(of)[0])


def buckets(of: Open) -> Sequence[int]:
    """The sizes of buckets; of a large space the first, for the others are tried last."""
    return BUCKETS[: 1 if of.large else None] if of.hole(ast.Bucket) and of.ranks > 1 else (0,)


def splittable(of: Open, degrees: dict[str, int]) -> Sequence[tuple[int, str, Sequence[Uses]]]:
    """Each dim that `split auto` may name, with the axes that it may have: of one rule or of
    several, in their order; an axis may yield."""
    key = tuple(degrees.get(axis, 1) for axis in of.open_axes)
    return of.found.table((splittable, key), lambda: list(_splittable(of, degrees)))


def _splittable(of: Open, degrees: dict[str, int]) -> Iterator[tuple[int, str, Sequence[Uses]]]:
    for group, rules in enumerate((of.strategy.rules, *(at.rules for at in of.ats))):
        splits = [rule for rule in rules if isinstance(rule, ast.Split)]
        open = [tuple(use.name.text for use in rule.axes) for rule in splits if is_hole(rule)]
        open = [mine for axes in open if (mine := tuple(axis for axis in axes if degrees.get(axis, 1) > 1))]
        taken = {dim for rule in splits for path in rule.dims for dim in of.program.graph.dims.get(path.text, ())}
        uneven = any(rule.uneven for rule in splits if is_hole(rule))
        for name, dims in of.dims.items() if open else ():
            chosen = [axes for some in _subsets(open) for axes in [tuple(axis for mine in some for axis in mine)]]
            fits = [axes for axes in chosen if uneven or _divide(dims, axes, degrees)]
            yields = [(axes, yielding) for axes in fits for yielding in product((False, True), repeat=len(axes))]
            named = [tuple(zip(axes, yielding, strict=True)) for axes, yielding in yields]
            if named and taken.isdisjoint(dims):
                yield group, name, named


def _subsets(of: Sequence[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    for count in range(1, len(of) + 1):
        yield from combinations(of, count)


def _divide(dims: Sequence[Dim], axes: tuple[str, ...], degrees: dict[str, int]) -> bool:
    degree = math.prod(degrees[axis] for axis in axes)
    return all(dim.size is not None and dim.size % degree == 0 for dim in dims)


def all_sizes(of: Open) -> Iterator[tuple[tuple[str, int], ...]]:
    """The sizes of all axes whose product is the rank count."""

    def fill(at: int, left: int) -> Iterator[tuple[tuple[str, int], ...]]:
        if at == len(of.axes):
            # Without axes, rules by position lay out all ranks.
            yield from [()] if left == 1 or not of.axes else []
            return
        axis = of.axes[at]
        for size in (axis.size,) if axis.size is not None else divisors(left):
            if left % size == 0:
                for rest in fill(at + 1, left // size):
                    yield ((axis.name, size), *rest)

    yield from fill(0, of.ranks)


def stage_count(of: Open, degrees: dict[str, int]) -> int:
    """The size of the axis of the stages; 1 without."""
    return degrees.get(of.staged, 1)


def _virtuals(of: Open, degrees: dict[str, int]) -> Sequence[int]:
    if of.stages is None or not of.stages.auto:
        return (0,)
    count = stage_count(of, degrees)
    if of.stages.virtual is not None:
        given = evaluate(of.stages.virtual, {**of.program.statics, **degrees})
        return (given,) if isinstance(given, int) else ()
    most = 1 if count == 1 else min(MOST_VIRTUAL, of.parts // count)
    return [n for n in range(1, most + 1) if not of.large or n & (n - 1) == 0]


def _counts(of: Open, share: int) -> Sequence[int]:
    return divisors(share) if of.hole(ast.Microbatches) and of.program.graph.batch is not None else (0,)


def _schedules(of: Open, degrees: dict[str, int], virtual: int, count: int) -> Sequence[str]:
    """Those that fit; one that cuts the backward in two only where it is written, for the plan does
    not count all that such a one holds."""
    stages = stage_count(of, degrees)
    if not of.hole(ast.Schedule) or stages == 1:
        return ("",)
    written = next((rule.count for rule in of.rules if isinstance(rule, ast.Microbatches) and rule.count), None)
    given = evaluate(written, {**of.program.statics, **degrees}) if written is not None else count or 1
    if not isinstance(given, int):
        return ()
    each = virtual or _written_virtual(of, degrees)
    fine = (n for n, s in SCHEDULES.items() if s.takes(each) and s.fits(stages * each, stages, given))
    names = [name for name in fine if _whole_backward(name)]
    return names[-1:] if of.large and each > 1 else names[-2:-1] or names if of.large else names


def _written_virtual(of: Open, degrees: dict[str, int]) -> int:
    written = of.stages.virtual if of.stages is not None else None
    found = evaluate(written, {**of.program.statics, **degrees}) if written is not None else 1
    return found if isinstance(found, int) else 1


@lru_cache
def _whole_backward(name: str) -> bool:
    known = SCHEDULES[name]
    rows = known.make(2 * known.virtual[0], 2, 4)
    return not any(action.half for row in rows for action in row)


def _zeros(of: Open, degrees: dict[str, int], at: int) -> Iterator[tuple[tuple[int, bool], ...]]:
    """A level for each `zero auto`; none where its axes have one rank."""
    if at == len(of.zeros):
        yield ()
        return
    rule = of.zeros[at]
    degree = math.prod(degrees.get(axis.text, 1) for axis in rule.axes)
    for level in ZERO if degree > 1 else ZERO[:1]:
        for rest in _zeros(of, degrees, at + 1):
            yield (level, *rest)
