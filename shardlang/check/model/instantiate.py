"""From the declaration of a layer to an instance of its model: formals given, members declared,
parameters in the graph. Calling a layer is left to `forward`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from shardlang.check.constants import plain, size, truth, whole
from shardlang.check.context import DEPTH, Context, Frame, attempted
from shardlang.check.files.removed_members import declare_removed
from shardlang.check.graph.drafts import ValueDraft
from shardlang.check.model.arguments import line_up, missing_argument
from shardlang.check.model.copies import copied, mark
from shardlang.check.model.formals import bind_static
from shardlang.check.model.initial import initial
from shardlang.check.model.types import too_many_factors, written_type
from shardlang.check.values import UNKNOWN, DimValue, Instance, LayerArray, ModelDecl, Tensor, describe
from shardlang.graph.graph import Kind
from shardlang.paths.patterns import RUN, Cuts
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim

LAYERS_LIMIT = 20_000
# Layers at each end of an array that are told one by one, whatever is in a run.
ENDS = 2
# Stands among the arguments of a call that has a mistake already: what it lacks is no further one.
SLIP = "->"


def declare_model(
    decl: ModelDecl, arguments: Mapping[str, tuple[Any, Span]] | None, path: str, span: Span, frame: Frame
) -> Instance | None:
    """A layer of the model. `arguments`: by formal, in the caller's dims; None: a generic check."""
    context = frame.context
    name = decl.node.name.text
    if _too_much(decl, span, context):
        return None
    if id(decl.node) not in context.instantiated:
        context.uncalled[id(decl.node)] = decl.node.span
    context.instantiated.add(id(decl.node))
    instance = Instance(decl, path, context.sink.placed(span), len(context.models))
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
        fact, help = f"model `{name}` has no `forward`", "add `forward(x: [...]) -> [...] { ... }`"
        context.sink.report("SH207", fact, decl.node.name.span, "declared here", help=help)
    return instance


def _too_much(decl: ModelDecl, span: Span, context: Context) -> bool:
    """Whether a model contains itself, or the program too many layers; reported."""
    above = context.models
    around = above[above.index(decl) :] if decl in above else above if len(above) >= DEPTH else ()
    context.run.update(id(d.node) for d in around)  # checked by itself each would tell this once more
    if decl in above:
        chain = " -> ".join(f"`{d.node.name.text}`" for d in [*around, decl])
        help = "use an array for repeated layers: `layer blocks[4] = Block(d)`"
        context.sink.report("SH206", f"a model contains itself: {chain}", span, "this layer", help=help)
        return True
    if len(above) >= DEPTH:
        fact = f"layers stand in one another more than {DEPTH} deep"
        context.sink.report("SH217", fact, span, "and deeper from here")
        return True
    context.layers += 1
    return _too_many_layers(context.layers, span, context)


def _too_many_layers(count: int, span: Span, context: Context) -> bool:
    """Whether a program of `count` layers is too large, which is reported once."""
    if count > LAYERS_LIMIT and not context.full:
        context.full = True
        fact, help = f"the program has more than {LAYERS_LIMIT:,} layers", "lower the counts of its layers"
        context.sink.report("SH217", fact, span, "and more from here", help=help)
    return context.full


def _formal(
    formal: ast.Formal, arguments: Mapping[str, tuple[Any, Span]] | None, frame: Frame, inner: Frame, span: Span
) -> Any:
    """The value given to a formal: in the caller's dims where it is a dim."""
    name = formal.name.text
    if isinstance(formal.kind, ast.TensorType):
        fact = f"`{name}` is a tensor, and a model's arguments are static"
        help = "tensors are the arguments of `forward`"
        return frame.wrong("SH208", fact, formal.kind.span, "a tensor", help=help)
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
    """A dim becomes the model's own, whatever it is outside: so a check holds for all callers."""
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
        help = "give one of them another name"
        inner.context.sink.again("SH201", f"`{name.text}` is declared twice", name.span, before, help)
        return False
    instance.names[name.text] = value
    instance.spans[name.text] = name.span
    instance.nodes[name.text] = node
    return True


def _takes_over(name: str, node: object, instance: Instance) -> bool:
    """A parameter may take the name of a static formal (`bias`), from its declaration on."""
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
        # Without values for the formals both sides are checked, as far as they do not declare the
        # same names.
        condition = True
    _members(member.then if condition else member.otherwise, instance, inner)
    declare_removed(member.otherwise if condition else member.then, instance, inner)


def _forward(member: ast.Forward, instance: Instance, inner: Frame) -> None:
    if instance.forward is None:
        instance.forward = member
        return
    help = "a model has one `forward`"
    inner.context.sink.again("SH201", "`forward` is declared twice", member.span, instance.forward.span, help)


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
            code, help = "SH213" if count < 1 else "SH217", f"a count is from 1 to {LAYERS_LIMIT:,}"
            fact = f"`{name}` cannot have {count:,} layers"
            context.sink.report(code, fact, member.count.span, f"{count:,}", help=help)
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
    mistakes = before.mistakes
    for at in range(count):
        context.build.declare(f"{path}[{at}]")
        item = declare_model(target, arguments, f"{path}[{at}]", member.value.span, inner)
        if item is None:
            return UNKNOWN
        items.append(item)
        if at == 1 and mistakes > before.mistakes and len(context.sink.found) == mistakes:
            # Neither has the third one another mistake, and no graph is made.
            context.layers += (count - 2) * (context.layers - before.layers) // 2
            return LayerArray(path, items + [item] * (count - 2))
        if at:
            continue
        mistakes = len(context.sink.found)
        # One layer tells how many all are: a product of counts ends at once.
        all_layers = before.layers + (context.layers - before.layers) * count
        if _too_many_layers(all_layers, member.value.span, context):
            return UNKNOWN
        flat = not any(RUN.search(inner) for inner, _ in context.build.paths[before.paths :])
        further = _further(path, count, context.runs if flat else None)
        copies = copied(context, before, item, [f"{path}[{at}]" for at in further])
        context.in_runs |= bool(copies) and not all(isinstance(at, int) for at in further)
        if copies:
            return LayerArray(path, items, copies)
    return LayerArray(path, items)


def _further(array: str, count: int, cuts: Cuts | None) -> list[int | str]:
    """The layers of an array after the first; with `cuts` those far from all cuts as one."""
    if cuts is None:
        return list(range(1, count))
    found: list[int | str] = []
    for start, stop in pairwise((0, *sorted({*cuts.get(array, ())} & {*range(1, count)}), count)):
        far = stop - start >= 2 * ENDS + 2
        inner = [f"{start + ENDS}-{stop - ENDS}"] if far else range(start + ENDS, stop - ENDS)
        found += [*range(start, min(start + ENDS, stop)), *inner, *range(max(stop - ENDS, start + ENDS), stop)]
    return found[1:]


def model_call(node: ast.Expr, frame: Frame) -> tuple[ModelDecl | None, dict[str, tuple[Any, Span]]]:
    """`Model(a, b = 1)` -> the model and its arguments by formal. (None, {}) after a report."""
    if not isinstance(node, ast.Call):
        fact, help = "a layer is made by calling a model", f"write `{node.span.text}(...)`"
        frame.wrong("SH214", fact, node.span, "no call", help=help)
        return None, {}
    target = frame.evaluate(node.callee)
    if isinstance(target, ModelDecl):
        return target, _arguments(target, node, frame)
    if target is not UNKNOWN:
        fact = f"`{node.callee.span.text}` is {describe(target)}, not a model"
        frame.wrong("SH214", fact, node.callee.span, describe(target), help="a layer is made by calling a model")
    return None, {}


def _arguments(target: ModelDecl, node: ast.Call, frame: Frame) -> dict[str, tuple[Any, Span]]:
    """Arguments by formal, with SLIP among them after a report."""
    names = [formal.name.text for formal in target.node.formals]
    given, sound = line_up(target.node.name.text, names, node, frame)
    found = {key: (a.evaluate(frame), a.span) for key, a in given.items()}
    return found if sound else {**found, SLIP: (UNKNOWN, node.span)}


def _tensor(member: ast.Tensor, instance: Instance, inner: Frame) -> None:
    """`param` or `state`: a value of the graph with its type and how it starts."""
    context, name = inner.context, member.name.text
    path = instance.below(name)
    context.build.declare(path)
    type = written_type(member.type, inner, path)
    if type is not None and not type.floating and member.keyword == "param":
        fact = f"parameter `{name}` is {type.dtype}, and what is trained is floating"
        help = "leave the element type out, or declare it as a `state`"
        context.sink.report("SH258", fact, member.type.span, str(type), help=help)
        type = None
    start = attempted(initial, member.init, inner)
    value: Any = UNKNOWN
    if type is not None and (name not in instance.spans or _takes_over(name, member, instance)):
        kind = Kind.PARAM if member.keyword == "param" else Kind.STATE
        draft = ValueDraft(kind, path, name, type, context.sink.placed(member.name.span), init=start)
        value = Tensor(context.build.named(draft), type, name)
    _bind(member.name, value, instance, member, inner)
    noun = "parameter" if member.keyword == "param" else "state"
    context.candidates.setdefault(id(member), (noun, name, member.name.span))
