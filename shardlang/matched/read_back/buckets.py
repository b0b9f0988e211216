"""The parameters that a text declares -> the buckets in which the runtime sums their gradients, of
each coordinate of the stages' axis, in order.

The rules are those of runtime/step/model.py; tests hold them to what real ranks send."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import field

from shardlang.facts.buckets import filled
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import AxisGroup, Line
from shardlang.matched.read_back.program import Read
from shardlang.matched.read_back.settings import parameter
from shardlang.matched.read_back.text import Variable
from shardlang.types.dim import BYTES


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter as a coordinate has it: the axes that cut its rows (`shard`) and those that its
    gradient is summed over; stages, coordinates: those that use it."""

    mesh: int
    shard: tuple[str, ...]
    sum: tuple[str, ...]
    each: bool
    coordinates: tuple[int, ...]
    stages: tuple[int, ...]
    stored: bool
    place: str


@dataclass(frozen=True, slots=True)
class EmittedBucket:
    """Parameters that are summed together: paths and elements of each. rows: the gradient is rows
    of a table."""

    how: Held
    paths: tuple[str, ...]
    elements: tuple[int, ...]
    line: Line = field(compare=False)
    rows: bool = False


def buckets(read: Read, here: int, tied: bool = False) -> list[EmittedBucket]:
    """The buckets of the ranks at a coordinate, in the order in which they start. tied: only those
    of parameters that other coordinates use too."""
    found, items = list[EmittedBucket](), list[tuple[str, Held, Line]]()
    for path in read.shared if tied else read.text.declared:
        declared = read.text.declared[path]
        stages = tuple(read.users.get(path, ()))
        places = tuple(sorted({read.coordinates[at] for at in stages} or {0}))
        if here not in places or not declared.learns:
            continue
        how, line = _held(read, declared, places, stages)
        if declared.given.get("sparse"):
            found.append(EmittedBucket(how, (path,), (declared.local.most,), line, True))
        elif how.shard or read.text.degree(line.group) * len(places) > 1:
            items.append((path, how, line))
    return found + _filled(read, items)


def _held(read: Read, declared: Variable, places: tuple[int, ...], stages: tuple[int, ...]) -> tuple[Held, Line]:
    first, *zero = parameter(read, declared)
    level, _ = declared.given.get("zero", (0, ()))
    shard = zero[0].group.axes if zero and read.text.degree(zero[0].group) > 1 else ()
    each, stored = bool(shard) and level >= 2, bool(shard) and level == 3
    place = declared.given.get("place", "")
    axes = first.group.axes
    how = Held(first.group.mesh, shard, axes, each=each, coordinates=places, stages=stages, stored=stored, place=place)
    return how, first


def _filled(read: Read, items: Sequence[tuple[str, Held, Line]]) -> list[EmittedBucket]:
    """Buckets of one kind each, filled from the end up to the bytes of a bucket."""

    def size(path: str) -> int:
        local = read.text.declared[path].local
        return local.most * max(BYTES[local.dtype], BYTES["f32"])  # it is kept in f32 at least

    sized = [((path, line, read.text.declared[path].local.most), how, size(path)) for path, how, line in items]
    found = []
    for how, some in filled(sized, ast.literal_eval(read.program["bucket_bytes"])):
        paths, lines, elements = zip(*some, strict=True)
        found.append(EmittedBucket(how, paths, elements, lines[0]))
    return found


@dataclass(frozen=True, slots=True)
class Joint:
    """A sum of ranks of several stages: over axes of each, at these coordinates."""

    coordinates: tuple[int, ...]
    group: AxisGroup
    elements: tuple[int, ...]
    line: Line = field(compare=False)


def joint(read: Read, here: int) -> list[Joint]:
    """The sums with other coordinates, in the order in which one starts them at the end of a step:
    first parts, then second parts."""
    found, later = list[Joint](), list[Joint]()
    for bucket in buckets(read, here, True):
        how, shared = bucket.how, {*bucket.how.shard} & {*bucket.how.sum}
        if len(how.coordinates) < 2:
            continue
        before = bool(shared) and shared != {*how.shard}
        over = how.sum if not how.shard or before else tuple(axis for axis in how.sum if axis not in shared)
        one = Joint(how.coordinates, AxisGroup(how.mesh, over), bucket.elements, bucket.line)
        (found if before or not how.shard else later).append(one)
    return found + later
