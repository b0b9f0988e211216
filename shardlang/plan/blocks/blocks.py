"""Steps of a plan -> the calls of layers that they are of, as a tree, and which of these calls are
the same.

A layer that is called six times with the same sizes and layouts is one block, six times. Which text
a block has, and where calls are folded into a loop, is left to emit/ and to the reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from shardlang.graph.graph import Kind
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.rule import FactorRule
from shardlang.plan.blocks.call import ROOT, Call, called_as, is_below, origin, relative
from shardlang.plan.blocks.forms import Forms
from shardlang.plan.blocks.tree import Tree
from shardlang.plan.needs import Form, layout_of
from shardlang.plan.plan import Plan, Step
from shardlang.records import dataclass
from shardlang.types.dim import Dim, TensorType


def call_tree(
    plan: Plan, steps: Sequence[Step], ends: Collection[Form] = (), numbers: dict[object, int] | None = None,
    forms: Forms | None = None,
) -> Call:  # fmt: skip
    """The root of the calls that `steps` are of, without those that are no lines. ends: forms that
    are read after these steps. numbers: where the numbers of blocks are kept, so that several trees
    share them. forms: what is there before."""
    tree = Tree(forms or Forms(plan), steps, ends)
    return _Folding(tree, tree.ordered(), {} if numbers is None else numbers).root()


@dataclass
class _Folding:
    """Settled steps -> calls, inner ones first, each with the number of its block."""

    tree: Tree
    orders: Mapping[int, Sequence[Step | int]]
    numbers: dict[object, int]
    crossing: dict[int, tuple[dict[Form, None], dict[Form, None]]] = field(default_factory=dict)
    rules: dict[int, object] = field(default_factory=dict)

    def root(self) -> Call:
        self._cross()
        return self._call(ROOT)

    def _cross(self) -> None:
        """The forms that each call reads from outside, and that others read of it."""
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
            form = tree.forms.form(*form)
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
        return self.numbers.setdefault(key, len(self.numbers))


@dataclass
class _Signature:
    """Everything that the text of a call depends on but its path, as one value."""

    tree: Tree
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
        facts = value.kind, value.gradient, plan.memory_of.get(at[0]), param is not None and param.sparse
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
        planned, op = plan.ops[step.index], tree.op(step)
        results = tuple([(self._value(at), self._new(at), self._name(at[0])) for at in tree.makes(step)])
        attrs = tuple([(name, repr(value)) for name, value in op.attrs.items()])
        again = tree.owners is not None and tree.owners.group(op.id) is not None
        key = relative(op.path, self.call.path) if REGISTRY[op.operator].random else ""
        return (
            op.operator, self._rule(op.rule), attrs, planned.factor_axes, planned.mesh, reads, results, op.call,
            key, op.span, op.section, again,
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
