"""Calls in forward bodies and in `train`: which kind of thing is called, and with what.

Operators go to `operators`, layers and functions to `forward`. Models are called only where a layer
is declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.check.constants import applied
from shardlang.check.context import Frame
from shardlang.check.declared import TEXTS, WORDS
from shardlang.check.files.arrows import report_unread
from shardlang.check.model.arguments import Argument, bind_operator
from shardlang.check.model.copies import ready
from shardlang.check.model.forward import call_function, call_layer
from shardlang.check.model.operators import infer, is_operator, operator_names, too_many_operators
from shardlang.check.model.scan import SCAN, scan
from shardlang.check.model.words import numbered_words
from shardlang.check.values import (
    UNKNOWN,
    DimValue,
    Every,
    FunctionDecl,
    Instance,
    LayerArray,
    ModelDecl,
    OperatorDecl,
    Tensor,
    describe,
)
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import REGISTRY, Operator
from shardlang.ops.torch_words import torch_help
from shardlang.sources.source import Span
from shardlang.syntax import ast

_CALLABLE = (Instance, LayerArray, FunctionDecl, ModelDecl)


def call(node: ast.Call, frame: Frame, piped: tuple[Any, Span] | None = None) -> Any:
    """The value of a call; `piped` is what stands left of `|>`, its first argument."""
    span = piped[1].to(node.span) if piped else node.span
    positional = [Argument(piped[1], None, piped[0])] if piped else []
    positional.extend(Argument(a.span, a) for a in node.args)
    if node.fields:
        help = "fields belong in `data = random(x: [batch, d])`"
        fact = "a field is declared outside of a data source"
        return frame.wrong("SH214", fact, node.fields[0].span, "here", help=help)
    if isinstance(node.callee, ast.Name):
        return _call_name(node.callee, positional, node, span, frame)
    return apply_arguments(frame.evaluate(node.callee), positional, node.keywords, node.callee, span, frame)


def _call_name(callee: ast.Name, positional: list[Argument], node: ast.Call, span: Span, frame: Frame) -> Any:
    target = frame.find(callee.text)
    if isinstance(target, (OperatorDecl, *_CALLABLE)):
        report_unread(node, frame.context.sink)
    if isinstance(target, OperatorDecl):
        return _operator(target.operator, positional, node.keywords, None, span, frame)
    if target is UNKNOWN or isinstance(target, _CALLABLE):
        return apply_arguments(target, positional, node.keywords, callee, span, frame)
    if is_operator(callee.text):
        return _operator(REGISTRY[callee.text], positional, node.keywords, node.arrow, span, frame)
    if callee.text == SCAN and target is None:
        return scan(positional, node.keywords, span, frame)
    if callee.text in (*WORDS, *TEXTS) and target is None:
        return numbered_words(callee.text, positional, node, frame)
    if target is not None:
        return apply_arguments(target, positional, node.keywords, callee, span, frame)
    return unknown_callee(callee, frame)


def unknown_callee(callee: ast.Name, frame: Frame) -> Any:
    """UNKNOWN, after reporting a name that nothing callable has."""
    if not frame.first_unknown(callee.text, called=True):
        return UNKNOWN

    def nearest() -> str:
        known = [*operator_names(), SCAN, *WORDS, *TEXTS, *frame.visible()]
        return torch_help(callee.text) or offer(callee.text, known)

    return frame.wrong("SH200", f"there is no `{callee.text}` here", callee.span, "unknown name", help=nearest)


def invoke(name: str, piped: tuple[Any, Span], span: Span, frame: Frame, keywords: Sequence[ast.Keyword] = ()) -> Any:
    """`x |> relu`: an operator with one argument that is there already."""
    return _operator(REGISTRY[name], [Argument(piped[1], None, piped[0])], keywords, None, span, frame)


def _operator(
    operator: Operator, positional: Sequence[Argument], keywords: Sequence[ast.Keyword],
    arrow: ast.TensorType | None, span: Span, frame: Frame,
) -> Any:  # fmt: skip
    bound = bind_operator(operator, positional, keywords, arrow, span, frame)
    if not bound.sound:
        return UNKNOWN
    if operator.of_number is not None:
        number = applied(operator.of_number, bound.values[0], span, frame.context.sink)
        if number is not None:
            return number
    return infer(
        operator, bound.values, bound.spans, names=bound.names, static=bound.static, arrow=bound.arrow, span=span,
        frame=frame,
    )  # fmt: skip


def apply_arguments(
    target: Any, positional: Sequence[Argument], keywords: Sequence[ast.Keyword], callee: ast.Expr, span: Span,
    frame: Frame,
) -> Any:  # fmt: skip
    """Call a layer, an array of layers (each in turn), a function or an operator of a file."""
    if isinstance(target, OperatorDecl):
        return _operator(target.operator, positional, keywords, None, span, frame)
    if target is UNKNOWN:
        for argument in positional:  # the names in the arguments count as used
            argument.evaluate(frame)
        return UNKNOWN
    values = [(a.evaluate(frame), a.span) for a in positional]
    match target:
        case Instance():
            return call_layer(target, values, keywords, span, frame)
        case FunctionDecl():
            return call_function(target, values, keywords, span, frame)
        case LayerArray():
            return _each(target, values, keywords, span, frame)
    name, what = callee.span.text, describe(target)
    fact, help = f"`{name}` is {what} and cannot be called", ""
    if isinstance(target, ModelDecl):
        name = target.node.name.text
        fact = f"`{name}` is a model, and this calls it like a layer"
        help = f"declare a layer of the model, `layer name = {name}(...)`, and call that"
    elif isinstance(target, (Tensor, DimValue)):
        help = "write `*` to multiply"
    elif isinstance(target, Every):
        help = f"write `x |> {name.removesuffix('[*]')}`, which calls one layer after the other"
    return frame.wrong("SH214", fact, callee.span, what, help=help)


def _each(
    array: LayerArray, values: list[tuple[Any, Span]], keywords: Sequence[ast.Keyword], span: Span, frame: Frame
) -> Any:
    if not values:
        fact = f"`{array.path}` needs a value to pass through its layers"
        return frame.wrong("SH221", fact, span, "none here")
    build = frame.context.build
    before, first, copies = len(build.ops), None, array.copies
    for at in range(len(array)):
        value = first.copied(copies[at - 1], values[0][0]) if first is not None else None
        if value is None:
            asked = ready(copies, [value for value, _ in values], frame.context) if not at and not keywords else None
            value = call_layer(array[at], values, keywords, span, frame)
            first = asked.made(value) if asked is not None else first
        if value is UNKNOWN or (
            at == 0 and too_many_operators(before + (len(build.ops) - before) * len(array), span, frame)
        ):
            return UNKNOWN
        values = [(value, span), *values[1:]]
    return values[0][0]
