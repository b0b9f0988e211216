"""Steps of a plan -> the calls of layers that they are of, as a tree, and which of these calls are the same.

A layer that is called six times with the same sizes and layouts is one block, six times. Which text a block has, and
where calls are folded into a loop, is left to emit/ and to the reports.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property

from shardlang.graph.graph import Graph, Kind, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.internal import TRANSFER
from shardlang.ops.rule import FactorRule
from shardlang.plan.needs import Form, layout_of
from shardlang.plan.owners import Owners
from shardlang.plan.phases import summed_in_time
from shardlang.plan.plan import Conversion, MoveKind, Plan, Step
from shardlang.records import dataclass
from shardlang.types.dim import Dim, TensorType
from shardlang.types.layout import local_shape

ROOT = -1
_STAGE = re.compile(r"@\d+$")  # of what stands for a value in another stage
_INDEX = re.compile(r"(.*)\[(\d+)\]")


@dataclass(frozen=True)
class Call:
    """One call of a layer, with what it computes in order.

    path: of the layer ("" for the model of `train`, and for the root, which is `train` itself). model: its name.
    reads: forms that are made outside of it, or are parameters of other layers, in the order of first use. gives: forms
    that are read outside of it. block: calls with the same number are the same but for their paths. region: the group
    of `Plan.recompute` that this call is the whole of; -1 for none. call: index into `Graph.calls`.
    """

    path: str
    model: str
    items: tuple[Step | Call, ...]
    reads: tuple[Form, ...]
    gives: tuple[Form, ...]
    block: int
    region: int = -1
    call: int = ROOT

    def steps(self) -> Iterator[Step]:
        """All steps, those of inner calls too."""
        for item in self.items:
            if isinstance(item, Call):
                yield from item.steps()
            else:
                yield item


def call_tree(
    plan: Plan, steps: Sequence[Step], ends: Collection[Form] = (), given: Set[Form] = frozenset(),
    numbers: dict[object, int] | None = None,
) -> Call:  # fmt: skip
    """The root of the calls that `steps` are of; conversions that are no line (views, sums over the microbatches) are
    left out. ends: forms that are read after these steps. given: forms that are there before them. numbers: where the
    numbers of blocks are kept, so that several trees share them.
    """
    return _Tree(plan, steps, ends, given, {} if numbers is None else numbers).root()


def array_of(path: str) -> tuple[str, int] | None:
    """`encoder.blocks[3]` -> ("encoder.blocks", 3); None for what is no layer of an array."""
    match = _INDEX.fullmatch(path)
    return (match[1], int(match[2])) if match else None


def runs(items: Sequence[Step | Call]) -> list[Step | tuple[Call, ...]]:
    """The items, with neighbours of an array that are the same block joined; a call alone is a run of one."""
    found: list[Step | tuple[Call, ...]] = []
    for item in items:
        last = found[-1] if found else None
        if not isinstance(item, Call):
            found.append(item)
        elif isinstance(last, tuple) and _follows(last[-1], item):
            found[-1] = (*last, item)
        else:
            found.append((item,))
    return found


def _follows(before: Call, call: Call) -> bool:
    first, second = array_of(before.path), array_of(call.path)
    same = before.block == call.block and (before.region < 0) == (call.region < 0)
    return same and first is not None and second == (first[0], first[1] + 1)


@dataclass
class _Tree:
    """`dissolved`: calls whose steps cannot stand together; they are of the call around them."""

    plan: Plan
    given_steps: Sequence[Step]
    ends: Collection[Form]
    given: Set[Form]
    numbers: dict[object, int]
    dissolved: set[int] = field(default_factory=set)
    home: dict[Step, int] = field(default_factory=dict)

    @cached_property
    def steps(self) -> list[Step]:
        return [step for step in self.given_steps if step.kind == "op" or not self._silent(step.index)]

    def _silent(self, at: int) -> bool:
        """Whether a conversion is no line: its form is called as what it converts."""
        c = self.plan.conversions[at]
        return c.move.kind is MoveKind.VIEW or (summed_in_time(self.plan, c) and (c.value, at) not in self.given)

    def form(self, value: int, at: int) -> Form:
        while at >= 0 and self._silent(at) and (value, at) not in self.given:
            at = self.plan.conversions[at].parent
        return value, at

    def reads(self, step: Step) -> list[Form]:
        if step.kind == "op":
            return [self.form(use.value, use.conversion) for use in self.plan.ops[step.index].operands]
        conversion = self.plan.conversions[step.index]
        return [self.form(conversion.value, conversion.parent)]

    def makes(self, step: Step) -> list[Form]:
        if step.kind == "op":
            return [(value, -1) for value in self._op(step).results]
        return [(self.plan.conversions[step.index].value, step.index)]

    def _op(self, step: Step) -> Op:
        return self.plan.graph.ops[self.plan.ops[step.index].op]

    @cached_property
    def makers(self) -> dict[Form, Step]:
        return {form: step for step in self.steps for form in self.makes(step) if form not in self.given}

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

    def root(self) -> Call:
        while True:
            self._settle()
            orders = self._orders()
            if orders is not None:
                return _Folding(self, orders).root()

    # Where each step is.

    def parent(self, node: int) -> int:
        """The call around a call, without those that are dissolved."""
        node = self.plan.graph.calls[node].within
        while node in self.dissolved:
            node = self.plan.graph.calls[node].within
        return node

    def above(self, node: int) -> list[int]:
        """A node and those around it, the root first."""
        found = [node]
        while node != ROOT:
            node = self.parent(node)
            found.append(node)
        return found[::-1]

    def _common(self, nodes: Collection[int]) -> int:
        lines = [self.above(node) for node in nodes]
        return [level[0] for level in zip(*lines, strict=False) if len(set(level)) == 1][-1]

    def below(self, node: int, other: int) -> int | None:
        """The child of `node` that `other` is or is in; None where it is `node` itself."""
        line = self.above(other)
        at = line.index(node) + 1
        return line[at] if at < len(line) else None

    def _settle(self) -> None:
        """Gives each step its node."""
        self.home = {}
        for step in self.steps:
            if step.kind == "op":
                node = self._op(step).within
                while node in self.dissolved:
                    node = self.plan.graph.calls[node].within
                self.home[step] = node
        for step in self.steps:
            if step.kind == "op" and self._op(step).operator == TRANSFER:
                near = [self.home[s] for f in self.makes(step) for s in self._ops_after(f)]
                near += [self.home[self.makers[f]] for f in self.reads(step) if f in self.makers]
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

    def _place(self, step: Step) -> int:
        conversion = self.plan.conversions[step.index]
        source = self.reads(step)[0]
        maker = self.home[self.makers[source]] if source in self.makers else None
        nodes = {self.home[s] for s in self._ops_after(self.makes(step)[0])}
        found = self._side(maker, nodes, self._shrinks(conversion, source))
        return found if self.owners is None else self._in_group(step, found)

    def _side(self, maker: int | None, readers: Set[int], shrinks: bool) -> int:
        """A conversion that makes its value smaller stands where that is made, another one where it is read."""
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
            whole = [n for n in self._whole_groups.get(group, ())]
            return whole[0] if whole else node
        return node

    @cached_property
    def _group_counts(self) -> dict[int, dict[int | None, int]]:
        """Node -> how many of the operators in it are of each group."""
        found: dict[int, dict[int | None, int]] = {}
        for step in self.steps:
            if step.kind == "op" and self.owners is not None:
                group = self.owners.group(self._op(step).id)
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
        group = self._group_of(node) if self.owners is not None and node != ROOT else None
        if group is None or self._group_of(self.parent(node)) == group or len(self._whole_groups[group]) > 1:
            return -1
        counted = sum(self.owners.group(self._op(s).id) == group for s in self.steps if s.kind == "op")
        return group if counted == self._group_counts[node][group] else -1

    # The order of what is in a node.

    def _orders(self) -> dict[int, list[Step | int]] | None:
        """Node -> its steps and the calls in it, each after what it reads; None after dissolving calls for which there
        is no such order.
        """
        keys: dict[int, dict[Step | int, float]] = {ROOT: {}}
        for at, step in enumerate(self.steps):
            line = self.above(self.home[step])
            for outer, inner in zip(line, line[1:], strict=False):
                mine = keys.setdefault(outer, {})
                if step.kind == "op" or inner not in mine:
                    first = step.kind == "op" and not mine.get(inner, math.inf) < at
                    mine[inner] = at if first or inner not in mine else mine[inner]
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
        stuck = {item for node, order in orders.items() for item in keys[node] if item not in set(order)}
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
    """The items in an order that keeps `after`, by their keys where that leaves a choice; without those of a circle."""
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


@dataclass
class _Folding:
    """Settled steps -> calls, inner ones first, each with the number of its block."""

    tree: _Tree
    orders: Mapping[int, Sequence[Step | int]]
    crossing: dict[int, tuple[dict[Form, None], dict[Form, None]]] = field(default_factory=dict)
    rules: dict[int, object] = field(default_factory=dict)

    def root(self) -> Call:
        self._cross()
        return self._call(ROOT)

    def _cross(self) -> None:
        """What each call reads of what is made outside of it, and gives to what is outside."""
        tree = self.tree
        for step in tree.steps:
            here = tree.above(tree.home[step])
            for form in tree.reads(step):
                maker = tree.makers.get(form)
                there = tree.above(tree.home[maker]) if maker is not None else [ROOT]
                for node in here:
                    if node not in there and not self._own(form, node):
                        self._at(node)[0][form] = None
                for node in there:
                    if node not in here:
                        self._at(node)[1][form] = None
        for form in tree.ends:
            form = tree.form(*form)
            maker = tree.makers.get(form)
            for node in tree.above(tree.home[maker]) if maker is not None else ():
                self._at(node)[1][form] = None

    def _at(self, node: int) -> tuple[dict[Form, None], dict[Form, None]]:
        return self.crossing.setdefault(node, ({}, {}))

    def _own(self, form: Form, node: int) -> bool:
        """Whether a form is a number, or a parameter or state of a layer in this node."""
        value, graph = self.tree.plan.graph.values[form[0]], self.tree.plan.graph
        if value.kind is Kind.CONSTANT and form[1] < 0:
            return True
        leaf = value.kind in (Kind.PARAM, Kind.STATE) and form[1] < 0
        return leaf and is_below(value.path, graph.calls[node].path if node != ROOT else "")

    def _call(self, node: int) -> Call:
        calls = self.tree.plan.graph.calls
        items = tuple(self._call(item) if isinstance(item, int) else item for item in self.orders[node])
        reads, gives = (tuple(forms) for forms in self._at(node))
        path, model = (calls[node].path, calls[node].model) if node != ROOT else ("", "")
        call = Call(path, model, items, reads, gives, 0, self.tree.region(node), node)
        return Call(path, model, items, reads, gives, self._number(call), call.region, node)

    def _number(self, call: Call) -> int:
        key = _Signature(self.tree, call, self.rules).key()
        return self.tree.numbers.setdefault(key, len(self.tree.numbers))


def is_below(path: str, layer: str) -> bool:
    """Whether a path is of something in a layer; all is in the root."""
    return not layer or path.startswith((f"{layer}.", f"{layer}["))


def origin(graph: Graph, value: int) -> int:
    """The value that one stands for: it may have been handed on from other stages."""
    producer = graph.producers.get(value)
    while producer is not None and graph.ops[producer].operator == TRANSFER:
        value = graph.ops[producer].operands[0]
        producer = graph.producers.get(value)
    return value


def called_as(graph: Graph, value: int, call: int) -> str:
    """The path of a value as a call of a layer sees it: the formal that it is given as, or its path from the layer; the
    last part alone of what is of another layer, such as the cast of an argument that mixed precision needs.
    """
    made = graph.calls[call] if call != ROOT else None
    value = origin(graph, value)
    formal = made.arguments.get(value) if made is not None else None
    path = _STAGE.sub("", graph.values[value].path)
    if formal is not None or made is None or is_below(path, made.path):
        return formal or relative(path, made.path if made is not None else "")
    producer = graph.producers.get(value)
    if producer is None or not graph.ops[producer].operands:
        return path.rpartition(".")[2]
    inner = called_as(graph, graph.ops[producer].operands[0], call).rpartition(".")[2]
    return f"{inner}:{path.rpartition('.')[2].rpartition(':')[2]}"


def relative(path: str, layer: str) -> str:
    """A path from a layer that it is in; whole where it is not in it."""
    return path[len(layer) :].removeprefix(".") if layer and is_below(path, layer) else path


@dataclass
class _Signature:
    """Everything that the text of a call depends on but its path, as one value."""

    tree: _Tree
    call: Call
    rules: dict[int, object]
    forms: dict[Form, int] = field(default_factory=dict)
    dims: dict[int, int] = field(default_factory=dict)

    def key(self) -> object:
        formals = self.tree.plan.graph.calls[self.call.call].arguments if self.call.call != ROOT else {}
        graph = self.tree.plan.graph
        reads = [(self._value(at), formals.get(origin(graph, at[0]), ""), self._new(at)) for at in self.call.reads]
        items = [self._inner(item) if isinstance(item, Call) else self._step(item) for item in self.call.items]
        return self.call.model, tuple(reads), tuple(items), tuple(self.forms[at] for at in self.call.gives)

    def _new(self, at: Form) -> int:
        return self.forms.setdefault(at, len(self.forms))

    def _value(self, at: Form) -> object:
        """The type, layout and further facts of a form."""
        plan = self.tree.plan
        value = plan.graph.values[at[0]]
        param = plan.params.get(at[0])
        facts = value.kind, value.gradient, plan.places.get(at[0]), param is not None and param.sparse
        return self._type(value.type), layout_of(plan, at) if at[0] in plan.produced else None, facts

    def _type(self, type: TensorType) -> object:
        return type.dtype, tuple([tuple([self._dim(dim) for dim in term]) for term in type.dims])

    def _dim(self, dim: Dim) -> object:
        number = self.dims.setdefault(id(dim), len(self.dims))
        by_hand = id(dim) if self.tree.plan.sizes else 0
        batch = dim is self.tree.plan.graph.batch
        return dim.name.rpartition(".")[2], dim.size, dim.literal, dim.span is not None, number, by_hand, batch

    def _read(self, at: Form) -> object:
        """A form made or read before, or a parameter of this layer, or a number."""
        if at in self.forms:
            return self.forms[at]
        value = self.tree.plan.graph.values[at[0]]
        return relative(value.path, self.call.path), repr(value.constant), self._value(at)

    def _step(self, step: Step) -> object:
        tree, plan = self.tree, self.tree.plan
        reads = tuple([self._read(at) for at in tree.reads(step)])
        if step.kind == "conversion":
            c = plan.conversions[step.index]
            return c.move, c.to, c.gradient, reads, self._new((c.value, c.id))
        planned, op = plan.ops[step.index], tree._op(step)
        results = tuple([(self._value(at), self._new(at), self._name(at[0])) for at in tree.makes(step)])
        attrs = tuple([(name, repr(value)) for name, value in op.attrs.items()])
        again = tree.owners is not None and tree.owners.group(op.id) is not None
        return (
            op.operator, self._rule(op.rule), attrs, planned.factor_axes, planned.mesh, reads, results, op.call,
            relative(op.path, self.call.path) if REGISTRY[op.operator].random else "", op.span.source.name, op.span.line, op.section, again,
        )  # fmt: skip

    def _name(self, value: int) -> str:
        return called_as(self.tree.plan.graph, value, self.call.call)

    def _rule(self, rule: FactorRule) -> object:
        """A rule without the paths in the names of its factors."""
        if id(rule) not in self.rules:
            named = any("." in factor.name for factor in rule.factors)
            factors = tuple((f.name.rpartition(".")[2], f.size, f.split, f.exchanged) for f in rule.factors)
            key = factors, rule.operands, rule.results, rule.through
            self.rules[id(rule)] = key if named else rule
        return self.rules[id(rule)]

    def _inner(self, call: Call) -> object:
        reads = tuple([self._read(at) for at in call.reads])
        gives = tuple([self._new(at) for at in call.gives])
        return call.block, call.region >= 0, relative(call.path, self.call.path), reads, gives
