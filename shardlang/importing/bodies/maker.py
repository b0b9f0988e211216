"""The tools that words are made with: the values of a body that is being made, dims that become
one, views that are written where they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardlang.errors import RunError
from shardlang.graph.graph import Init
from shardlang.importing.bodies.body import Body, Const, Expr, Layer, Own, Twice, Value, authors_name, new_dims
from shardlang.importing.bodies.dims import Atom, Mismatch, Term, atoms, flat, size
from shardlang.importing.steps.calls import Call
from shardlang.importing.steps.nodes import CONST, INPUT, PARAM, SIZE, STATE, Node, Stored
from shardlang.importing.steps.problems import Refused
from shardlang.importing.steps.unfold import is_number

_ROLES = {"normal": "std", "constant": "start"}
KINDS = {"torch.bool": "bool", "torch.int64": "i64", "torch.int32": "i32"}


@dataclass
class Shared:
    """Facts of the whole module. starts: of each part of its tensors. given: whether a file has
    their numbers, for starts that the language has not. accepted: codes. refused: nodes without a
    word. differences: those that were accepted, with their codes. unsaid: the steps among what was
    refused. operations: the operators of its own that it has got. tied: all names of a tensor by
    its first. sized: whether a part of what a step computes that is as long as an input's dim is
    meant to be so at all sizes."""

    starts: Mapping[Stored, Init]
    given: bool = False
    accepted: frozenset[str] = frozenset()
    refused: list[Refused] = field(default_factory=list)
    differences: dict[str, str] = field(default_factory=dict)
    unsaid: list[Node] = field(default_factory=list)
    operations: Any = None
    tied: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sized: bool = False


class Maker:
    """The body of a call, and what its steps gave."""

    def __init__(self, call: Call, shared: Shared) -> None:
        self.body, self.shared, self.call = Body(call), shared, call
        self.known: dict[Node, Value] = {}
        # Of recurrent layers: outputs of the last, states of each, whether batches come first.
        self.recurred: dict[Node, tuple[Value, list[tuple[Value, ...]], bool]] = {}

    def add(self, dims: Sequence[Term], expr: Expr, kind: str = "", node: Node | None = None) -> Value:
        value = self.body.add(dims, expr, kind, node)
        # Indices of a dim, sums of such and how many there are up to each place count places.
        moved = kind and expr.word in ("+", "-", "*") and any(
            isinstance(each, Value) and each.counts for each in expr.operands)  # fmt: skip
        value.counts = bool(expr.word == "arange" or (kind and expr.word == "cumsum") or moved)
        return value

    def lazy(self, node: Node) -> Value:
        """The value of a node; a view is not written yet."""
        if node not in self.known:
            if node.op == CONST and is_number(node):
                dims, number = new_dims(node.shape), Const(node.value.flatten()[0].item(), "number")
                self.known[node] = self.add(dims, Expr("expand", [number], into=dims), KINDS.get(str(node.dtype), ""))
                return self.known[node]
            if node.op not in (PARAM, STATE):
                what = "an input" if node.op == INPUT else f"a tensor that is computed from none, {list(node.shape)}"
                raise Refused(node, what)
            self.known[node] = self._own(node)
        return self.known[node]

    def use(self, node: Node) -> Value:
        """The value of a node, computed where it is a view that changes anything."""
        return self.use_view(self.lazy(node))

    def use_view(self, value: Value) -> Value:
        """A value, computed where it is a view that changes anything."""
        base = value.base
        if base is None:
            return value
        if [flat(term) for term in base.dims] == [flat(term) for term in value.dims]:
            return base
        if value.written is None:
            value.written = self.add(value.dims, Expr("rearrange", [base], into=value.dims), value.kind)
            value.written.name, value.written.wishes = value.name, value.wishes
        return value.written

    def ordered(self, node: Node) -> Value:
        """The value of a node, not computed where it is a view that only changes the order of
        dims."""
        value = self.lazy(node)
        if value.base is None or value.written is not None:
            return self.use_view(value)
        terms = [[flat(term) for term in each.dims] for each in (value, value.base)]
        alone = all(len(term) > 0 for term in terms[0]) and len(set(terms[0])) == len(terms[0])
        return value if alone and sorted(map(id, sum(terms[0], ()))) == sorted(map(id, sum(terms[1], ()))) and (
            set(terms[0]) == set(terms[1])) else self.use_view(value)  # fmt: skip

    def number(self, x: Any) -> Any:
        """An operand: a value, or a number."""
        if not isinstance(x, Node):
            return Const(x, "factor")
        if x.op == SIZE:
            term = self.lazy(x.args[0]).dims[x.args[1]]
            return Const(size(term), "factor", of=term)
        if is_number(x):
            return Const(x.value.flatten()[0].item(), "factor")
        return self.use(x)

    def roots(self, sides: Sequence[Any]) -> None:
        """A factor that is the root of the width of what is beside it, to the last digit, is that
        at all sizes: `x * d ** -0.5`. A root that is a whole number or its part may be anything."""
        for number, other in (sides, sides[::-1]):
            if not isinstance(number, Const) or not isinstance(number.value, float) or not isinstance(other, Value):
                continue
            for term in other.dims[-1:]:
                wide = size(term)
                power = next((each for each in (-0.5, 0.5) if wide**each == number.value), None)
                if power is not None and math.isqrt(wide) ** 2 != wide:
                    number.of, number.power = term, power
                    return

    def view(self, value: Value, dims: Sequence[Term], node: Node | None = None) -> Value:
        made = Value(list(dims), value.kind, base=value.base or value, name=authors_name(node))
        if node is not None and node.code:
            made.wishes = [line.wish for line in self.body.lines_of(node, False) if line.wish is not None]
        return made

    def unify(self, node: Node, left: Term, right: Term) -> None:
        if size(left) == size(right) == 1 and bool(flat(left)) != bool(flat(right)):
            return  # a literal 1 and a dim of size 1
        try:
            self.body.unify(left, right)
        except Twice:
            raise
        except Mismatch:
            raise Refused(node, f"`{node.op}` of dims of {size(left)} and {size(right)}") from None

    def broadcast(self, node: Node, sides: list[Any]) -> list[Term]:
        """The dims of an operator of several, element by element; an operand that would have a dim
        twice is relabelled, in `sides`."""
        dims: list[Term] = []
        for at, side in enumerate(sides):
            if isinstance(side, Value):
                sides[at] = side = self._stretched(side, sides)
                sides[at] = side = self._elsewhere(side, dims)
                try:
                    dims = self.aligned(node, dims, side.dims)
                except Twice:
                    sides[at] = side = self._relabelled(side, dims)
                    dims = self.aligned(node, dims, side.dims)
        return dims

    def _stretched(self, value: Value, sides: Sequence[Any]) -> Value:
        """A value whose dims of size 1 are literal ones where another operand has more."""
        others = [side.dims[::-1] for side in sides if isinstance(side, Value)]
        dims = list(value.dims)
        for at, term in enumerate(dims):
            back = len(dims) - 1 - at
            wide = max(size(other[back]) for other in others if back < len(other))
            if flat(term) and size(term) == 1 < wide and len(flat(term)) == 1:
                dims[at] = ()
                value = self.add([*dims], Expr("relabel", [value], into=[*dims]), value.kind)
        return value

    def _elsewhere(self, value: Value, dims: Sequence[Term]) -> Value:
        """A value whose dims, where another operand has them at other places, have other names."""
        wide = max(len(dims), len(value.dims))
        rows = [[()] * (wide - len(side)) + [flat(term) for term in side] for side in (dims, value.dims)]
        others = [{atom for at, term in enumerate(rows[0]) if at != here for atom in term} for here in range(wide)]
        twice = [term for at, term in enumerate(rows[1]) if others[at] & set(term)]
        return self.renamed(value, twice) if twice else value

    def aligned(self, node: Node, left: Sequence[Term], right: Sequence[Term]) -> list[Term]:
        """Dims of both, from the right; a literal 1 gives way."""
        wide = max(len(left), len(right))
        rows = [[()] * (wide - len(side)) + list(side) for side in (left, right)]
        for one, other in zip(*rows, strict=True):
            if flat(one) and flat(other):
                if 1 in (size(one), size(other)) and size(one) != size(other):
                    raise Refused(node, "a dim of size 1 that is stretched")
                self.unify(node, one, other)
        return [one if flat(one) else other for one, other in zip(*rows, strict=True)]

    def _relabelled(self, value: Value, dims: Sequence[Term]) -> Value:
        both = zip(value.dims[-len(dims) :], dims[-len(value.dims) :], strict=True)
        into = [*value.dims[: max(len(value.dims) - len(dims), 0)],
                *(other if flat(mine) and flat(other) else mine for mine, other in both)]  # fmt: skip
        return self.add(into, Expr("relabel", [value], into=into), value.kind)

    def apart(self, node: Node, value: Value, terms: Sequence[Term], other: Value) -> Value:
        """`value`, with those of its `terms` under another name that `other` has too; of a view its
        base has that name."""
        if value.base is not None:
            base = self.apart(node, value.base, terms, other)
            places = [flat(term) for term in value.base.dims]
            dims = [base.dims[places.index(flat(term))] for term in value.dims]
            return value if base is value.base else Value(dims, value.kind, base=base, name=value.name)
        there = set(atoms(other.dims))
        twice = [flat(term) for term in terms if there & set(flat(term))]
        return self.renamed(value, twice) if twice else value

    def renamed(self, value: Value, terms: Sequence[Term]) -> Value:
        """A value with other names for some of its dims."""
        changes = {flat(term): (Atom(size(term)),) for term in terms}
        for old, (new,) in changes.items():
            self.body.copies.append((new, old[0]))
        into = [changes.get(flat(term), term) for term in value.dims]
        return self.add(into, Expr("relabel", [value], into=into), value.kind)

    def solid(self, value: Value, at: int) -> Term:
        """A dim of a parameter, as a dim also where its size is 1."""
        if not flat(value.dims[at]) and value.expr is None:
            value.dims[at] = (Atom(1),)
        return value.dims[at]

    def spatial(self, sizes: Sequence[int]) -> list[Term]:
        """The height and width, or the length, that a window leaves, which an operator names."""
        names = ("height", "width") if len(sizes) == 2 else ("length",)
        return [(Atom(each, {name: -1}),) for each, name in zip(sizes, names, strict=True)]

    def hint(self, term: Term, name: str, rank: int) -> None:
        if len(flat(term)) == 1:
            flat(term)[0].hint(name, rank)

    def made_here(self, value: Value, at: int, like: Term, at_all_sizes: bool = False, usual: str = "patches") -> None:
        """A dim that an operator makes has the name of the one that it is made from; `usual` is for
        places of an image."""
        term = value.dims[at]
        value.made |= {at % len(value.dims)}
        for atom in flat(like)[:1]:
            for made in flat(term):
                made.like = atom
                made.differs = made.size - atom.size if at_all_sizes else None
                made.hints.update({name: rank + 1 for name, rank in atom.hints.items() if rank >= 0})
                if atom.called:
                    made.hint(usual, 9)

    def accept(self, code: str, node: Node, fact: str, instead: str = "") -> None:
        """A difference that stays, if its code is accepted. instead: what else helps."""
        if code not in self.shared.accepted:
            help = f"{instead}`--accept {code}` imports it all the same, and the file then says so"
            where = "" if node.place == "?" else f" (`{node.path or 'the module'}`, {node.place})"
            raise RunError(code, f"{fact}{where}", help=help)
        self.shared.differences[fact] = code

    def _own(self, node: Node) -> Value:
        """A parameter of this model, or one of a layer below it."""
        assert node.stored is not None
        inside = node.name.removeprefix(self.call.scope.prefix)
        for layer in self.body.layers:
            if node.name.startswith(f"{layer.path}."):
                return self._inner(node, layer)
        value = Value(new_dims(node.shape), KINDS.get(str(node.dtype), ""))
        start = self.shared.starts[node.stored]
        numbers = [Const(each, _ROLES.get(start.kind, "low")) for each in start.args]
        still = node.op == STATE or not node.value.requires_grad
        self.body.own.append(Own(inside, value, node.stored, start, still, numbers))
        return value

    def _inner(self, node: Node, layer: Layer) -> Value:
        """A parameter of a layer, used by its path."""
        path, body, terms = [layer.path], layer.body, dict(layer.terms)
        while True:
            for own in body.own:
                if own.stored == node.stored:
                    dims = [tuple(part for atom in flat(term) for part in terms.get(atom, (atom,)))
                            for term in own.value.dims]  # fmt: skip
                    return Value(dims, expr=Expr("path", [layer, node.name]), name="")
            below = next((each for each in body.layers if node.name.startswith(f"{each.path}.")), None)
            if below is None:
                raise Refused(node, "a parameter of a module that is called later")
            terms = {atom: tuple(part for each in flat(term) for part in terms.get(each, (each,)))
                     for atom, term in below.terms.items()}  # fmt: skip
            body = below.body
            path.append(below.path)
