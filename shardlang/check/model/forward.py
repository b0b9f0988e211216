"""Calls of layers and functions: a body evaluated in a frame of its own, its statements named, its
result handed out.

Types cross the border in `boundary`. Declaring layers is left to `instantiate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.check.context import DEPTH, Frame
from shardlang.check.model.arguments import Argument, by_name, missing_argument
from shardlang.check.model.formals import bind_static
from shardlang.check.model.signatures import bind_tensor, check_result
from shardlang.check.values import UNKNOWN, CallResults, FunctionDecl, Instance, Tensor, unfit
from shardlang.sources.source import Span
from shardlang.syntax import ast

Given = tuple[Any, Span]
UNUSED = "_"  # among several names: that for a value which nothing uses
CALLS_LIMIT = 15_000  # about a second of checking


def call_layer(
    layer: Instance, values: Sequence[Given], keywords: Sequence[ast.Keyword], span: Span, frame: Frame
) -> Any:
    """The result of a layer's forward, in the caller's dims."""
    forward = layer.forward
    if forward is None:  # reported where the model is declared
        return UNKNOWN
    context = frame.context
    context.uncalled.pop(id(layer.decl.node), None)
    inner = Frame(context, layer.decl.file, layer.path, layer.calls, layer, steps=frame.steps_to(layer))
    layer.calls += 1
    name = layer.path or layer.decl.node.name.text
    told, tired = len(context.sink.found), _too_many_calls(span, frame)
    if tired or not layer.sound or not _bind(forward.formals, values, keywords, name, span, frame, inner):
        if len(context.sink.found) > told:  # where a call does not fit, the body may be as wrong
            context.run.add(id(layer.decl.node))
        _skip(forward.body, inner)
        layer.results = {n.text: UNKNOWN for s in forward.body if isinstance(s, ast.Assign) for n in s.names}
        return UNKNOWN
    context.run.add(id(layer.decl.node))
    given: dict[int, str] = {}
    for name, value in inner.names.items():
        if isinstance(value, Tensor):
            given.setdefault(value.id, name)
    made = context.build.calling(layer.path, layer.decl.node.name, given)
    with context.sink.called(layer.span, span), made:
        result = _run(forward.body, inner, inner.leaf())
        layer.results, layer.result_nodes = inner.names, inner.nodes
        return _hand_out(result, forward.results, forward.span, inner)


def call_function(
    function: FunctionDecl, values: Sequence[Given], keywords: Sequence[ast.Keyword], span: Span, frame: Frame
) -> Any:
    """The result of a function; its operators belong to the statement that calls it."""
    node, context = function.node, frame.context
    if _endless(function, span, frame):
        return UNKNOWN
    inner = Frame(context, function.file, frame.prefix, frame.call, ops=frame.ops, inline=True)
    if not _bind(node.formals, values, keywords, node.name.text, span, frame, inner):
        return UNKNOWN
    context.stack.append(function)
    context.run.add(id(node))
    with context.sink.called(None, span):
        result = _run(node.body, inner, "")
    context.stack.pop()
    return _hand_out(result, node.results, node.span, inner)


def _endless(function: FunctionDecl, span: Span, frame: Frame) -> bool:
    """Whether a function calls itself, or functions each other too deep; reported."""
    stack, name, sink = frame.context.stack, function.node.name.text, frame.context.sink
    if function in stack:
        help = "a function has no way to stop: write the steps out"
        sink.report("SH206", f"function `{name}` calls itself", span, "this call", help=help)
        return True
    if len(stack) >= frame.context.too_deep.get(function, DEPTH + 1):
        return True
    if len(stack) >= DEPTH:
        sink.report("SH217", f"functions call each other more than {DEPTH} deep", span, "and deeper from here")
        # From where they are now all of these come here again, which tells nothing more.
        frame.context.too_deep.update({called: depth for depth, called in enumerate([*stack, function])})
        return True
    return _too_many_calls(span, frame)


def _too_many_calls(span: Span, frame: Frame) -> bool:
    """Whether there are too many calls of layers and functions, reported once: they may double."""
    context = frame.context
    context.calls += 1
    if context.calls == CALLS_LIMIT:
        context.sink.report(
            "SH217", f"the program calls layers and functions more than {CALLS_LIMIT:,} times", span,
            "and more from here", help="lower the counts of its layers, or call what it calls twice once",
        )  # fmt: skip
    # Of a program with too many layers or operators, which is reported, no further call tells
    # anything.
    return context.calls >= CALLS_LIMIT or context.full or context.build.full


def _bind(
    formals: Sequence[ast.Formal], values: Sequence[Given], keywords: Sequence[ast.Keyword], callee: str, span: Span,
    frame: Frame, inner: Frame,
) -> bool:  # fmt: skip
    """Bind the formals of a call. False if it cannot be made (reported, or unknown values)."""
    sink = frame.context.sink
    if len(values) > len(formals):
        extra = values[len(formals)][1]
        fact = f"`{callee}` takes {len(formals)} argument{'s' * (len(formals) != 1)}, and this is one more"
        sink.report("SH218", fact, extra, "one too many")
        return False
    names = [formal.name.text for formal in formals]
    given = {name: Argument(at, None, value) for name, (value, at) in zip(names, values, strict=False)}
    if not by_name(callee, keywords, names, given, frame):
        return False
    found = {name: (argument.evaluate(frame), argument.span) for name, argument in given.items()}
    return all([_bind_one(f, found.get(f.name.text), callee, span, frame, inner) for f in formals])


def _bind_one(formal: ast.Formal, given: Given | None, callee: str, span: Span, frame: Frame, inner: Frame) -> bool:
    name = formal.name.text
    if given is None and formal.default is not None:
        given = (inner.evaluate(formal.default), formal.default.span)
    if given is None:
        missing_argument(callee, name, span, frame)
        return False
    value, at = given
    if not isinstance(formal.kind, ast.TensorType):
        static = bind_static(formal, value, at, inner)
        inner.bind(name, static, formal.name.span, formal)
        return static is not UNKNOWN
    if value is UNKNOWN:
        return False
    if not isinstance(value, Tensor):
        unfit(f"`{name}` of `{callee}` must be a tensor", value, at, frame.context.sink)
        return False
    tensor = bind_tensor(formal, value, at, callee, inner)
    if tensor is None:
        return False
    frame.context.candidates.setdefault(id(formal), ("argument", name, formal.name.span))
    return inner.bind(name, tensor, formal.name.span, formal)


def _run(body: Sequence[ast.Assign | ast.Return], frame: Frame, leaf: str) -> tuple[Any, ...]:
    """Evaluate the statements; gives what `return` returns, nothing where there is none."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            _assign(statement, frame)
            continue
        result = _evaluate(statement.values, statement, frame)
        if not frame.inline:  # further results are steps on the way, and called as the caller calls them
            frame.context.build.close(frame.ops, _id(result[0]), frame.prefix, "return", leaf, frame.call)
        _check_last(statement, body, frame)
        return result
    return ()


def _assign(statement: ast.Assign, frame: Frame) -> None:
    (value,) = _evaluate((statement.value,), statement, frame)
    values = spread(value, statement, frame)
    (name, first), *others = named(statement, values)
    if not frame.inline and (frame.ops or value is UNKNOWN or first >= 0):
        frame.context.build.close(frame.ops, first, frame.prefix, name, name, frame.call, others)
    bind_each(statement, values, frame)


def named(statement: ast.Assign | ast.Setting, values: Sequence[Any]) -> list[tuple[str, int]]:
    """The names of a statement with the numbers of their values, at least one."""
    pairs = [(name.text, _id(value)) for name, value in zip(statement.names, values, strict=True)]
    return [pair for pair in pairs if pair[0] != UNUSED] or pairs[:1]


def bind_each(statement: ast.Assign | ast.Setting, values: Sequence[Any], frame: Frame) -> None:
    """Binds the names of a statement; something has to use each but `_` among others."""
    for name, value in zip(statement.names, values, strict=True):
        if name.text != UNUSED or not statement.others:
            frame.context.candidates.setdefault(id(name), ("value", name.text, name.span))
            frame.bind(name.text, value, name.span, name)


def _evaluate(nodes: Sequence[ast.Expr], statement: ast.Assign | ast.Return, frame: Frame) -> tuple[Any, ...]:
    """The values of a statement's expressions; their operators are the statement's."""
    if not frame.inline:
        frame.ops, frame.context.build.statement = [], frame.context.sink.placed(statement.span)
    return tuple([frame.evaluate(node) for node in nodes])


def _id(value: Any) -> int:
    """The number of a tensor's value; -1 of anything else."""
    return value.id if isinstance(value, Tensor) else -1


def _check_last(end: ast.Return, body: Sequence[ast.Assign | ast.Return], frame: Frame) -> None:
    """Nothing stands after `return`."""
    if body[-1] is not end:
        after = body[body.index(end) + 1]
        frame.context.sink.report(
            "SH207", "a body ends with its `return`, and this stands after it", after.span, "never reached",
            labels=[(end.span, "the end")], help="move it ahead of `return`, or delete it",
        )  # fmt: skip


def _skip(body: Sequence[ast.Assign | ast.Return], frame: Frame) -> None:
    """A body that is not run still declares its names, so that selectors find them."""
    for statement in body:
        for name in statement.names if isinstance(statement, ast.Assign) else ():
            frame.context.build.close([], -1, frame.prefix, name.text, "", frame.call)


def _hand_out(results: tuple[Any, ...], written: Sequence[ast.TensorType], span: Span, inner: Frame) -> Any:
    """The results in the caller's dims, held against the declared types."""
    if not results:
        return inner.wrong("SH207", "a body returns nothing", span, "no `return`", help="end it with `return VALUE`")
    if written and len(written) != len(results):
        fact = f"the body returns {_counted(len(results), 'value')}, and declares {_counted(len(written), 'type')}"
        help = "declare a type for each value, with commas"
        return inner.wrong("SH225", fact, written[0].span, "declared here", help=help)
    handed = tuple([_one_result(r, written[at] if written else None, span, inner) for at, r in enumerate(results)])
    if any([result is UNKNOWN for result in handed]):
        return UNKNOWN
    return handed[0] if len(handed) == 1 else CallResults(handed)


def _one_result(result: Any, written: ast.TensorType | None, span: Span, inner: Frame) -> Any:
    context = inner.context
    if not isinstance(result, Tensor):
        return result if result is UNKNOWN else unfit("a body must return a tensor", result, span, context.sink)
    if written is not None and not check_result(result, written, inner):
        return UNKNOWN
    return Tensor(result.id, context.dims.outward_type(result.type, inner.steps), result.name)


def spread(value: Any, statement: ast.Assign | ast.Setting, frame: Frame) -> tuple[Any, ...]:
    """A value for each name of `a, b = value`; UNKNOWN for each after a report."""
    names = statement.names
    values = value.values if isinstance(value, CallResults) else (value,)
    if value is UNKNOWN or len(values) != len(names):
        if value is not UNKNOWN:
            _report_count(len(values), statement, frame)
        return (UNKNOWN,) * len(names)
    if statement.others and all(name.text == UNUSED for name in names):
        frame.wrong("SH225", "no value of this gets a name", _place(names), "none", help="delete the line")
    return values


def _report_count(count: int, statement: ast.Assign | ast.Setting, frame: Frame) -> None:
    text, names = statement.value.span.text, statement.names
    fact = f"{f'`{text}`' if len(text) < 40 else 'this'} gives {_counted(count, 'value')}"
    wanted = ", ".join("abcdefgh"[:count]) if count <= 8 else "a, b, .."
    help = f"write `{wanted} = ...`" + (f"; `{UNUSED}` stands for one that nothing uses" if count > 1 else "")
    frame.wrong("SH225", fact, _place(names), _counted(len(names), "name"), help=help)


def _place(names: Sequence[ast.Name]) -> Span:
    return names[0].span.to(names[-1].span)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
