"""From an expression to its value: a static value, a tensor of the graph, a layer; UNKNOWN after a
mistake.

Calls are left to `calls`, arithmetic on numbers to `statics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardlang.check.constants import combine, negate, truth, whole
from shardlang.check.context import Frame
from shardlang.check.model.arguments import Argument
from shardlang.check.model.calls import apply_arguments, call, invoke, unknown_callee
from shardlang.check.model.operators import infer, is_operator
from shardlang.check.model.types import unknown_yet
from shardlang.check.values import (
    UNKNOWN,
    Every,
    Figure,
    FunctionDecl,
    Instance,
    LayerArray,
    OperatorDecl,
    Tensor,
    describe,
)
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import SYMBOLS
from shardlang.ops.families.extents import STACK
from shardlang.ops.families.lookups import PICK
from shardlang.ops.families.shapes import SLICE
from shardlang.ops.torch_words import torch_help
from shardlang.paths.patterns import SingleLayers
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import TensorType


def evaluate(node: ast.Expr, frame: Frame) -> Any:
    """The value of `node` in `frame`; each mistake is reported once and gives UNKNOWN."""
    match node:
        case ast.Name():
            return name(node, frame)
        case ast.Binary():
            return _binary(node, frame)
        case ast.Call():
            return call(node, frame)
        case ast.Pipe():
            return _pipe(node, frame)
        case ast.Number() | ast.String() | ast.Bool():
            return node.value
        case ast.Attribute():
            return _attribute(node, frame)
        case ast.Index():
            return _index(node, frame)
        case ast.Pick():
            return _pick(node, frame)
        case ast.Unary():
            return _unary(node, frame)
        case ast.Conditional():
            return _conditional(node, frame)
        case ast.Tuple():
            items = tuple(evaluate(item, frame) for item in node.items)
            return UNKNOWN if any(item is UNKNOWN for item in items) else items
        case ast.Range():
            help = "write it in `slice(x, d = 0..4)`"
            return frame.wrong("SH214", "a range is no value", node.span, "here", help=help)


def name(node: ast.Name, frame: Frame) -> Any:
    """The meaning of a name here, or a report with the nearest name."""
    value = frame.find(node.text)
    if isinstance(value, Figure):
        type = TensorType(frame.context.dtype, ())
        return Tensor(frame.context.build.figure(value.name, type, node.span), type, value.name)
    if value is not None:
        return value
    if is_operator(node.text):
        help = f"call it: `{node.text}(x)`"
        return frame.wrong("SH214", f"`{node.text}` is an operator", node.span, "not a value", help=help)
    gone = frame.instance.missing.get(node.text) if frame.instance else None
    if gone is not None:
        return frame.wrong(
            "SH205", f"`{node.text}` is not there, because its condition is false", node.span, "used here",
            labels=[(gone, "declared under an `if`")], help="use it under the same condition",
        )  # fmt: skip
    if not frame.first_unknown(node.text):
        return UNKNOWN
    if (later := frame.declared_below(node.text)) is not None:
        return unknown_yet(node, later, "SH200", "name", frame)

    def nearest() -> str:
        return offer(node.text, frame.visible(), torch_help(node.text) or _declare(node.text, frame))

    return frame.wrong("SH200", f"there is no `{node.text}` here", node.span, "unknown name", help=nearest)


def _declare(name: str, frame: Frame) -> str:
    """Help for a name that resembles none. Those of `train` are mostly fields of the data."""
    if name[:1].isupper():
        return f"declare `model {name}`, or import it: `use std.nn: {name}`"
    there = [f"`{known}`" for known, value in frame.names.items() if isinstance(value, Tensor)]
    if frame.prefix == "train" and there:
        return f"the fields of the data, and the values so far, are {', '.join(there)}"
    return f"declare `{name}` first: a name is known from its declaration on"


def _binary(node: ast.Binary, frame: Frame) -> Any:
    op = node.op
    left = evaluate(node.left, frame)
    if op in ("and", "or") and not isinstance(left, Tensor):
        left = truth(left, node.left.span, frame.context.sink)
        if left is UNKNOWN or left == (op == "or"):
            return left
        right = evaluate(node.right, frame)
        return right if _masks(right) else truth(right, node.right.span, frame.context.sink)
    right = evaluate(node.right, frame)
    if isinstance(left, Tensor) or isinstance(right, Tensor) or op == "@":
        if left is UNKNOWN or right is UNKNOWN:
            return UNKNOWN
        values, spans = (left, right), (node.left.span, node.right.span)
        sides = ((node.left, "the left side"), (node.right, "the right side"))
        names = [side.text if isinstance(side, ast.Name) else other for side, other in sides]
        return infer(SYMBOLS[op, 2], values, spans, names=names, span=node.span, frame=frame)
    return combine(node, left, right, frame.context.sink)


def _masks(value: Any) -> bool:
    return isinstance(value, Tensor) and value.type.dtype == "bool"


def _unary(node: ast.Unary, frame: Frame) -> Any:
    value = evaluate(node.operand, frame)
    sink = frame.context.sink
    if node.op == "not" and not isinstance(value, Tensor):
        known = truth(value, node.operand.span, sink)
        return known if known is UNKNOWN else not known
    if isinstance(value, Tensor):
        spans = (node.operand.span,)
        return infer(SYMBOLS[node.op, 1], (value,), spans, names=("the operand",), span=node.span, frame=frame)
    return negate(value, node.operand.span, sink)


def _conditional(node: ast.Conditional, frame: Frame) -> Any:
    condition = truth(evaluate(node.condition, frame), node.condition.span, frame.context.sink)
    if condition is UNKNOWN:
        return UNKNOWN
    return evaluate(node.then if condition else node.otherwise, frame)


def _attribute(node: ast.Attribute, frame: Frame) -> Any:
    return _part(evaluate(node.value, frame), node, frame)


def _part(owner: Any, node: ast.Attribute, frame: Frame) -> Any:
    """The part of a layer, or of each: values of all layers are one, with a dim before its own."""
    if isinstance(owner, Every):
        return _joined(owner, lambda layer: _part(layer, node, frame), node, frame)
    if owner is UNKNOWN:
        return UNKNOWN
    if not isinstance(owner, Instance):
        fact, part = f"`{node.value.span.text}` is {describe(owner)} and has no parts", node.name.text
        help = f"write `{part}(x, ..)`: operators are called by name" if is_operator(part) else torch_help(part)
        return frame.wrong("SH214", fact, node.name.span, "not there", help=help if isinstance(owner, Tensor) else "")
    return _member(owner, node.name, frame)


def _member(owner: Instance, part: ast.Name, frame: Frame) -> Any:
    """`layer.weight`, `layer.inner`, or a value of the layer's last call."""
    value = owner.results.get(part.text)
    if value is None:
        value = owner.names.get(part.text)
    told = (id(owner.decl.node), part.text) in frame.context.unknown
    if value is UNKNOWN or (value is None and (told or owner.forward is None)):
        return UNKNOWN
    if value is None or not isinstance(value, (Tensor, Instance, LayerArray)):
        called = "" if owner.calls else " (it has not been called here)"
        fact = f"`{owner.path or owner.decl.node.name.text}` has no `{part.text}`{called}"
        return frame.wrong(
            "SH200", fact, part.span, "unknown name", help=lambda: offer(part.text, [*owner.names, *owner.results])
        )
    for nodes in (owner.nodes, owner.result_nodes):
        if part.text in nodes:
            frame.context.used.add(id(nodes[part.text]))
    if not isinstance(value, Tensor):
        return value
    return Tensor(value.id, frame.context.dims.outward_type(value.type, frame.steps_to(owner)), part.text)


def _joined(every: Every, part: Callable[[Any], Any], node: ast.Expr, frame: Frame) -> Any:
    """That of every layer of `blocks[*]`: layers again, or their values along a dim `blocks`."""
    parts: list[Any] = []
    for layer in every.layers:
        parts.append(part(layer))
        if parts[-1] is UNKNOWN:  # further layers lack it for the same reason
            return UNKNOWN
    if not isinstance(parts[0], Tensor):
        return Every(tuple(parts), every.name)
    names = [node.span.text.replace("[*]", f"[{at}]") for at in range(len(parts))]
    over = frame.context.dims.fresh(every.name, len(parts))
    spans = [node.span] * len(parts)
    return infer(STACK, parts, spans, names=names, static={"over": over}, span=node.span, frame=frame)


def _index(node: ast.Index, frame: Frame) -> Any:
    owner = evaluate(node.value, frame)
    index = None
    if node.index is not None:
        index = whole(evaluate(node.index, frame), node.index.span, frame.context.sink, "an index")
    return UNKNOWN if owner is UNKNOWN or index is UNKNOWN else _layer(owner, index, node, frame)


def _layer(owner: Any, index: int | None, node: ast.Index, frame: Frame) -> Any:
    """A layer of an array by its index; None: every one."""
    if isinstance(owner, Every):
        return _joined(owner, lambda layer: _layer(layer, index, node, frame), node, frame)
    if not isinstance(owner, LayerArray):
        help = "name the dim: `x[d = 0]`, or `x[d = 0..4]` for a part" if isinstance(owner, Tensor) else ""
        fact = f"`{node.value.span.text}` is {describe(owner)} and has no index"
        return frame.wrong("SH214", fact, node.span, "here", help=help)
    places = owner.places()
    layers = places[-1].stop
    if index is None and layers > len(owner):
        raise SingleLayers
    if index is None:
        return Every(tuple(owner), owner.path.rpartition(".")[2])
    if 0 <= index < layers:
        place = next(at for at, numbers in enumerate(places) if index in numbers)
        if len(places[place]) > 1:
            raise SingleLayers({owner.path: frozenset((index, index + 1))})
        return owner[place]
    fact = f"`{owner.path}` has {layers} layer{'s' * (layers != 1)}, and this asks for {index}"
    return frame.wrong("SH215", fact, (node.index or node).span, f"0 to {layers - 1} exist")


def _pick(node: ast.Pick, frame: Frame) -> Any:
    """`x[seq = 0, d = 0..4]`: of each dim an index, which removes it, or a range."""
    value, name = evaluate(node.value, frame), node.value.span.text
    if value is not UNKNOWN and not isinstance(value, Tensor):
        return frame.wrong("SH214", f"`{name}` is {describe(value)} and has no dims", node.span, "here")
    ranges = [place for place in node.places if isinstance(place.value, ast.Range)]
    value = invoke(SLICE, (value, node.value.span), node.span, frame, ranges) if ranges else value
    for place in node.places:
        if value is not UNKNOWN and place not in ranges:
            value = invoke(PICK, (value, node.value.span), node.span, frame, [place])
    return value


def _pipe(node: ast.Pipe, frame: Frame) -> Any:
    # A long chain of pipes leans to the left: walk it without recursion.
    steps: list[ast.Expr] = []
    start: ast.Expr = node
    while isinstance(start, ast.Pipe):
        steps.append(start.right)
        start = start.left
    value, span = evaluate(start, frame), start.span
    for step in reversed(steps):
        if isinstance(step, ast.Call):
            value = call(step, frame, (value, span))
        else:
            value = _pass_on(step, (value, span), start.span.to(step.span), frame)
        span = start.span.to(step.span)
    return value


def _pass_on(step: ast.Expr, piped: tuple[Any, Span], span: Span, frame: Frame) -> Any:
    """`x |> relu`, `x |> blocks[2]`: the right side is no call."""
    target = frame.find(step.text) if isinstance(step, ast.Name) else evaluate(step, frame)
    if isinstance(step, ast.Name) and not isinstance(target, (Instance, LayerArray, FunctionDecl, OperatorDecl)):
        if is_operator(step.text):
            return invoke(step.text, piped, span, frame)
        if target is None:
            return unknown_callee(step, frame)
    return apply_arguments(target, [Argument(piped[1], None, piped[0])], (), step, span, frame)
