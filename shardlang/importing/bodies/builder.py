"""A call of a module -> the body of its model: each step becomes an expression, each inner call a
layer, and dims become one where operators need it."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.importing.authors.lines import Wish

# These modules fill WORDS.
from shardlang.importing.bodies import composed, convolutions, selections, shapes  # noqa: F401
from shardlang.importing.bodies.body import Body, Const, Expr, Layer, Value, new_dims
from shardlang.importing.bodies.dims import Atom, Mismatch, Term, atoms, flat, size
from shardlang.importing.bodies.forms import find_arrays, form, same_model
from shardlang.importing.bodies.library import FUNCTIONS, known
from shardlang.importing.bodies.maker import KINDS, Maker, Shared
from shardlang.importing.bodies.renames import reached, rename
from shardlang.importing.bodies.words import WORDS
from shardlang.importing.steps.calls import Call
from shardlang.importing.steps.nodes import CONST, PARAM, STATE, Node
from shardlang.importing.steps.problems import Refused


class Builder(Maker):
    """Makes one body; `arguments` are the dims and kinds of what it is called with."""

    def __init__(self, call: Call, arguments: Sequence[Value], shared: Shared, one: bool = False) -> None:
        """one: whether dims that are one outside are one here from the start."""
        super().__init__(call, shared)
        self.layers: dict[str, Layer] = {}
        self.twice = False
        known: dict[Term, Term] = {}
        whole = not call.scope.path
        for node, given in zip(call.outside, arguments, strict=True):
            dims = new_dims([size(term) for term in given.dims])
            if one:
                dims = [known.setdefault(flat(outer), term) for term, outer in zip(dims, given.dims, strict=True)]
            for term, outer in zip(dims, given.dims, strict=True):
                # A product of dims has the name of none of them.
                if len(flat(outer)) == 1 and term and (called := flat(outer)[0].called):
                    term[0].hints[called] = -1
            name = given.name if whole else self._input_name(node, given)
            value = Value(dims, given.kind, name=name, counts=given.counts)
            self.body.inputs.append(value)
            self.known[node] = value

    def _input_name(self, node: Node, given: Value) -> str:
        """The name of the argument of `forward`; of a matrix of another layer that of its module
        here, which is tied to it."""
        path = self.call.scope.path
        if self.call.scope.kind.startswith("torch."):
            return ""
        if node.op not in (PARAM, STATE) or node.stored is None:
            return self.call.names.get(node, given.name)
        names = self.shared.tied.get(node.stored.name, [node.stored.name])
        mine = next((name for name in names if name.startswith(f"{path}.")), node.stored.name)
        return "_".join(mine.removeprefix(f"{path}.").split(".")[-2:])

    def build(self) -> Body:
        for item in self.call.items:
            results = item.results if isinstance(item, Call) else [item]
            try:
                if isinstance(item, Call):
                    self._called(item)
                else:
                    self.known[item] = self._step(item)
            except Refused as refused:
                # A result of a step that was refused itself is no further one.
                if isinstance(item, Call) or item.op != "item" or item.args[0] not in self.shared.unsaid:
                    self.shared.refused.append(refused)
                self.shared.unsaid += [] if isinstance(item, Call) else [item]
                for node in results:
                    self.known[node] = self.add(new_dims(node.shape), Expr(node.op, []), KINDS.get(str(node.dtype), ""))
        for node in self.call.results:
            try:
                if node.op == CONST:
                    raise Refused(node, f"a tensor that is computed from none, {list(node.shape)}")
                self.body.results.append(self.use(node))
            except Refused as refused:
                self.shared.refused.append(Refused(node, f"a result that is {refused.what}"))
                self.body.results.append(self.add(new_dims(node.shape), Expr(node.op, [])))
        find_arrays(self.body)
        self._given()
        self._counted()
        rename(self.body)
        self._sized()
        self.body.form, self.body.constants = form(self.body)
        # No later step changes the dims inside; that of the whole lets go of them.
        self.body.final = (self.body.formals(False), self.body.formals())
        if not self.call.scope.path:
            _let_go(self.body)
        return self.body

    def _given(self) -> None:
        """A dim of weights that the results have too is an argument, also where an operator would
        declare it: a declared dim is unknown to the caller."""
        there = {atom for value in self.body.results for atom in atoms(value.dims)}
        rows = [*(own.value.dims for own in self.body.own), *(layer.terms.values() for layer in self.body.layers)]
        for atom in {atom for row in rows for atom in atoms(row)} & there:
            atom.declared = atom.declared and bool(atom.product)

    def _counted(self) -> None:
        """A dim that only an operator names, as that of `arange`, has the size of an input's dim:
        the other sizes of the second trace would show if it had not."""
        there = {atom for value in self.body.inputs for atom in atoms(value.dims)}
        bound = there | set(self.body.formals()) | set(self.body.sources())
        for value in self.body.live():
            assert value.expr is not None
            number = value.expr.operands and isinstance(value.expr.operands[0], Const)
            made = value.dims if value.expr.word in ("arange", "expand") and not number else ()
            made = value.dims[-1:] if value.expr.word == "one_hot" and value.expr.named else made
            for atom in atoms(made):
                # The height that a window leaves is that of no input.
                like = [each for each in there if each.size == atom.size and not (each.fixed or atom.called)]
                if atom in bound or atom.fixed or atom.declared:
                    continue
                if not like and value.expr.word == "arange" and (rows := self._rows(value, atom.size)) is not None:
                    self.body.unify((rows,), (atom,))
                    rows.hint("positions", 0)
                elif len(like) == 1:
                    self.body.copies.append((atom, like[0]))
                else:
                    atom.declared = True
                    atom.hint("parts", 12)
                bound.add(atom)

    def _sized(self) -> None:
        """Numbers that are sizes of dims stay numbers where no name reaches these."""
        known = reached(self.body)
        for value in self.body.live():
            assert value.expr is not None
            for each in (each for each in value.expr.operands if isinstance(each, Const)):
                # A function of the library counts the rows of the table that is read at its result.
                rows = self._rows(value, each.value) if value.expr.word in FUNCTIONS else None
                if rows is not None:
                    rows.hints.pop("vocab", None)
                    rows.hint("buckets", 0)
                    each.of = (rows,)
                if not all(atom in known or atom.declared for atom in flat(each.of)):
                    each.of = ()

    def _rows(self, places: Value, count: int) -> Atom | None:
        """The rows of the table that is looked up at places, if they are so many: all of it."""
        for value in self.body.values:
            layer = value.expr.layer if value.expr is not None and places in value.expr.operands[:1] else None
            leaf = known(layer.body) if layer is not None else None
            if layer is not None and leaf is not None and leaf.name == "Embedding":
                rows = flat(layer.terms[layer.body.formals()[0]])
                if len(rows) == 1 and rows[0].size == count:
                    return rows[0]
        return None

    def _step(self, node: Node) -> Value:
        function = WORDS.get(node.op)
        if function is None:
            raise Refused(node, f"`{node.op}`")
        try:
            return function(self, node, *node.args, **node.kwargs)
        except Mismatch:
            self.twice = True
            raise Refused(node, f"`{node.op}` of dims that are not one") from None
        except (TypeError, AttributeError, IndexError, ValueError) as error:
            given = [*node.args, *node.kwargs.values()]
            shown = ", ".join("a tensor" if isinstance(each, Node) else f"{each!r:.40}" for each in given)
            raise Refused(node, f"`{node.op}` with such arguments ({shown})") from error

    def _called(self, call: Call) -> None:
        try:
            self._layer(call)
        except Mismatch:
            self.twice = True
            fact = f"a call of `{call.scope.path}` that makes two dims of one tensor one"
            raise Refused(next(iter(call.steps())), fact) from None

    def _inside(self, call: Call, given: Sequence[Value]) -> Body:
        """The body of a call. Where dims of its inputs would have to become one, and cannot any
        more, it is built again with those that are one here."""
        shared, before = self.shared, (len(self.shared.refused), len(self.shared.unsaid))
        maker = Builder(call, given, shared)
        inner = maker.build()
        terms = [flat(term) for value in given for term in value.dims if flat(term)]
        if not maker.twice or len(set(terms)) == len(terms):
            return inner
        del shared.refused[before[0] :], shared.unsaid[before[1] :]
        return Builder(call, given, shared, True).build()

    def _layer(self, call: Call) -> None:
        """A call of a layer: its dims are the layer's, in what it is given and gives."""
        given = [self.use(node) for node in call.outside]
        path = call.scope.path
        inner = self._inside(call, given)
        if path not in self.layers:
            terms: dict[Atom, Term] = {
                atom: (Atom(atom.size, dict(atom.hints), fixed=atom.size == 1),) for atom in inner.formals()
            }
            self.layers[path] = Layer(path, inner, terms)
            self.body.layers.append(self.layers[path])
        elif not same_model(inner, self.layers[path].body):
            fact = f"`{path}`, which computes something else when it is called again"
            raise Refused(next(iter(call.steps())), fact)
        layer = self.layers[path]
        terms = _matched(layer, inner)
        layer.others.append(inner)

        def here(dims: Sequence[Term]) -> list[Term]:
            for atom in atoms(dims):
                terms.setdefault(atom, (Atom(atom.size, dict(atom.hints)),))
            return [tuple(part for atom in flat(term) for part in terms[atom]) for term in dims]

        node = next(iter(call.steps()))
        for mine, theirs in zip(given, inner.inputs, strict=True):
            for left, right in zip(mine.dims, here(theirs.dims), strict=True):
                self.unify(node, left, right)
        expr = Expr("", list(given), layer=layer)
        values = [self.body.add(here(value.dims), expr, value.kind, result)
                  for value, result in zip(inner.results, call.results, strict=True)]  # fmt: skip
        bound = {atom for each in inner.inputs for atom in atoms(each.dims)} | set(inner.formals())
        for result, value, there in zip(call.results, values, inner.results, strict=True):
            value.made = frozenset(at for at, term in enumerate(there.dims) if set(flat(term)) - bound)
            value.results = tuple(values) if len(values) > 1 else ()
            value.wishes = self._result_names(call, result, value, there)
            self.known[result] = value

    def _result_names(self, call: Call, result: Node, value: Value, there: Value) -> list[Wish]:
        """Names for what a call gives: that of its line, if this is not of several results, then
        those inside."""
        at, several = call.places.get(result), len(value.results) > 1
        names = [(line.names[at], line.reads) for line in self.body.lines_of(result, True)
                 if at is not None and at < len(line.names) > 1]  # fmt: skip
        placed = [Wish(name, name in reads) for name, reads in names]
        plain = [wish for wish in value.wishes if at is None and not several]
        return [wish for wish in (*placed, *plain, Wish(there.name), *there.wishes) if wish.name]


def _let_go(body: Body) -> None:
    body.final = ()
    for layer in body.layers:
        for inner in (layer.body, *layer.others):
            _let_go(inner)


def _matched(layer: Layer, inner: Body) -> dict[Atom, Term]:
    """The dims of another call of a layer, by the formals of the first."""
    pairs = zip(layer.body.formals(), inner.formals(), strict=True)
    return {theirs: layer.terms[mine] for mine, theirs in pairs}
