"""A call of an LSTM or a GRU of torch -> layers of `std.recurrent`, whose gates are parts of
torch's matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardlang.graph.graph import Init
from shardlang.importing.bodies.body import Body, Const, Expr, Layer, Own, Value
from shardlang.importing.bodies.dims import Atom, Term, fresh
from shardlang.importing.bodies.library import RECURRENT
from shardlang.importing.bodies.maker import Maker
from shardlang.importing.bodies.words import word
from shardlang.importing.steps.calls import Call
from shardlang.importing.steps.nodes import Node, Scope
from shardlang.importing.steps.problems import Refused
from shardlang.importing.steps.starts import FILE, is_uniform
from shardlang.importing.steps.unfold import is_number

# Of each word the layer that it is, and its gates in the order of torch.
_KINDS = {"lstm": ("LSTM", ("in", "forget", "cell", "out"), 2), "gru": ("GRU", ("reset", "update", "new"), 1)}


@word(*_KINDS)
def recurrent(b: Maker, node: Node, x: Node, start: Any, weights: Sequence[Node], biases: bool, count: int,
              dropout: float, train: bool, both: bool, batch_first: bool) -> Value:  # fmt: skip
    """All steps of all its layers; `item` has what the last of them gives."""
    odd = "in both directions" if both else "without biases" if not biases else "without a batch"
    if both or not biases or len(x.shape) != 3:
        raise Refused(node, f"`{node.op}` {odd}")
    value, states = b.use(x), list(start) if isinstance(start, list | tuple) else [start]
    if not all(is_number(each) for each in states):
        raise Refused(node, f"`{node.op}` that starts from states that are given")
    if not batch_first:
        value = b.use_view(b.view(value, [value.dims[1], value.dims[0], value.dims[2]]))
    lasts: list[tuple[Value, ...]] = []
    for level in range(count):
        if level and dropout and train:
            value = b.add(value.dims, Expr("dropout", [value], {"p": Const(dropout, "p")}))
        results = _level(b, node, value, weights[4 * level : 4 * level + 4], level if count > 1 else None, states)
        value, lasts = results[0], [*lasts, results[1:]]
    value.name = value.name or "output"
    b.recurred[node] = (value, lasts, batch_first)
    return value


def result(b: Maker, node: Node, source: Node, number: int) -> Value:
    """The outputs of all steps, or the states of all layers behind the last step."""
    if source not in b.recurred:
        raise Refused(node, f"result {number + 1} of `{source.op}`")
    whole = b.use(source)
    value, lasts, batch_first = b.recurred[source]
    if number == 0:
        return whole if batch_first else b.view(value, [value.dims[1], value.dims[0], value.dims[2]])
    states = [each[number - 1] for each in lasts]
    if len(states) == 1:
        return b.view(states[0], [(), *states[0].dims], node)
    for other in states[1:]:
        b.unify(node, states[0].dims[1], other.dims[1])
    new: Term = (Atom(len(states), {"layers": 0}, declared=True),)
    return b.add([new, *states[0].dims], Expr("stack", list(states), {"over": new}), node=node)


def _level(b: Maker, node: Node, x: Value, weights: Sequence[Node], level: int | None, states: Sequence[Node],
           ) -> tuple[Value, ...]:  # fmt: skip
    """The call of one layer: outputs, and the states behind the last step."""
    kind, gates, _ = _KINDS[node.op.removeprefix("aten.")]
    hidden = fresh(weights[1].shape[1])
    inner = _body(b, node, kind, gates, weights)
    home = weights[0].name.rpartition(".")[0]
    path = home if level is None else f"{home}_{level}" if home else f"layer_{level}"
    still = next((each.stored for each in weights if not each.value.requires_grad), None)
    if still is not None:
        fact = f"`{still.name}` is not trained by the module, and is by a program"
        b.accept("SH604", node, fact, f"`freeze at {path}` in `train` will keep it as it is: ")
    terms = dict(zip(inner.formals(), (x.dims[2], hidden), strict=True))
    layer = Layer(path, inner, terms)
    layer.others.append(inner)
    b.body.layers.append(layer)
    state = [x.dims[0], hidden]
    zeros = b.add(state, Expr("expand", [Const(0.0, "start")], into=state))
    zeros.name = "zeros"
    expr = Expr("", [x, *[zeros] * len(states)], layer=layer)
    values = [b.add([*x.dims[:2], hidden], expr), *(b.add(state, expr) for _ in states)]
    for value, name in zip(values, ("output", "last", "memory"), strict=False):
        value.results, value.name = tuple(values), name
    return tuple(values)


def _body(b: Maker, node: Node, kind: str, gates: Sequence[str], weights: Sequence[Node]) -> Body:
    """The inside of `std.recurrent`'s layer: its parameters, under their names there."""
    scope = Scope(weights[0].name.rpartition(".")[0], "", f"std.recurrent.{kind}")
    body = Body(Call(scope), library=kind)
    wide: Term = (Atom(weights[0].shape[1]),)
    hidden: Term = (Atom(weights[1].shape[1]),)
    batch, seq = (Atom(1),), (Atom(1),)
    body.inputs = [Value([batch, seq, wide]), *(Value([batch, hidden]) for _ in range(_KINDS[kind.lower()][2]))]
    start = _start(b, node, weights)
    for number, gate in enumerate(gates, 1):
        for matrix, bias, name, read in ((0, 2, f"{gate}_x", wide), (1, 3, f"step.{gate}_h", hidden)):
            for at, last, dims in ((matrix, "weight", [hidden, read]), (bias, "bias", [hidden])):
                stored = weights[at].stored
                assert stored is not None
                part = replace(stored, part=(number, len(gates)))
                body.own.append(Own(f"{name}.{last}", Value(list(dims)), part, start))
    body.results = [body.add([batch, seq, hidden], Expr(kind.lower(), [body.inputs[0]]))]
    body.form = f"{RECURRENT}.{kind}"
    return body


def _start(b: Maker, node: Node, weights: Sequence[Node]) -> Init:
    """How its parameters start: as the library draws them, or from a file where the module starts
    otherwise and there is one; else this is told."""
    limit, count = weights[1].shape[1] ** -0.5, weights[1].shape[0] // weights[1].shape[1]
    parts = [(each.stored, part) for each in weights for part in (each.value, *each.value.chunk(count))]
    other = next((stored for stored, part in parts if not is_uniform(part, limit)), None)
    if other is not None and b.shared.given:
        return Init("given")
    if other is not None:
        what = f"`{other.name}` starts otherwise than `std.recurrent` starts it, uniform to {limit:.3g}"
        b.accept("SH608", node, what, f"{FILE}; or ")
    return Init("uniform")
