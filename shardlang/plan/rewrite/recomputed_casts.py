"""Groups of what backward computes again -> the graph in which each group keeps its input once: a
cast that mixed precision needs is made in the group that reads it, where the group keeps its
operand anyway, or keeps fewer bytes so.

Any other cast stands outside of all groups, unless the group that makes its operand reads it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Op
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import Recomputed
from shardlang.plan.rewrite.derived import Derived, of_reader
from shardlang.plan.rewrite.insert import Rewriting

Groups = tuple[Recomputed, ...]
OUTSIDE = -1


def with_casts_inside(graph: Graph, groups: Groups, stages: Sequence[int]) -> tuple[Graph, Groups, tuple[int, ...]]:
    """The graph, its groups and the stages of its operators; without stages all are 0. Casts of a
    group that drops what it makes stay in it."""
    dropped = {op for group in groups if group.drops for op in group.ops}
    casts = Derived(graph, [op for op in graph.ops if op.implied and op.id not in dropped])
    if not groups or not casts.of:
        return graph, groups, tuple(stages)
    group_of = {op: number for number, group in enumerate(groups) for op in group.ops}
    work = _Moving(graph, group_of, stages, casts, Rewriting(graph))
    work.settle()
    for op in graph.ops:
        if op not in casts:
            own = work.group(op)
            work.keep(replace(op, operands=tuple([work.value(v, own) for v in op.operands])), own)
    metrics = {name: work.value(v, OUTSIDE) for name, v in graph.metrics.items()}
    of_group: list[set[int]] = [set() for _ in groups]
    now: dict[int, list[int]] = {}
    for op, old, number in zip(work.made.ops, work.old, work.groups_of_new, strict=True):
        now.setdefault(old, []).append(op.id)
        if number != OUTSIDE:
            of_group[number].add(op.id)
    again = []
    for group, ops in zip(groups, of_group, strict=True):
        call = ops.union(*(now.get(op, ()) for op in group.call))
        again.append(replace(group, ops=tuple(sorted(ops)), call=tuple(sorted(call))))
    return replace(work.made.result(), metrics=metrics), tuple(again), tuple(work.stages_of_new)


@dataclass
class _Moving:
    """group_of: operator -> its group. readers: value -> group -> the operators there that read it,
    without casts. trained: (value, group) that the loss reads. there: (value, group) -> the cast
    there; whole: the values whose own cast stands somewhere. old: of each new operator the one that
    it was before."""

    graph: Graph
    group_of: Mapping[int, int]
    stages: Sequence[int]
    casts: Derived
    made: Rewriting
    readers: dict[int, dict[int, list[Op]]] = field(default_factory=dict)
    trained: set[tuple[int, int]] = field(default_factory=set)
    there: dict[tuple[int, int], int] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    old: list[int] = field(default_factory=list)
    groups_of_new: list[int] = field(default_factory=list)
    stages_of_new: list[int] = field(default_factory=list)

    def settle(self) -> None:
        """Finds who reads each value, and which casts have a gradient."""
        read = [op for op in self.graph.ops if op not in self.casts]
        for op in read:
            for value in op.operands:
                self.readers.setdefault(value, {}).setdefault(self.group(op), []).append(op)
        for op in read:
            for value in op.operands if op.section == "loss" else ():
                self._train(value, self.group(op))

    def _train(self, value: int, group: int) -> None:
        op = self._cast(value)
        if op is not None:
            group = self._place(op, group)
            self.trained.add((value, group))
            self._train(op.operands[0], group)

    def group(self, op: Op) -> int:
        return self.group_of.get(op.id, OUTSIDE)

    def _cast(self, value: int) -> Op | None:
        """The cast that makes a value."""
        producer = self.graph.producers.get(value)
        op = self.graph.ops[producer] if producer is not None else None
        return op if op is not None and op in self.casts else None

    def _origin(self, value: int) -> int:
        """The group that computes what a value is a cast of."""
        op = self._cast(value)
        producer = self.graph.producers.get(value)
        if op is None:
            return OUTSIDE if producer is None else self.group(self.graph.ops[producer])
        return self._origin(op.operands[0])

    def _place(self, cast: Op, group: int) -> int:
        """The group in which a cast is made for a reader of some group."""
        origin = self._origin(cast.operands[0])
        if group not in (OUTSIDE, origin) and self._again(cast, origin):
            return group
        return origin if origin in self.readers.get(cast.results[0], ()) else OUTSIDE

    def _again(self, cast: Op, origin: int) -> bool:
        """Whether groups make a cast again of what they keep."""
        value, others = cast.operands[0], {OUTSIDE, origin}
        above = self._cast(value)
        read = self.readers
        return (above is not None and self._again(above, origin)) or self.casts.crosses(
            value, lambda v: not read.get(v, {}).keys() <= others
        )

    def keep(self, op: Op, group: int) -> None:
        """An operator of the graph."""
        self.made.keep(op)
        self._added(op, group)

    def _added(self, like: Op, group: int) -> None:
        self.old.append(like.id)
        self.groups_of_new.append(group)
        self.stages_of_new.extend(self.stages[like.id : like.id + 1])

    def value(self, value: int, group: int) -> int:
        """A value as a group reads it."""
        cast = self._cast(value)
        if cast is None:
            return value
        place = self._place(cast, group)
        if (value, place) not in self.there:
            self.there[value, place] = self._make(cast, place)
        return self.there[value, place]

    def _make(self, cast: Op, place: int) -> int:
        """A cast in a group; one that has the gradient of the whole is the cast itself."""
        value, trained = cast.results[0], (cast.results[0], place) in self.trained
        whole = self.graph.values[value]
        op = replace(self._moved(cast, place), section=cast.section if trained else "metric")
        operands = (self.value(cast.operands[0], place),)
        if trained == (cast.section == "loss") and value not in self.whole:
            self.whole.add(value)
            self.keep(replace(op, operands=operands), place)
            return value
        path = f"{whole.path}@{len(self.stages) + place}"
        gradient = whole.gradient and trained
        made = self.made.add(op, op.operator, operands, whole.type, op.rule, path, attrs=op.attrs, gradient=gradient)
        self._added(cast, place)
        return made

    def _moved(self, cast: Op, place: int) -> Op:
        """A cast in the call of a layer where its place is."""
        readers = self.readers.get(cast.results[0], {})
        if place != OUTSIDE:
            return of_reader(cast, readers[place][0]) if place in readers else cast
        if readers.keys() <= {OUTSIDE}:
            return cast
        near = [op.within for op in readers.get(OUTSIDE, ()) if op.operator != TRANSFER]
        groups = [group for group in readers if group != OUTSIDE and self._place(cast, group) == OUTSIDE]
        origin = self._origin(cast.operands[0])
        near += [self._around[group] for group in (*groups, origin) if group != OUTSIDE]
        producer = self.graph.producers.get(cast.operands[0])
        if origin == OUTSIDE and producer is not None:
            near.append(self.graph.ops[producer].within)
        return replace(cast, within=self._common(near))

    @cached_property
    def _around(self) -> dict[int, int]:
        """Group -> the call around all of it."""
        nodes: dict[int, set[int]] = {}
        for op in self.graph.ops:
            if op not in self.casts and op.id in self.group_of:
                nodes.setdefault(self.group_of[op.id], set()).add(op.within)
        whole = {group: self._common(list(mine)) for group, mine in nodes.items()}
        return {group: self.graph.calls[call].within if call >= 0 else call for group, call in whole.items()}

    def _common(self, calls: Sequence[int]) -> int:
        """The innermost call around all of these."""
        lines = [self._line(call) for call in calls]
        shared = [call for call in lines[0] if all(call in line for line in lines)]
        return shared[-1]

    def _line(self, call: int) -> list[int]:
        """A call and those around it, the outermost first."""
        return [-1] if call < 0 else [*self._line(self.graph.calls[call].within), call]
