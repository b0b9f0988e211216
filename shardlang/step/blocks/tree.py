"""Steps of a plan -> in which call of a layer each stands, and in which order: what is called
stands together.

A conversion stands with what makes its value or with what reads it, see `_side`. Steps are known
by their place in `steps`, calls by their index in `Graph.calls`; where both stand in one list, a
call is `~` its index."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property

from shardlang.frozen.records import dataclass
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import Conversion, Step
from shardlang.plan.reads import Form, makes
from shardlang.step.blocks.call import ROOT
from shardlang.step.blocks.forms import Forms
from shardlang.step.blocks.kinds import kinds_of
from shardlang.step.recompute_groups import RecomputeGroups
from shardlang.step.saved_activations import owners


@dataclass
class BlockTree:
    """`dissolved`: calls whose steps cannot stand together; they are of the call around them.
    `home`: the call that each step is of."""

    forms: Forms
    given_steps: Sequence[Step]
    ends: Collection[Form]
    dissolved: set[int] = field(default_factory=set)
    home: list[int] = field(default_factory=list)
    lines: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = self.forms.plan
        self.kinds = kinds_of(self.plan)
        self.steps = [step for step in self.given_steps if step.kind == "op" or not self.forms.silent(step)]
        self.reads = [self.forms.reads(step) for step in self.steps]
        graph, given = self.plan.graph, self.forms.given
        self.ops = [graph.ops[self.plan.ops[s.index].op] if s.kind == "op" else None for s in self.steps]
        self.makes = [makes(self.plan)[step] for step in self.steps]
        self.makers = {form: at for at, forms in enumerate(self.makes) for form in forms if form not in given}

    @cached_property
    def readers(self) -> dict[Form, list[int]]:
        """The steps that read what a conversion or transfer makes."""
        moved = [at for at, op in enumerate(self.ops) if op is None or op.operator == TRANSFER]
        found: dict[Form, list[int]] = {form: [] for at in moved for form in self.makes[at]}
        for at, forms in enumerate(self.reads):
            for form in forms:
                if form in found:
                    found[form].append(at)
        return found

    @cached_property
    def owners(self) -> RecomputeGroups | None:
        found = owners(self.plan, self.given_steps)
        return found if found.groups else None

    def ordered(self) -> dict[int, list[int]]:
        """Node -> what is in it, in order, after giving each step its node (`home`)."""
        while True:
            self._settle()
            orders = self._orders()
            if orders is not None:
                return orders

    # Where each step is.

    def _standing(self, node: int) -> int:
        """The call itself, or the one around it where it is dissolved."""
        while node in self.dissolved:
            node = self.plan.graph.calls[node].within
        return node

    def parent(self, node: int) -> int:
        """The call around a call, without those that are dissolved."""
        return self._standing(self.plan.graph.calls[node].within)

    def above(self, node: int) -> list[int]:
        """A node and those around it, the root first."""
        line = self.lines.get(node)
        if line is None:
            line = self.lines[node] = [ROOT] if node == ROOT else [*self.above(self.parent(node)), node]
        return line

    def paths(self, one: int, other: int) -> tuple[list[int], list[int], int]:
        """The calls around each of two nodes, and how many of these are around both."""
        line, second = self.above(one), self.above(other)
        found = min(len(line), len(second))
        while line[found - 1] != second[found - 1]:
            found -= 1
        return line, second, found

    def _common(self, nodes: Collection[int]) -> int:
        found, *others = nodes
        for node in others:
            line, _, shared = self.paths(found, node)
            found = line[shared - 1]
        return found

    def _settle(self) -> None:
        """Gives each step its node."""
        self.lines = {}
        for counted in ("_group_counts", "_whole_groups"):
            self.__dict__.pop(counted, None)
        self.home = [ROOT if op is None else self._standing(op.within) for op in self.ops]
        for at, op in enumerate(self.ops):
            if op is not None and op.operator == TRANSFER:
                near = [other for form in self.makes[at] for other in self._ops_after(form)]
                near += [other for form in self.reads[at] for other in self._op_before(form)]
                self.home[at] = self._common([self.home[other] for other in near]) if near else ROOT
        for at, op in enumerate(self.ops):
            if op is None:
                self.home[at] = self._place(at)

    def _ops_after(self, form: Form) -> list[int]:
        """The operators that read a form or what it is converted to."""
        found: list[int] = []
        for at in self.readers[form]:
            found.extend([at] if self.ops[at] is not None else self._ops_after(self.makes[at][0]))
        return found

    def _op_before(self, form: Form) -> list[int]:
        """The operator that makes a form, or what it is converted from."""
        maker = self.makers.get(form)
        if maker is None or self.ops[maker] is not None:
            return [] if maker is None else [maker]
        return self._op_before(self.reads[maker][0])

    def _place(self, at: int) -> int:
        conversion = self.plan.conversions[self.steps[at].index]
        source = self.reads[at][0]
        maker = self.home[self.makers[source]] if source in self.makers else None
        nodes = {self.home[other] for other in self._ops_after(self.makes[at][0])}
        found = self._side(maker, nodes, self._shrinks(conversion, source))
        return found if self.owners is None else self._in_group(at, found)

    def _side(self, maker: int | None, readers: Set[int], shrinks: bool) -> int:
        """A conversion that makes its value smaller is at its maker, another one at its reader."""
        if not readers:
            return maker if maker is not None and shrinks else ROOT
        reading = self._common(readers)
        if maker is None or maker == reading:
            return reading
        common = self._common([maker, reading])
        if common == reading:
            depth = len(self.above(common))
            inside = self.above(maker)[depth]
            near = {node for node in readers if node != common and self.above(node)[depth] == inside}
            if near:
                return self._side(maker, near, shrinks)
        return maker if shrinks else reading

    def _shrinks(self, conversion: Conversion, source: Form) -> bool:
        before, after = self.kinds.elements(source), self.kinds.elements((conversion.value, conversion.id))
        return after < before or (after == before and conversion.move.forward_bytes > 0)

    def _in_group(self, at: int, node: int) -> int:
        """The node on the side of a group's border that the plan counts its memory for."""
        assert self.owners is not None
        group = self.owners.of(self.steps[at])
        if group is not None and all(self._group_of(each) != group for each in self.above(node)):
            if whole := self._whole_groups.get(group):
                return whole[0]
            maker = self.makers.get(self.reads[at][0])
            node = node if maker is None else self.home[maker]
        while node != ROOT and self._group_of(node) not in (None, group):
            node = self.parent(node)
        return node

    @cached_property
    def _group_counts(self) -> dict[int, dict[int | None, int]]:
        """Node -> how many of the operators in it are of each group."""
        found: dict[int, dict[int | None, int]] = {}
        for home, op in zip(self.home, self.ops, strict=True) if self.owners is not None else ():
            if op is not None and self.owners is not None:
                group = self.owners.group(op.id)
                for node in self.above(home):
                    counts = found.setdefault(node, {})
                    counts[group] = counts.get(group, 0) + 1
        return found

    def _group_of(self, node: int) -> int | None:
        """The group that all operators in a node are of."""
        counts = self._group_counts.get(node, {})
        return next(iter(counts)) if len(counts) == 1 else None

    @cached_property
    def _whole_groups(self) -> dict[int, list[int]]:
        """Group -> the nodes that are the whole of it."""
        found: dict[int, list[int]] = {}
        for node in self._group_counts:
            group = self._group_of(node)
            if group is not None and node != ROOT and self._group_of(self.parent(node)) != group:
                found.setdefault(group, []).append(node)
        return found

    def region(self, node: int) -> int:
        """The group that a call is the whole of, where it is one for itself."""
        group = self._group_of(node) if node != ROOT and self.owners is not None else None
        if group is None or self._group_of(self.parent(node)) == group or len(self._whole_groups[group]) > 1:
            return -1
        return group if self._group_counts[ROOT][group] == self._group_counts[node][group] else -1

    # The order of what is in a node.

    def _orders(self) -> dict[int, list[int]] | None:
        """Node -> its steps and the calls in it, each after what it reads; None after dissolving
        calls for which there is no such order."""
        keys = self._keys()
        late = {node for node, first, second in self._edges() if keys[node][first] >= keys[node][second]}
        orders = {node: sorted(mine, key=mine.__getitem__) for node, mine in keys.items() if node not in late}
        after: dict[int, dict[int, set[int]]] = {node: {} for node in late}
        for node, first, second in self._edges() if late else ():
            if node in late:
                after[node].setdefault(first, set()).add(second)
        orders |= {node: _sorted(keys[node], after[node]) for node in late}
        stuck = {item for node in late for item in keys[node].keys() - set(orders[node])}
        self.dissolved |= {~item for item in stuck if item < 0}
        return None if stuck else orders

    def _keys(self) -> dict[int, dict[int, tuple[float, int]]]:
        """Node -> what is in it -> where it would stand: a call at its first operator, without
        one at its first step."""
        keys: dict[int, dict[int, tuple[float, int]]] = {ROOT: {}}
        placed = {ROOT}
        for at, node in enumerate(self.home):
            is_op = self.ops[at] is not None
            if node not in placed:
                line = self.above(node)
                for outer, inner in itertools.pairwise(line):
                    mine = keys.setdefault(outer, {})
                    if ~inner not in mine or (is_op and inner not in placed):
                        mine[~inner] = at, at
                        placed.update([inner] if is_op else [])
            keys.setdefault(node, {})[at] = (at if is_op else self._key(at)), at
        return keys

    def _edges(self) -> Iterator[tuple[int, int, int]]:
        """(node, what is in it, what else in it reads of that)."""
        for at, forms in enumerate(self.reads):
            for form in forms:
                maker = self.makers.get(form)
                if maker is None:
                    continue
                node, there = self.home[at], self.home[maker]
                if node == there:
                    yield node, maker, at
                    continue
                line, other, depth = self.paths(node, there)
                first = ~other[depth] if depth < len(other) else maker
                yield line[depth - 1], first, ~line[depth] if depth < len(line) else at

    def _key(self, at: int) -> float:
        """A conversion beside what makes its value stands right after that."""
        maker = self.makers.get(self.reads[at][0])
        near = maker is not None and self.home[maker] == self.home[at]
        return maker + 0.5 if near and maker is not None and self._lone(at) else at

    def _lone(self, at: int) -> bool:
        """Whether nothing here reads what a conversion makes: it is for the calls around."""
        return all(self.home[other] != self.home[at] for other in self.readers[self.makes[at][0]])


def _sorted(keys: Mapping[int, tuple[float, int]], after: Mapping[int, Set[int]]) -> list[int]:
    """The items in an order that keeps `after`, by their keys where that leaves a choice;
    without those of a circle."""
    waits = dict.fromkeys(keys, 0)
    for items in after.values():
        for item in items:
            waits[item] += 1
    ready = [(keys[item], item) for item, count in waits.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, item = heapq.heappop(ready)
        found.append(item)
        for later in after.get(item, ()):
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (keys[later], later))
    return found
