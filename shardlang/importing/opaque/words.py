"""A piece of a module -> the call of an operator of its own, declared beside the program."""

from __future__ import annotations

from shardlang.importing.bodies.body import Const, Expr, Value, free
from shardlang.importing.bodies.dims import Atom, Term, flat, size
from shardlang.importing.bodies.maker import KINDS, Maker
from shardlang.importing.bodies.words import WORDS
from shardlang.importing.opaque.operations import Operation, named
from shardlang.importing.opaque.pieces import OPAQUE, OpaquePiece
from shardlang.importing.opaque.python import PythonFunction, Unwritten, said, written
from shardlang.importing.opaque.sizes import Operand, Sizes, Unsized, sizes
from shardlang.importing.steps.nodes import Node
from shardlang.importing.steps.problems import Refused

# Names of more steps than these say nothing.
_NAMED = 3


def opaque(b: Maker, node: Node, *operands: Node) -> Value:
    """The call of a piece."""
    piece: OpaquePiece = node.value
    if any(each.dtype is None or not _kind(each) for each in (*operands, node)):
        raise Refused(node, f"{_shown(piece)}, between tensors of other types than the language has")
    values = [b.use(each) for each in operands]
    given = [Operand(tuple(map(size, value.dims)), each.dtype, tuple(flat(term) or None for term in value.dims))
             for value, each in zip(values, operands, strict=True)]  # fmt: skip
    function, found = _found(node, piece, given)
    if found.view:
        function.lines[-1] += ".clone()"
    for (at, dim), *others in found.groups:
        for other, there in others:
            b.unify(node, values[at].dims[dim], values[other].dims[there])
    return _call(b, node, values, function, found)


def _found(node: Node, piece: OpaquePiece, given: list[Operand]) -> tuple[PythonFunction, Sizes]:
    """The function of a piece, and its sizes."""
    for stretched in (True, False):
        try:
            function = written(piece, stretched)
            return function, sizes(function.loaded(), function.settings, given, node.shape)
        except (Unwritten, Unsized) as error:
            refused = Refused(node, f"{_shown(piece)}, as an operator of its own: {error}")
    raise refused


def _kind(node: Node) -> str | None:
    """The element type as declarations write it; None where there is none."""
    return "run" if node.dtype.is_floating_point else KINDS.get(str(node.dtype))


def _call(b: Maker, node: Node, values: list[Value], function: PythonFunction, found: Sizes) -> Value:
    names = named(found, [len(value.dims) for value in values], function.operands)
    dims: list[Term] = []
    result: list[str] = []
    made: list[tuple[str, str]] = []
    there: set[Atom] = set()
    for at, each in enumerate(found.result):
        term: Term = ()
        if each is not None and each.same is not None:
            (operand, dim), *_ = found.groups[each.same]
            term = values[operand].dims[dim]
        fresh = each is not None and (each.same is None or bool(there & set(flat(term))))
        if each is not None and fresh:
            formula = each.formula.format(*names) if each.same is None else names[each.same]
            name = free(f"{_steps(node.value)[-1]}_{at + 1}", {*names, *function.operands})
            made.append((name, formula))
            term = (Atom(node.shape[at], {name: -1}),)
            result.append(name)
        else:
            result.append("1" if each is None or each.same is None else names[each.same])
        there |= set(flat(term))
        dims.append(term)
    written = tuple(tuple(_dim(found, names, at, dim, values) for dim in range(len(value.dims)))
                    for at, value in enumerate(values))  # fmt: skip
    kinds = tuple("" if kind == "run" else kind or "" for kind in map(_kind, (*node.args, node)))
    operation = Operation(_name(node.value), function, kinds, written, tuple(result), tuple(made),
                          f"`{node.path or 'the module'}`, {node.place}")  # fmt: skip
    operation = b.shared.operations.add(operation)
    settings = {name: Const(value, name) for name, value in function.settings.items()}
    value = b.add(dims, Expr(operation.name, list(values), dict(settings)), kinds[-1], node)
    own = {name for name, _ in made}
    value.made = frozenset(at for at, name in enumerate(result) if name in own)
    return value


def _dim(found: Sizes, names: list[str], at: int, dim: int, values: list[Value]) -> str:
    number = next((number for number, group in enumerate(found.groups) if (at, dim) in group), None)
    return str(size(values[at].dims[dim])) if number is None else names[number]


def _steps(piece: OpaquePiece) -> list[str]:
    return [node.op.removeprefix("aten.").strip("_") for node in said(piece) if node.op != "item"]


def _shown(piece: OpaquePiece) -> str:
    return " and ".join(f"`aten.{name}`" for name in dict.fromkeys(_steps(piece)))


def _name(piece: OpaquePiece) -> str:
    """`torch_` and its steps; the number of the result where there are several."""
    names = list(dict.fromkeys(_steps(piece)))
    names = names if len(names) <= _NAMED else [names[0], "to", names[-1]]
    last = piece.steps[-1]
    return "_".join(["torch", *names, *([str(last.args[1])] if last.op == "item" else [])])


WORDS[OPAQUE] = opaque
