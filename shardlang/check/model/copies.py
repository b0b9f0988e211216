"""The additions of an array's first layer to the graph -> the same for each layer after it, without
checking it again.

All layers of an array are given the same, so they differ in paths, in the numbers of values, and in
the dims that a layer declares itself. A layer is checked like the first where that may not hold:
after a mistake, where numbers become dims, and where what goes in is not as it is for the first.
`tests/check/test_copies.py` holds both ways to one graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from shardlang.check.context import Context
from shardlang.check.graph.drafts import GraphBuilder, OpDraft, ValueDraft
from shardlang.check.graph.unify import Unifier
from shardlang.check.model.forward import CALLS_LIMIT
from shardlang.check.values import DimValue, Instance, LayerArray, Tensor
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind, LayerCall
from shardlang.paths.patterns import count
from shardlang.types.dim import FLOATS, Dim, TensorType, Term

# A test takes copies away here, and finds the same graph.
COPIED = True


@dataclass(frozen=True, slots=True)
class GraphExtent:
    """How far a check has come: how much of everything there is."""

    values: int
    ops: int
    calls: int
    paths: int
    dims: int
    layers: int
    called: int
    casts: int
    # Dims made of numbers, and those of them that have become others.
    literals: int
    become: int
    mistakes: int


def mark(context: Context) -> GraphExtent:
    """Where the check is now."""
    build, dims = context.build, context.dims
    return GraphExtent(
        len(build.values), len(build.ops), len(build.calls), paths=len(build.paths), dims=len(build.dims),
        layers=context.layers,
        called=context.calls, casts=len(context.casts), literals=len(dims.literals),
        become=len(dims.become), mistakes=len(context.sink.found),
    )  # fmt: skip


@dataclass(eq=False)
class LayerCopy:
    """One further layer: its path, the numbers there of what the first one has, its dims by those
    of the first.

    `inner`: the first layer and those within it. `literals`: dims of numbers that the first one made.
    `calls`: how often each of these and its copy were
    called when both were alike. `made`: the calls of the first that were copied, each with the
    numbers there. `same`: dims, types and attrs (by identity) that are the same in all layers of
    the array."""

    build: GraphBuilder
    unifier: Unifier
    inner: Sequence[Instance]
    new: str
    same: dict[int, Any]
    literals: set[Dim]
    ids: dict[int, int] = field(default_factory=dict)
    dims: dict[Dim, Dim] = field(default_factory=dict)
    types: dict[int, tuple[TensorType, TensorType]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    calls: Sequence[int] = ()
    made: list[tuple[FirstLayerCall, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.old = self.inner[0].path
        self.calls = [0] * len(self.inner)

    def path(self, path: str) -> str:
        """The place below this layer; all who ask for one get one text."""
        known = self.paths.get(path)
        if known is None:
            known = self.paths[path] = self.new + path[len(self.old) :]
        return known

    def dim(self, dim: Dim) -> Dim:
        """The dim of this layer; dims that the layer only renames are the same for all layers."""
        if id(dim) in self.same:
            return dim
        if dim not in self.dims:
            unifier, outside = self.unifier, self.unifier.outer.get(dim)
            own = self._own(dim)
            moved = self.term(outside) if own and outside is not None else outside
            if own and (outside is None or moved != outside):
                made = (
                    unifier.literal(self._named(dim.name), dim.size, dim.span) if dim.home is None
                    else Dim(dim.name, dim.size, dim.span, dim.literal, self.path(dim.home))
                )  # fmt: skip
                if moved is not None:
                    unifier.rename(made, moved)
                self.dims[dim] = made
            else:
                self.same[id(dim)] = self.dims[dim] = dim
        return self.dims[dim]

    def _named(self, name: str) -> str:
        """The name of a dim of a number: it may begin with the path of the layer that it is for."""
        return self.path(name) if name.startswith(f"{self.old}.") else name

    def _own(self, dim: Dim) -> bool:
        """Whether the first layer, or one within it, has made a dim."""
        if dim.home is None:
            return dim in self.literals
        return dim.home == self.old or dim.home.startswith(f"{self.old}.")

    def term(self, term: Term) -> Term:
        return tuple([self.dim(d) for d in term])

    def type(self, type: TensorType) -> TensorType:
        if id(type) in self.same:
            return type
        if id(type) not in self.types:
            made = TensorType(type.dtype, tuple([self.term(t) for t in type.dims]))
            if made == type:
                self.same[id(type)] = made = type
            self.types[id(type)] = type, made
        return self.types[id(type)][1]

    def value(self, value: Any, ids: Mapping[int, int]) -> Any:
        """A static value, a dim, a tensor."""
        match value:
            case Tensor():
                return Tensor(ids.get(value.id, value.id), self.type(value.type), value.name)
            case DimValue():
                return DimValue(self.term(value.term))
            case Dim():
                return self.dim(value)
            case tuple():
                return tuple([self.value(v, ids) for v in value])
            case _:
                return value

    def attrs(self, attrs: Mapping[str, Any], ids: Mapping[int, int]) -> Mapping[str, Any]:
        """The arguments of an operator besides tensors."""
        if not attrs or id(attrs) in self.same:
            return attrs
        made: Mapping[str, Any] = {name: self.value(v, ids) for name, v in attrs.items()}
        if made == attrs:
            self.same[id(attrs)] = made = attrs
        return made

    @cached_property
    def layers(self) -> list[Instance]:
        """The copy of each layer of `inner`. Few programs name a further layer of an array, and no
        other needs them."""
        found: list[Instance] = []
        self._instance(self.inner[0], found)
        for call, first, given in self.made:
            call.tell(self, found, call.ids(self, first, given))
        return found

    @property
    def named(self) -> bool:
        """Whether the program names this layer."""
        return "layers" in vars(self)

    def now(self) -> Sequence[int]:
        """How often each of `layers` was called."""
        return [layer.calls for layer in self.layers] if self.named else self.calls

    def _instance(self, first: Instance, found: list[Instance]) -> Instance:
        """A layer with all that it declares; its parameters are in the graph already."""
        made = Instance(
            first.decl, self.path(first.path), first.span, depth=first.depth, names={}, spans=first.spans,
            nodes=first.nodes, missing=first.missing,
            forward=first.forward,
        )  # fmt: skip
        found.append(made)
        for name, value in first.names.items():
            match value:
                case Instance():
                    made.names[name] = self._instance(value, found)
                case LayerArray():
                    items = [self._instance(item, found) for item in value]
                    made.names[name] = LayerArray(self.path(value.path), items)
                case _:
                    made.names[name] = self.value(value, self.ids)
        return made

    def add_values(self, first: range) -> None:
        """Values as drafts, with their places below this layer."""
        for id in first:
            v = self.build.values[id]
            self.ids[id] = self.build.add(
                ValueDraft(v.kind, self.path(v.path), v.name, self.type(v.type), v.span, v.statement, v.init)
            )

    def add_paths(self, first: list[tuple[str, int]], ids: Mapping[int, int]) -> None:
        for path, id in first:
            if id < 0:
                self.build.declare(self.path(path))
            else:
                self.build.address(self.path(path), ids.get(id, id))


def copied(context: Context, before: GraphExtent, first: Instance, paths: list[str]) -> list[LayerCopy]:
    """How the layers of an array at `paths` are copied of the first one, as that was declared; none
    where each is to be declared by itself."""
    build, after = context.build, mark(context)
    if not COPIED or not first.sound or (after.mistakes, after.become) != (before.mistakes, before.become):
        return []
    added, dims = build.paths[before.paths :], list(build.dims.items())[before.dims :]
    same: dict[int, Any] = {}
    inner, literals = list(_all_layers(first)), set(context.dims.literals[before.literals : after.literals])
    copies = [LayerCopy(build, context.dims, inner, path, same=same, literals=literals) for path in paths]
    for copy in copies:
        context.layers += (after.layers - before.layers) * count(copy.new)
        copy.add_values(range(before.values, after.values))
        build.dims.update((copy.path(name), copy.term(term)) for name, term in dims)
        copy.add_paths(added, copy.ids)
    return copies


def _all_layers(layer: Instance) -> Iterator[Instance]:
    """A layer and those within it, in the order in which they are copied."""
    yield layer
    for value in layer.names.values():
        for inner in value if isinstance(value, LayerArray) else [value] if isinstance(value, Instance) else []:
            yield from _all_layers(inner)


@dataclass(frozen=True, slots=True)
class FirstLayerStart:
    """Before the call of the first layer with `input`: how often each of its layers was called, and
    what else it is given. literals: as of its copies, which have more after it."""

    context: Context
    before: GraphExtent
    layers: Sequence[Instance]
    ids: Mapping[int, int]
    literals: set[Dim]
    input: Tensor
    others: frozenset[int]
    counts: list[int]

    def made(self, result: Any) -> FirstLayerCall | None:
        """The call, when it has been made, to be copied; None where it can not be.

        Numbers, and casts of what is outside of the layer, are there for all layers after the first
        call."""
        context, before, after = self.context, self.before, mark(self.context)
        if after.mistakes != before.mistakes or not isinstance(result, Tensor):
            return None
        self.literals.update(context.dims.literals[before.literals : after.literals])
        became = [*context.dims.become.items()][before.become : after.become]
        if not self.literals.issuperset(literal for literal, _ in became):
            return None
        drafts = context.build.values
        casts = list(context.casts.items())[before.casts :]
        inside = {self.input.id, *self.ids, *range(before.values, after.values)}
        shared = {made.id for (value, _), made in casts if value not in inside}
        made = [v for v in range(before.values, after.values) if drafts[v].kind is not Kind.CONSTANT]
        ops = [at for at in range(before.ops, after.ops) if shared.isdisjoint(context.build.ops[at].results)]
        kept = [cast for cast in casts if cast[1].id not in shared]
        told = [(layer.calls, layer.results, layer.result_nodes) for layer in self.layers]
        values = [v for v in made if v not in shared]
        return FirstLayerCall(self, after, result, values=values, ops=ops, casts=kept, became=became, told=told)


def ready(copies: Sequence[LayerCopy], given: list[Any], context: Context) -> FirstLayerStart | None:
    """Before the first layer of an array is called; None where the others will not be copied."""
    if not copies or not _may_be_given(given[0], context):
        return None
    first, others = copies[0], frozenset(v.id for v in given[1:] if isinstance(v, Tensor))
    if given[0].id in others:
        return None
    return FirstLayerStart(
        context, mark(context), first.inner, ids=first.ids, literals=first.literals, input=given[0], others=others,
        counts=[layer.calls for layer in first.inner],
    )  # fmt: skip


def _may_be_given(given: Any, context: Context) -> bool:
    """Whether a layer that is given this may be the first of copies, or a copy: a tensor that is
    computed or loaded, and not cast yet."""
    return (
        isinstance(given, Tensor)
        and context.build.values[given.id].kind in (Kind.RESULT, Kind.DATA)
        and not (context.casts and any([(given.id, dtype) in context.casts for dtype in FLOATS]))
    )


@dataclass(frozen=True, slots=True)
class FirstLayerCall:
    """A call of the first layer: values, operators, casts and dims that become others, which each
    further layer repeats."""

    start: FirstLayerStart
    after: GraphExtent
    result: Tensor
    values: list[int]
    ops: list[int]
    casts: list[tuple[tuple[int, str], Tensor]]
    became: list[tuple[Dim, Term]]
    # How often each layer was called then, with what its last call told.
    told: list[tuple[int, Mapping[str, Any], Mapping[str, object]]]

    def copied(self, copy: LayerCopy, given: Tensor) -> Tensor | None:
        """The result of the same call of another layer; None where that is to be called itself."""
        start, context = self.start, self.start.context
        build, input = context.build, start.input
        calls = (self.after.called - start.before.called) * count(copy.new)
        resolve = context.dims.resolve_type
        same = given.type is input.type or resolve(given.type) == resolve(input.type)
        fits = len(build.ops) + len(self.ops) <= build.operators_limit and context.calls + calls < CALLS_LIMIT
        alike = copy.calls == start.counts == copy.now()
        if not (same and fits and alike and given.id not in start.others and _may_be_given(given, context)):
            return None
        first = len(build.values)
        ids = self.ids(copy, first, given.id)
        ops = {op: at for at, op in enumerate(self.ops, len(build.ops))}
        self._add(copy, ids, ops)
        self._keep(copy, ids)
        copy.calls = [calls for calls, _, _ in self.told]
        copy.made.append((self, first, given.id))
        if copy.named:
            self.tell(copy, copy.layers, ids)
        context.calls += calls
        result: Tensor = copy.value(self.result, ids)
        return result

    def ids(self, copy: LayerCopy, first: int, given: int) -> dict[int, int]:
        """The numbers there of the values here: those that the call made begin with `first`."""
        return copy.ids | {v: at for at, v in enumerate(self.values, first)} | {self.start.input.id: given}

    def tell(self, copy: LayerCopy, layers: Sequence[Instance], ids: Mapping[int, int]) -> None:
        """Sets what is known of each layer after the call."""
        for layer, before, (calls, results, nodes) in zip(layers, self.start.counts, self.told, strict=True):
            if calls > before:
                layer.calls, layer.result_nodes = calls, nodes
                layer.results = {name: copy.value(v, ids) for name, v in results.items()}

    def _add(self, copy: LayerCopy, ids: Mapping[int, int], ops: Mapping[int, int]) -> None:
        """Values, operators, calls and paths."""
        build, before = self.start.context.build, self.start.before
        first, further = before.calls, len(build.calls)
        for call in build.calls[first : self.after.calls]:
            within = call.within - first + further if call.within >= first else call.within
            given = {ids.get(v, v): name for v, name in call.arguments.items()}
            path = copy.path(call.path)
            build.calls.append(LayerCall(path, call.model, call.span, within, given, call.statement))
        for v in (build.values[at] for at in self.values):
            path, type, producer = copy.path(v.path), copy.type(v.type), ops[v.producer]
            build.values.append(ValueDraft(v.kind, path, v.name, type, v.span, v.statement, producer=producer))
        for op in (build.ops[at] for at in self.ops):
            operands = tuple([ids.get(v, v) for v in op.operands])
            results = tuple([ids[v] for v in op.results])
            attrs = copy.attrs(op.attrs, ids)
            build.ops.append(
                OpDraft(
                    op.operator, operands, results, attrs=attrs, rule=op.rule, span=op.span, path=copy.path(op.path),
                    call=op.call, implied=op.implied,
                    within=op.within - first + further, statement=op.statement,
                )
            )  # fmt: skip
        copy.add_paths(build.paths[before.paths : self.after.paths], ids)

    def _keep(self, copy: LayerCopy, ids: Mapping[int, int]) -> None:
        """Facts that later calls may ask for: dims, types of parameters, and casts."""
        copy.unifier.become.update([(copy.dim(literal), copy.term(term)) for literal, term in self.became])
        context, values = self.start.context, self.start.context.build.values
        for first, own in copy.ids.items():
            if values[own].type.dtype != values[first].type.dtype:
                values[own].type = copy.type(values[first].type)
            if first in context.wide:
                context.wide.add(own)
        for (value, dtype), made in self.casts:
            context.casts[ids.get(value, value), dtype] = copy.value(made, ids)
            if value in copy.ids:
                copy.ids[made.id] = ids[made.id]
