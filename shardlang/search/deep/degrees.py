"""The passes of a profile, on few ranks that share the batch -> the same on more: only what belongs
to parameters changes, which ZeRO cuts into more parts and more ranks sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardlang.cost.work import Coordinate, Gather, Item, MemoryBound, Place, Reduction, Segment, Update
from shardlang.facts.buckets import filled
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.gradient_sums import bucket_kind, sum_bytes
from shardlang.step.parameters import local_bytes


@dataclass(frozen=True, slots=True)
class Degrees:
    """Sizes of axes. few: those of the profile; many: those that are wanted."""

    few: Mapping[str, int]
    many: Mapping[str, int]

    def segment(self, segment: Segment) -> Segment:
        if self.few == self.many or not (segment.gathers or segment.reductions):
            return segment
        gathers = tuple([self.gather(each) for each in segment.gathers])
        reductions = tuple([self.reduction(each) for each in segment.reductions])
        return replace(segment, gathers=gathers, reductions=reductions)

    def of(self, axes: Sequence[str]) -> tuple[int, int]:
        """The ranks along axes."""
        few = many = 1
        for axis in axes:
            few *= self.few.get(axis, 1)
            many *= self.many.get(axis, 1)
        return few, many

    def gather(self, gather: Gather) -> Gather:
        _, many = self.of(gather.axes)
        part = -(-gather.whole // many)
        return replace(gather, bytes=(many - 1) * part, whole=many * part)

    def reduction(self, reduction: Reduction) -> Reduction:
        """The sums of a gradient: what reduce-scatter leaves of it is summed over other axes."""
        parts, left = [], reduction.size
        for kind, axes, size in reduction.parts:
            few, many = self.of(axes)
            if few == many and left == reduction.size:
                parts.append((kind, axes, size))
            elif kind == "reduce_scatter":
                left = -(-reduction.size // many)
                parts.append((kind, axes, (many - 1) * left))
            elif kind == "all_reduce":
                parts.append((kind, axes, sum_bytes(many, left)))
            else:  # rows of tables: as many as each rank has
                parts.append((kind, axes, size * (many - 1) * few // (many * max(1, few - 1))))
        return replace(reduction, parts=tuple(parts))

    def once(self, coordinate: Coordinate, cut: Sequence[str]) -> Coordinate:
        """The work once a step. cut: the axes over which ZeRO cuts parameters."""
        few, many = self.of(cut)
        gathers = tuple([self.gather(each) for each in coordinate.gathers])
        if few == many:
            return replace(coordinate, gathers=gathers)
        updates = tuple([_update(each, few, many) for each in coordinate.updates])
        after = {_item(item, few, many): count for item, count in coordinate.after.items()}
        return replace(coordinate, updates=updates, gathers=gathers, after=after)


def _update(update: Update, few: int, many: int) -> Update:
    return replace(update, elements=max(1, update.elements * few // many))


def _item(item: Item, few: int, many: int) -> Item:
    """Copies are made of the rows that a rank updates."""
    if not isinstance(item, MemoryBound) or item.place.operator != "copy":
        return item
    read, written, elements = (max(1, n * few // many) for n in (item.read, item.written, item.elements))
    return replace(item, read=read, written=written, elements=elements)


def published(plan: Plan, values: Sequence[int], degrees: Degrees, bucket: int) -> Iterator[Gather]:
    """The gathers of ZeRO 1 and 2 after the update, one for each bucket of these parameters."""
    params = [plan.params[v] for v in values if plan.graph.values[v].gradient and plan.params[v].zero in (1, 2)]
    items = [(param, bucket_kind(plan, param), local_bytes(plan, param)) for param in params]
    for _, members in filled(items, bucket):
        yield from _together(plan, members, degrees)


def _together(plan: Plan, params: Sequence[ParamPlan], degrees: Degrees) -> Iterator[Gather]:
    parts: dict[tuple[str, int, tuple[str, ...]], int] = {}
    for param in params:
        axes, dtype = plan.meshes[param.stored.mesh].ranked(param.zero_axes), plan.graph.values[param.value].type.dtype
        whole = plan.local_bytes(param.value, param.stored)
        key = dtype, param.stored.mesh, axes
        parts[key] = parts.get(key, 0) - (-whole // degrees.of(axes)[1])
    for (dtype, mesh, axes), part in parts.items():
        many = degrees.of(axes)[1]
        yield Gather(Place("step", "parameters", "parameters"), dtype, mesh, axes, (many - 1) * part, many * part)
