"""Steps and forms of a plan -> small numbers: those that are the same but for which layer they are
of have one number.

Layers share much of a plan: types, layouts, rules, places in the text. Each such object is
looked at once."""

from __future__ import annotations

import math
from dataclasses import field

from shardlang.frozen.records import dataclass, remembered
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.rule import FactorRule
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, layout_of
from shardlang.types.dim import Dim, TensorType, Term
from shardlang.types.layout import local_shape


@dataclass
class Kinds:
    """numbers: of what is equal. known, types: of objects that were seen, by their ids. forms: the
    number of a form's kind, and the dims of its type. sizes: elements of a kind."""

    plan: Plan
    numbers: dict[object, int] = field(default_factory=dict)
    known: dict[tuple[object, ...], int] = field(default_factory=dict)
    types: dict[tuple[object, ...], tuple[int, Term]] = field(default_factory=dict)
    forms: dict[Form, tuple[int, Term]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def number(self, what: object) -> int:
        """The number of everything that is equal to this."""
        return self.numbers.setdefault(what, len(self.numbers))

    def form(self, at: Form) -> tuple[int, Term]:
        """The kind of a form (its type without dims, its layout and further facts), and the dims
        of its type."""
        found = self.forms.get(at)
        if found is None:
            plan, (id_, conversion) = self.plan, at
            value, param = plan.graph.values[id_], plan.params.get(id_)
            layout = plan.produced.get(id_) if conversion < 0 else plan.conversions[conversion].to
            facts = value.gradient, plan.memory_of.get(id_), param is not None and param.sparse
            objects = id(value.type), id(layout), id(value.kind), *facts
            if objects not in self.types:
                type, dims = self._type(value.type)
                self.types[objects] = self.number((type, layout, value.kind, *facts)), dims
            found = self.forms[at] = self.types[objects]
        return found

    def elements(self, at: Form) -> int:
        """How many elements of a form a rank has."""
        kind = self.form(at)[0]
        if kind not in self.sizes:
            type, layout = self.plan.graph.values[at[0]].type, layout_of(self.plan, at)
            self.sizes[kind] = math.prod(local_shape(type, layout, self.plan.meshes[layout.mesh]))
        return self.sizes[kind]

    def _type(self, type: TensorType) -> tuple[int, Term]:
        dims = tuple([dim for term in type.dims for dim in term])
        whole = type.dtype, tuple([tuple([self._dim(dim) for dim in term]) for term in type.dims])
        return self.number(whole), dims

    def _dim(self, dim: Dim) -> object:
        by_hand, batch = id(dim) if self.plan.sizes else 0, dim is self.plan.graph.batch
        return dim.name.rpartition(".")[2], dim.size, dim.literal, dim.span is not None, by_hand, batch

    def step(self, step: Step) -> int:
        """The number of what a step does, whatever forms it reads and makes."""
        return self._conversion(step) if step.kind == "conversion" else self._op(step)

    def _conversion(self, step: Step) -> int:
        c = self.plan.conversions[step.index]
        objects = id(c.move), id(c.to), c.gradient
        if objects not in self.known:
            self.known[objects] = self.number((c.move, c.to, c.gradient))
        return self.known[objects]

    def _op(self, step: Step) -> int:
        planned = self.plan.ops[step.index]
        op = self.plan.graph.ops[planned.op]
        drawn = op.call if REGISTRY[op.operator].random(op.attrs) else 0  # random numbers are of one call
        more = op.operator, planned.mesh, drawn, op.section
        objects = id(op.rule), id(planned.factor_axes), id(op.span), id(op.attrs), *more
        if objects not in self.known:
            attrs = tuple([(name, repr(value)) for name, value in op.attrs.items()])
            self.known[objects] = self.number((_rule(op.rule), planned.factor_axes, op.span, attrs, *more))
        return self.known[objects]


@remembered
def kinds_of(plan: Plan) -> Kinds:
    """The kinds of a plan, for all who ask."""
    return Kinds(plan)


def _rule(rule: FactorRule) -> object:
    """A rule without the paths in the names of its factors."""
    if not any("." in factor.name for factor in rule.factors):
        return rule
    factors = tuple((f.name.rpartition(".")[2], f.size, f.split, f.exchanged) for f in rule.factors)
    return factors, rule.operands, rule.results, rule.through
