"""The passes of a profile, on few ranks that share the batch -> the same on more: only what belongs
to parameters changes, which ZeRO cuts into more parts and more ranks sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardlang.cost.work import Gather, Place, Reduction, Segment
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan
from shardlang.step.gradient_sums import sum_bytes


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


def gathered(plan: Plan, values: Sequence[int], times: int, degrees: Degrees) -> Iterator[Gather]:
    """The gathers of ZeRO 1 and 2 after the update, of parameters that are there so many times.
    Those of a type are gathered at once: with smaller buckets that takes no less."""
    parts: dict[tuple[str, int, tuple[str, ...]], int] = {}
    for param in (plan.params[v] for v in values if plan.graph.values[v].gradient and plan.params[v].zero in (1, 2)):
        axes, dtype = plan.meshes[param.stored.mesh].ranked(param.zero_axes), plan.graph.values[param.value].type.dtype
        whole = plan.local_bytes(param.value, param.stored)
        key = dtype, param.stored.mesh, axes
        parts[key] = parts.get(key, 0) - times * (-whole // degrees.of(axes)[1])
    for (dtype, mesh, axes), part in parts.items():
        many = degrees.of(axes)[1]
        yield Gather(Place("step", "parameters", "parameters"), dtype, mesh, axes, (many - 1) * part, many * part)
