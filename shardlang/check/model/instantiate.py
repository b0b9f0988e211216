"""From the declaration of a layer to an instance of its model: formals given, members declared, parameters in the
graph. Calling a layer is left to `forward`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from shardlang.check.constants import plain, size, truth, whole
from shardlang.check.context import DEPTH, Context, Frame
from shardlang.check.files.removed_members import declare_removed
from shardlang.check.graph.drafts import ValueDraft
from shardlang.check.model.arguments import Argument, missing_argument, unknown_argument
from shardlang.check.model.copies import copied, mark
from shardlang.check.model.formals import bind_static
from shardlang.check.model.initial import initial
from shardlang.check.model.types import too_many_factors, written_type
from shardlang.check.values import UNKNOWN, DimValue, Instance, LayerArray, ModelDecl, Tensor, describe
from shardlang.graph.graph import Kind
from shardlang.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim

LAYERS_LIMIT = 20_000
# Stands among the arguments of a call that has a mistake already: what it lacks is no further one.
SLIP = "->"


def declare_model(
    decl: ModelDecl, arguments: Mapping[str, tuple[Any, Span]] | None, path: str, span: Span, frame: Frame
) -> Instance | None:
    """A layer of the model. `arguments`: by formal, in the caller's dims; None checks it generically, sizes unknown."""
    context = frame.context
    name = decl.node.name.text
    if _too_much(decl, span, context):
        return None
    if id(decl.node) not in context.instantiated:
        context.uncalled[id(decl.node)] = decl.node.span
    context.instantiated.add(id(decl.node))
    instance = Instance(decl, path, context.sink.placed(span), frame.instance)
    inner = Frame(context, decl.file, path, 0, instance)
    context.models.append(decl)
    with context.sink.called(instance.span, None):
        for formal in decl.node.formals:
            value = _formal(formal, arguments, frame, inner, span)
            _bind_formal(formal, value, instance, inner)
        _members(decl.node.members, instance, inner)
    context.models.pop()
    if instance.forward is None and id(decl.node) not in context.headless:
        context.headless.add(id(decl.node))
        context.sink.report(
            "SH207",
            f"model `{name}` has no `forward`",
            decl.node.name.span,
            "declared here",
            help="add `forward(x: [...]) -> [...] { ... }`",
        )
    return instance


def _too_much(decl: ModelDecl, span: Span, context: Context) -> bool:
    """Whether a model contains itself, or the program too many layers; reported."""
    above = context.models
    if decl in above:
        chain = " -> ".join(f"`{d.node.name.text}`" for d in [*above[above.index(decl) :], decl])
        context.sink.report(
            "SH206", f"a model contains itself: {chain}", span, "this layer",
            help="use an array for repeated layers: `layer blocks[4] = Block(d)`",
        )  # fmt: skip
        return True
    if len(above) >= DEPTH:
        context.sink.report(
            "SH217", f"layers stand in one another more than {DEPTH} deep", span, "and deeper from here"
        )
        return True
    context.layers += 1
    return _too_many_layers(context.layers, span, context)


def _too_many_layers(count: int, span: Span, context: Context) -> bool:
    """Whether a program of `count` layers is too large, which is reported once."""
    if count > LAYERS_LIMIT and not context.full:
        context.full = True
        context.sink.report(
            "SH217", f"the program has more than {LAYERS_LIMIT:,} layers", span, "and more from here",
            help="lower the counts of its layers",
        )  # fmt: skip
    return context.full


def _formal(
    formal: ast.Formal, arguments: Mapping[str, tuple[Any, Span]] | None, frame: Frame, inner: Frame, span: Span
) -> Any:
    """The value given to a formal: in the caller's dims where it is a dim."""
    name = formal.name.text
    if isinstance(formal.kind, ast.TensorType):
        frame.context.sink.report(
            "SH208",
            f"`{name}` is a tensor, and a model's arguments are static",
            formal.kind.span,
            "a tensor",
            help="tensors are the arguments of `forward`",
        )
        return UNKNOWN
    if arguments is not None and name in arguments:
        value, at = arguments[name]
        return _given(bind_static(formal, value, at, inner), inner)
    if formal.default is not None:
        value = bind_static(formal, inner.evaluate(formal.default), formal.default.span, inner)
        return DimValue(frame.context.dims.outward(value.term)) if isinstance(value, DimValue) else value
    if arguments is None:
        return DimValue((Dim(name, None, formal.name.span),)) if formal.kind.text == "dim" else UNKNOWN
    if _given(UNKNOWN, inner) is UNKNOWN and SLIP not in arguments:
        missing_argument(inner.instance.decl.node.name.text if inner.instance else name, name, span, frame)
    return UNKNOWN


def _given(value: Any, inner: Frame) -> Any:
    """The value; an instance that lacks one is not sound, and what it computes is unknown."""
    if value is UNKNOWN and inner.instance is not None:
        inner.instance.sound = False
    return value


def _bind_formal(formal: ast.Formal, value: Any, instance: Instance, inner: Frame) -> None:
    """A dim becomes a dim of the model's own, whatever it is outside: so a check holds for all callers."""
    name = formal.name.text
    if isinstance(value, DimValue) and too_many_factors(value.term, formal.name, inner):
        value, instance.sound = UNKNOWN, False
    if isinstance(value, DimValue):
        value = DimValue((inner.context.dims.local(name, value.term, instance.path),))
        inner.context.build.dims[instance.below(name)] = value.term
    if _bind(formal.name, value, instance, formal, inner):
        inner.context.candidates.setdefault(id(formal), ("formal", name, formal.name.span))


def _bind(name: ast.Name, value: Any, instance: Instance, node: object, inner: Frame) -> bool:
    before = instance.spans.get(name.text)
    if before is not None and not _takes_over(name.text, node, instance):
        inner.context.sink.report(
            "SH201",
            f"`{name.text}` is declared twice",
            name.span,
            "again here",
            labels=[(before, "first here")],
            help="give one of them another name",
        )
        return False
    instance.names[name.text] = value
    instance.spans[name.text] = name.span
    instance.nodes[name.text] = node
    return True


def _takes_over(name: str, node: object, instance: Instance) -> bool:
    """A parameter may have the name of a static formal (`bias`): from its declaration on the name is the parameter."""
    return isinstance(node, ast.Tensor) and isinstance(instance.nodes.get(name), ast.Formal)


def _members(members: Sequence[ast.Member], instance: Instance, inner: Frame) -> None:
    for member in members:
        match member:
            case ast.Layer():
                _layer(member, instance, inner)
            case ast.Tensor():
                _tensor(member, instance, inner)
            case ast.DimDecl():
                for entry in member.entries:
                    _dim(entry, instance, inner)
            case ast.If():
                _if(member, instance, inner)
            case ast.Forward():
                _forward(member, instance, inner)


def _dim(entry: ast.DimEntry, instance: Instance, inner: Frame) -> None:
    name = entry.name.text
    expression = inner.context.overrides.get(name, entry.value) if not instance.path else entry.value
    value = inner.evaluate(expression)
    made_of = _made_of(expression.span.text, inner) if isinstance(value, Fraction) else ""
    length = size(value, expression.span, inner.context.sink, f"the size of dim `{name}`", made_of)
    dim = DimValue((Dim(name, length, entry.name.span, home=instance.path),))
    inner.context.build.dims[instance.below(name)] = dim.term
    _bind(entry.name, dim, instance, entry, inner)


def _made_of(expression: str, frame: Frame) -> str:
    """The numbers of the names in an expression: "`d` is 10, `heads` is 4"."""
    names = dict.fromkeys(re.findall(r"[^\W\d]\w*", expression))
    found = {name: plain(frame.find(name)) for name in names}
    return ", ".join(f"`{name}` is {value}" for name, value in found.items() if isinstance(value, int))


def _if(member: ast.If, instance: Instance, inner: Frame) -> None:
    condition = truth(inner.evaluate(member.condition), member.condition.span, inner.context.sink)
    if condition is UNKNOWN:
        # Without values for the formals both sides are checked, as far as they do not declare the same names.
        condition = True
    _members(member.then if condition else member.otherwise, instance, inner)
    declare_removed(member.otherwise if condition else member.then, instance, inner)


def _forward(member: ast.Forward, instance: Instance, inner: Frame) -> None:
    if instance.forward is not None:
        inner.context.sink.report(
            "SH201",
            "`forward` is declared twice",
            member.span,
            "again here",
            labels=[(instance.forward.span, "first here")],
            help="a model has one `forward`",
        )
        return
    instance.forward = member


def _layer(member: ast.Layer, instance: Instance, inner: Frame) -> None:
    """`layer name = Model(...)`, or an array of them."""
    name, context = member.name.text, inner.context
    path = instance.below(name)
    context.build.declare(path)
    if name in instance.spans:
        _bind(member.name, UNKNOWN, instance, member, inner)
        return
    count = 1
    if member.count is not None:
        count = whole(inner.evaluate(member.count), member.count.span, context.sink, f"the count of `{name}`")
        count = 1 if count is UNKNOWN else count
        if count < 1 or count > LAYERS_LIMIT:
            context.sink.report(
                "SH213" if count < 1 else "SH217",
                f"`{name}` cannot have {count:,} layers",
                member.count.span,
                f"{count:,}",
                help=f"a count is from 1 to {LAYERS_LIMIT:,}",
            )
            count = 1
    value = _instances(member, path, count, inner)
    _bind(member.name, value, instance, member, inner)
    context.candidates.setdefault(id(member), ("layer", name, member.name.span))


def _instances(member: ast.Layer, path: str, count: int, inner: Frame) -> Any:
    target, arguments = model_call(member.value, inner)
    if target is None:
        return UNKNOWN
    if member.count is None:
        return declare_model(target, arguments, path, member.value.span, inner) or UNKNOWN
    items: list[Instance] = []
    context, before = inner.context, mark(inner.context)
    for at in range(count):
        context.build.declare(f"{path}[{at}]")
        item = declare_model(target, arguments, f"{path}[{at}]", member.value.span, inner)
        if item is None:
            return UNKNOWN
        items.append(item)
        if at:
            continue
        # One layer tells how many all are: a product of counts ends at once.
        all_layers = before.layers + (context.layers - before.layers) * count
        if _too_many_layers(all_layers, member.value.span, context):
            return UNKNOWN
        further, copies = copied(context, before, item, [f"{path}[{at}]" for at in range(1, count)])
        if further:
            context.copies[array := LayerArray((item, *further), path)] = copies
            return array
    return LayerArray(tuple(items), path)


def model_call(node: ast.Expr, frame: Frame) -> tuple[ModelDecl | None, dict[str, tuple[Any, Span]]]:
    """`Model(a, b = 1)` -> the model and its arguments by formal. (None, {}) after a report."""
    sink = frame.context.sink
    if not isinstance(node, ast.Call):
        sink.report(
            "SH214", "a layer is made by calling a model", node.span, "no call", help=f"write `{node.span.text}(...)`"
        )
        return None, {}
    target = frame.evaluate(node.callee)
    if not isinstance(target, ModelDecl):
        if target is not UNKNOWN:
            sink.report(
                "SH214",
                f"`{node.callee.span.text}` is {describe(target)}, not a model",
                node.callee.span,
                describe(target),
                help="a layer is made by calling a model",
            )
        return None, {}
    return target, _arguments(target, node, frame)


def _arguments(target: ModelDecl, node: ast.Call, frame: Frame) -> dict[str, tuple[Any, Span]]:
    """Arguments by formal, with SLIP among them after a report."""
    sink = frame.context.sink
    formals = target.node.formals
    name = target.node.name.text
    given: dict[str, Argument] = {}
    slips = 0
    for at, argument in enumerate(node.args):
        if at >= len(formals):
            sink.report(
                "SH218",
                f"`{name}` takes {len(formals)} argument{'s' * (len(formals) != 1)}",
                argument.span,
                "one too many",
            )
            slips += 1
            break
        given[formals[at].name.text] = Argument(argument.span, argument)
    known = {f.name.text for f in formals}
    for keyword in node.keywords:
        key = keyword.name.text
        if key in given:
            sink.report(
                "SH219",
                f"`{name}` gets `{key}` twice",
                keyword.name.span,
                "again here",
                labels=[(given[key].span, "first here")],
            )
            slips += 1
        elif key not in known:
            unknown_argument(name, keyword.name, known, frame)
            slips += 1
        else:
            given[key] = Argument(keyword.value.span, keyword.value)
    found = {key: (a.evaluate(frame), a.span) for key, a in given.items()}
    return {**found, SLIP: (UNKNOWN, node.span)} if slips else found


def _tensor(member: ast.Tensor, instance: Instance, inner: Frame) -> None:
    """`param` or `state`: a value of the graph with its type and how it starts."""
    context, name = inner.context, member.name.text
    path = instance.below(name)
    context.build.declare(path)
    type = written_type(member.type, inner, path)
    if type is not None and not type.floating and member.keyword == "param":
        context.sink.report(
            "SH258",
            f"parameter `{name}` is {type.dtype}, and what is trained is floating",
            member.type.span,
            str(type),
            help="leave the element type out, or declare it as a `state`",
        )
        type = None
    start = initial(member.init, inner)
    value: Any = UNKNOWN
    if type is not None and (name not in instance.spans or _takes_over(name, member, instance)):
        kind = Kind.PARAM if member.keyword == "param" else Kind.STATE
        draft = ValueDraft(kind, path, name, type, context.sink.placed(member.name.span), init=start)
        value = Tensor(context.build.named(draft), type, name)
    _bind(member.name, value, instance, member, inner)
    context.candidates.setdefault(
        id(member), ("parameter" if member.keyword == "param" else "state", name, member.name.span)
    )
