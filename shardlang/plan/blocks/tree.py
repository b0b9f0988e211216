"""Steps of a plan -> in which call of a layer each stands, and in which order: what is called
stands together.

A conversion stands with what makes its value or with what reads it, see `_side`."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property

from shardlang.graph.graph import Op
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.blocks.call import ROOT
from shardlang.plan.blocks.forms import Forms
from shardlang.plan.needs import Form, layout_of
from shardlang.plan.plan import Conversion, Plan, Step
from shardlang.plan.rewrite.recomputed import Owners
from shardlang.records import dataclass
from shardlang.types.layout import local_shape


@dataclass
class Tree:
    """`dissolved`: calls whose steps cannot stand together; they are of the call around them."""

    forms: Forms
    given_steps: Sequence[Step]
    ends: Collection[Form]
    dissolved: set[int] = field(default_factory=set)
    home: dict[Step, int] = field(default_factory=dict)
    lines: dict[int, list[int]] = field(default_factory=dict)

    @cached_property
    def steps(self) -> list[Step]:
        return [step for step in self.given_steps if not self.forms.silent(step)]

    @property
    def plan(self) -> Plan:
        return self.forms.plan

    def reads(self, step: Step) -> list[Form]:
        return self.forms.reads(step)

    def makes(self, step: Step) -> list[Form]:
        return self.forms.makes(step)

    def op(self, step: Step) -> Op:
        return self.plan.graph.ops[self.plan.ops[step.index].op]

    @cached_property
    def makers(self) -> dict[Form, Step]:
        return {form: step for step in self.steps for form in self.makes(step) if form not in self.forms.given}

    @cached_property
    def readers(self) -> dict[Form, list[Step]]:
        found: dict[Form, list[Step]] = {}
        for step in self.steps:
            for form in self.reads(step):
                found.setdefault(form, []).append(step)
        return found

    @cached_property
    def owners(self) -> Owners | None:
        return Owners(self.plan, frozenset(self.given_steps)) if self.plan.recompute else None

    def ordered(self) -> dict[int, list[Step | int]]:
        """Node -> what is in it, in order, after giving each step its node (`home`)."""
        while True:
            self._settle()
            orders = self._orders()
            if orders is not None:
                return orders

    # Where each step is.

    def parent(self, node: int) -> int:
        """The call around a call, without those that are dissolved."""
        node = self.plan.graph.calls[node].within
        while node in self.dissolved:
            node = self.plan.graph.calls[node].within
        return node

    def above(self, node: int) -> list[int]:
        """A node and those around it, the root first."""
        if node not in self.lines:
            self.lines[node] = [ROOT] if node == ROOT else [*self.above(self.parent(node)), node]
        return self.lines[node]

    def _common(self, nodes: Collection[int]) -> int:
        lines = [self.above(node) for node in nodes]
        shared = sum(1 for level in zip(*lines, strict=False) if len(set(level)) == 1)
        return lines[0][shared - 1]

    def below(self, node: int, other: int) -> int | None:
        """The child of `node` that `other` is or is in; None where it is `node` itself."""
        line = self.above(other)
        at = line.index(node) + 1
        return line[at] if at < len(line) else None

    def _settle(self) -> None:
        """Gives each step its node."""
        self.home, self.lines = {}, {}
        for counted in ("_group_counts", "_whole_groups"):
            self.__dict__.pop(counted, None)
        for step in self.steps:
            if step.kind == "op":
                node = self.op(step).within
                while node in self.dissolved:
                    node = self.plan.graph.calls[node].within
                self.home[step] = node
        for step in self.steps:
            if step.kind == "op" and self.op(step).operator == TRANSFER:
                ops = [s for f in self.makes(step) for s in self._ops_after(f)]
                ops += [s for f in self.reads(step) for s in self._op_before(f)]
                near = [self.home[s] for s in ops if s in self.home]  # not those of later transfers
                self.home[step] = self._common(near) if near else ROOT
        for step in self.steps:
            if step.kind == "conversion":
                self.home[step] = self._place(step)

    def _ops_after(self, form: Form) -> list[Step]:
        """The operators that read a form or what it is converted to."""
        found = []
        for step in self.readers.get(form, ()):
            found.extend([step] if step.kind == "op" else self._ops_after(self.makes(step)[0]))
        return found

    def _op_before(self, form: Form) -> list[Step]:
        """The operator that makes a form, or what it is converted from."""
        maker = self.makers.get(form)
        if maker is None or maker.kind == "op":
            return [] if maker is None else [maker]
        return self._op_before(self.reads(maker)[0])

    def _place(self, step: Step) -> int:
        conversion = self.plan.conversions[step.index]
        source = self.reads(step)[0]
        maker = self.home[self.makers[source]] if source in self.makers else None
        nodes = {self.home[s] for s in self._ops_after(self.makes(step)[0])}
        found = self._side(maker, nodes, self._shrinks(conversion, source))
        return found if self.owners is None else self._in_group(step, found)

    def _side(self, maker: int | None, readers: Set[int], shrinks: bool) -> int:
        """A conversion that makes its value smaller is at its maker, another one at its reader."""
        if not readers:
            return maker if maker is not None and shrinks else ROOT
        reading = self._common(readers)
        if maker is None or maker == reading:
            return reading
        common = self._common([maker, reading])
        if common == reading:
            inside = self.below(common, maker)
            near = {node for node in readers if node != common and self.below(common, node) == inside}
            if near:
                return self._side(maker, near, shrinks)
        return maker if shrinks else reading

    def _shrinks(self, conversion: Conversion, source: Form) -> bool:
        before, after = self._elements(source), self._elements((conversion.value, conversion.id))
        return after < before or (after == before and conversion.move.forward_bytes > 0)

    def _elements(self, at: Form) -> int:
        layout = layout_of(self.plan, at)
        return math.prod(local_shape(self.plan.graph.values[at[0]].type, layout, self.plan.meshes[layout.mesh]))

    def _in_group(self, step: Step, node: int) -> int:
        """The node on the side of a group's border that the plan counts its memory for."""
        assert self.owners is not None
        group = self.owners.of(step)
        line = self.above(node)
        while node != ROOT and self._group_of(node) not in (None, group):
            node = self.parent(node)
        if group is not None and all(self._group_of(each) != group for each in line):
            maker = self.makers.get(self.reads(step)[0])
            return next(iter(self._whole_groups.get(group, ())), node if maker is None else self.home[maker])
        return node

    @cached_property
    def _group_counts(self) -> dict[int, dict[int | None, int]]:
        """Node -> how many of the operators in it are of each group."""
        found: dict[int, dict[int | None, int]] = {}
        for step in self.steps:
            if step.kind == "op" and self.owners is not None:
                group = self.owners.group(self.op(step).id)
                for node in self.above(self.home[step]):
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
        group = self._group_of(node) if node != ROOT else None
        if group is None or self._group_of(self.parent(node)) == group or len(self._whole_groups[group]) > 1:
            return -1
        return group if self._group_counts[ROOT][group] == self._group_counts[node][group] else -1

    # The order of what is in a node.

    def _orders(self) -> dict[int, list[Step | int]] | None:
        """Node -> its steps and the calls in it, each after what it reads; None after dissolving
        calls for which there is no such order."""
        keys: dict[int, dict[Step | int, float]] = {ROOT: {}}
        firsts: dict[int, int] = {}  # node -> its first operator, or its first step where it has none
        placed: set[int] = set()
        for at, step in enumerate(self.steps):
            line = self.above(self.home[step])
            for outer, inner in itertools.pairwise(line):
                mine = keys.setdefault(outer, {})
                if inner not in firsts or (step.kind == "op" and inner not in placed):
                    mine[inner] = firsts[inner] = at
                    placed.update([inner] if step.kind == "op" else [])
            keys.setdefault(line[-1], {})[step] = self._key(step, at)
        after: dict[int, dict[Step | int, set[Step | int]]] = {node: {} for node in keys}
        for step in self.steps:
            for form in self.reads(step):
                maker = self.makers.get(form)
                if maker is None:
                    continue
                node = self._common([self.home[maker], self.home[step]])
                first, second = self._item(node, maker), self._item(node, step)
                if first != second:
                    after[node].setdefault(first, set()).add(second)
        orders = {node: _sorted(keys[node], after[node]) for node in keys}
        stuck = {item for node, order in orders.items() for item in keys[node].keys() - set(order)}
        self.dissolved |= {item for item in stuck if isinstance(item, int)}
        return None if stuck else orders

    def _key(self, step: Step, at: int) -> float:
        """A conversion beside what makes its value stands right after that."""
        maker = self.makers.get(self.reads(step)[0]) if step.kind == "conversion" else None
        near = maker is not None and self.home[maker] == self.home[step]
        return self._positions[maker] + 0.5 if near and maker is not None and self._lone(step) else at

    def _lone(self, step: Step) -> bool:
        """Whether nothing here reads what a conversion makes: it is for the calls around."""
        return all(self.home[s] != self.home[step] for s in self.readers.get(self.makes(step)[0], ()))

    @cached_property
    def _positions(self) -> dict[Step, int]:
        return {step: at for at, step in enumerate(self.steps)}

    def _item(self, node: int, step: Step) -> Step | int:
        inner = self.below(node, self.home[step])
        return step if inner is None else inner


def _sorted(keys: Mapping[Step | int, float], after: Mapping[Step | int, Set[Step | int]]) -> list[Step | int]:
    """The items in an order that keeps `after`, else by their keys; without those of a circle."""
    waits = dict.fromkeys(keys, 0)
    for items in after.values():
        for item in items:
            waits[item] += 1
    numbered = {item: number for number, item in enumerate(keys)}
    ready = [(keys[item], numbered[item], item) for item, count in waits.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, _, item = heapq.heappop(ready)
        found.append(item)
        for later in after.get(item, ()):
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (keys[later], numbered[later], later))
    return found
