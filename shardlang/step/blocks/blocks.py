"""Steps of a plan -> the calls of layers that they are of, as a tree, and which of these calls are
the same.

A layer that is called six times with the same sizes and layouts is one block, six times. Which text
a block has, and where calls are folded into a loop, is left to emit/ and to the reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind, LayerCall
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form
from shardlang.step.blocks.call import ROOT, BlockCall, called_as, is_below, origin, relative, without_call
from shardlang.step.blocks.forms import Forms
from shardlang.step.blocks.tree import BlockTree
from shardlang.types.dim import Dim

_THERE = (Kind.PARAM, Kind.STATE, Kind.CONSTANT)  # what no step need make for a layer to have it


def call_tree(
    plan: Plan, steps: Sequence[Step] | None = None, ends: Collection[Form] = (), blocks: Blocks | None = None,
    forms: Forms | None = None,
) -> BlockCall:  # fmt: skip
    """The root of the calls that `steps` (None: all) are of, without those that are no lines. ends:
    forms that are read after these steps. blocks: where the numbers of blocks are kept, so that
    several trees share them. forms: what is there before."""
    tree = BlockTree(forms or Forms(plan), plan.steps if steps is None else steps, ends)
    return _Folding(tree, tree.ordered(), blocks or Blocks()).root()


@dataclass
class Blocks:
    """The numbers of blocks. signatures: of calls that were compared. lone: what tells that calls
    are not the same at a glance -> the number of the one call that has it, and its signature."""

    signatures: dict[object, int] = field(default_factory=dict)
    lone: dict[object, tuple[int, Callable[[], object]] | None] = field(default_factory=dict)
    count: int = 0

    def number(self, glance: object, signature: Callable[[], object]) -> int:
        """The number of a call's block; a signature is worked out where there is one to compare."""
        if glance not in self.lone:
            self.lone[glance] = self.count, signature
            return self._next()
        if (first := self.lone[glance]) is not None:
            self.signatures[first[1]()], self.lone[glance] = first[0], None
        key = signature()
        if key not in self.signatures:
            self.signatures[key] = self._next()
        return self.signatures[key]

    def _next(self) -> int:
        self.count += 1
        return self.count - 1


@dataclass
class _Folding:
    """Settled steps -> calls, inner ones first, each with the number of its block."""

    tree: BlockTree
    orders: Mapping[int, Sequence[int]]
    blocks: Blocks
    crossing: dict[int, tuple[dict[Form, None], dict[Form, None]]] = field(
        default_factory=lambda: defaultdict(lambda: ({}, {}))
    )

    def root(self) -> BlockCall:
        self._cross()
        return self._call(ROOT)

    def _cross(self) -> None:
        """The forms that each call reads from outside, and that others read of it."""
        tree, makers, home, crossing = self.tree, self.tree.makers, self.tree.home, self.crossing
        for node, forms in zip(home, tree.reads, strict=True):
            for form in forms:
                maker = makers.get(form)
                if maker is None:
                    for outside in self._foreign(form, tree.above(node)):
                        crossing[outside][0][form] = None
                elif home[maker] != node:
                    line, other, shared = tree.paths(node, home[maker])
                    for inner in line[shared:]:
                        crossing[inner][0][form] = None
                    for inner in other[shared:]:
                        crossing[inner][1][form] = None
        for form in tree.ends:
            form = tree.forms.form(*form)
            maker = makers.get(form)
            for node in tree.above(home[maker]) if maker is not None else ():
                crossing[node][1][form] = None

    def _foreign(self, form: Form, line: Sequence[int]) -> Sequence[int]:
        """The calls of a line, without the root, for which a form that no step makes is no number
        and no parameter or state of a layer in them."""
        value, calls = self.tree.plan.graph.values[form[0]], self.tree.plan.graph.calls
        if form[1] >= 0 or value.kind not in _THERE:
            return line[1:]
        return [] if value.kind is Kind.CONSTANT else [n for n in line[1:] if not is_below(value.path, calls[n].path)]

    def _call(self, node: int) -> BlockCall:
        tree, calls = self.tree, self.tree.plan.graph.calls
        items = [self._call(~item) if item < 0 else item for item in self.orders[node]]
        reads, gives = map(tuple, self.crossing.pop(node, ((), ())))
        steps = tuple([item if isinstance(item, BlockCall) else tree.steps[item] for item in items])
        if node == ROOT:
            return BlockCall("", "", steps, reads, gives, ROOT)
        made = calls[node]
        glance = made.model, len(items), len(reads), len(gives)
        block = self.blocks.number(glance, lambda: _Signature(tree, made).of(items, reads, gives))
        return BlockCall(
            made.path, made.model, steps, reads=reads, gives=gives, block=block, region=tree.region(node), call=node
        )


class _Signature:
    """Everything that the text of a call depends on but its path, as a row of numbers and texts."""

    def __init__(self, tree: BlockTree, made: LayerCall) -> None:
        self.tree, self.kinds, self.made = tree, tree.kinds, made
        self.row: list[object] = [made.model]
        self.forms: dict[Form, int] = {}
        self.dims: dict[Dim, int] = {}

    def of(self, items: Sequence[BlockCall | int], reads: Sequence[Form], gives: Sequence[Form]) -> tuple[object, ...]:
        """Where one ends and the next begins is known: how many numbers follow depends on those
        before."""
        graph, formals = self.tree.plan.graph, self.made.arguments
        for at in reads:
            self._value(at)
            self.row += formals.get(origin(graph, at[0]), ""), self._number(at)
        for item in items:
            self._inner(item) if isinstance(item, BlockCall) else self._step(item)
        return (len(reads), *self.row, *[self.forms[at] for at in gives])

    def _number(self, at: Form) -> int:
        return self.forms.setdefault(at, len(self.forms))

    def _called(self, value: int) -> str:
        """The path of a value as this layer sees it."""
        path, layer = self.tree.plan.graph.values[value].path, f"{self.made.path}."
        if path.startswith(layer) and "@" not in path and value not in self.made.arguments:
            return without_call(path[len(layer) :])
        return without_call(called_as(self.tree.plan.graph, value, self.made))

    def _value(self, at: Form) -> None:
        """The kind of a form, and its dims as they are numbered here."""
        kind, dims = self.kinds.forms.get(at) or self.kinds.form(at)
        own = self.dims
        self.row += (kind, *[own.setdefault(dim, len(own)) for dim in dims])

    def _given(self, at: Form) -> None:
        """A parameter of this layer, or a number."""
        value = self.tree.plan.graph.values[at[0]]
        self.row += (relative(value.path, self.made.path), repr(value.constant))
        self._value(at)

    def _step(self, at: int) -> None:
        tree, op, step, known = self.tree, self.tree.ops[at], self.tree.steps[at], self.forms
        self.row.append(self.kinds.step(step))
        for form in tree.reads[at]:
            self.row.append(known[form]) if form in known else self._given(form)
        if op is None:
            self.row.append(self._number(tree.makes[at][0]))
            return
        for form in tree.makes[at]:
            self._value(form)
            self.row += self._number(form), self._called(form[0])
        if REGISTRY[op.operator].random(op.attrs):
            self.row.append(relative(op.path, self.made.path))
        if tree.owners is not None:
            group = tree.owners.group(op.id)
            self.row.append((group is not None, tree.owners.to_host(group)))

    def _inner(self, call: BlockCall) -> None:
        self.row += ("call", call.block, call.region >= 0, relative(call.path, self.made.path))
        for at in call.reads:
            self.row.append(self.forms[at]) if at in self.forms else self._given(at)
        self.row += [self._number(at) for at in call.gives]
