"""Arguments of a call of an operator -> operands and static arguments, by the kinds its declaration
states.

Evaluates expressions through the frame; inferring types is left to `operators`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from typing import Any

from shardlang.check.constants import plain, show, size, whole
from shardlang.check.context import Frame, Reported
from shardlang.check.declared import LIMITS, called
from shardlang.check.model.types import hidden_by, named_term, namesake, operand_dims, written_terms
from shardlang.check.values import UNKNOWN, DimValue, Tensor, describe, unfit
from shardlang.facts.dtypes import DTYPES
from shardlang.frozen.records import dataclass
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import Arrow, Operator, Param
from shardlang.ops.torch_words import torch_help
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Term

_TENSORS = ("tensor", "tensors")
_BY_DIM = ("slices", "places", "pads")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call: an expression, or (from a pipe) a value that is there already."""

    span: Span
    node: ast.Expr | None
    value: Any = None

    def evaluate(self, frame: Frame) -> Any:
        return self.value if self.node is None else frame.evaluate(self.node)

    @property
    def name(self) -> str:
        return self.node.text if isinstance(self.node, ast.Name) else "the argument"


@dataclass
class Bound:
    """The arguments of a call of an operator. `sound`: nothing was reported, nothing is unknown."""

    values: list[Any] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    static: dict[str, Any] = field(default_factory=dict)
    arrow: tuple[Term, ...] | None = None
    sound: bool = True


def call_of_one(node: ast.Expr, kinds: Collection[str], noun: str, code: str, example: str, frame: Frame) -> ast.Call:
    """The call of one of `kinds`, which are all of `noun`; where it is none, that is reported under
    `code`, and Reported is raised."""
    name = called(node)
    if not isinstance(node, ast.Call) or not name:
        frame.refuse(code, f"no {noun} is called here", node.span, f"no {noun}", help=f"write `{example}`, say")
    if name not in kinds:
        fact, help = f"there is no {noun} `{name}`", offer(name, kinds, f"the {noun}s are {', '.join(kinds)}")
        frame.refuse(code, fact, node.callee.span, f"unknown {noun}", help=help)
    return node


def bind_operator(
    operator: Operator, positional: Sequence[Argument], keywords: Sequence[ast.Keyword], arrow: ast.TensorType | None,
    span: Span, frame: Frame,
) -> Bound:  # fmt: skip
    """Line arguments up with parameters and evaluate them."""
    if not keywords and arrow is None and [p.kind for p in operator.params] == ["tensor"] * len(positional):
        bound = Bound()
        _operands(positional, bound, frame)
        return bound
    given, rest, slices = _line_up(operator, positional, keywords, span, frame)
    bound = Bound(sound=given is not None)
    if given is None:
        return bound
    for param in operator.params:
        if param.kind == "tensors":
            _operands(rest, bound, frame)
        elif param.kind == "tensor":
            _operand(param, given.get(param.name), bound, span, frame)
    first = operand_dims([v.type for v in bound.values if isinstance(v, Tensor)])
    first |= hidden_by(frame, first)
    if UNKNOWN in bound.values:  # a dim that only this operand has is no further mistake
        frame = replace(frame, sightless=True)
    for param in operator.params:
        if param.kind in _TENSORS:
            continue
        if param.kind in _BY_DIM:
            one = {"slices": _range, "places": _place, "pads": _pads}[param.kind]
            bound.static[param.name] = _by_dim(slices, one, first, bound, frame)
            continue
        argument = given.get(param.name)
        value = param.default if argument is None else _static(param, argument, first, frame)
        bound.sound = bound.sound and value is not UNKNOWN
        bound.static[param.name] = value
    if arrow is not None and bound.sound:
        if operator.arrow is Arrow.NAMES:
            first = {name: own for name, own in first.items() if not namesake(name, own, frame)}
        bound.arrow = written_terms(arrow, frame, first, frame.prefix)
        bound.sound = bound.arrow is not None
    return bound


def _line_up(
    operator: Operator, positional: Sequence[Argument], keywords: Sequence[ast.Keyword], span: Span, frame: Frame
) -> tuple[dict[str, Argument] | None, list[Argument], list[ast.Keyword]]:
    """Arguments by parameter, those of `tensors`, those of `slices`. None first after a report."""
    given: dict[str, Argument] = {}
    rest: list[Argument] = []
    slices: list[ast.Keyword] = []
    params = [p for p in operator.params if p.kind not in _BY_DIM]
    last = next((at for at, p in enumerate(params) if p.kind == "tensors"), len(params) - 1)
    for at, argument in enumerate(positional):
        param = params[min(at, last)] if params else None
        if param is not None and param.kind == "tensors":
            rest.append(argument)
        elif param is None or param.name in given:
            many = f"at most {len(params)} argument{'s' * (len(params) != 1)}"
            frame.context.sink.report("SH218", f"`{operator.name}` takes {many}", argument.span, "one too many")
            return None, rest, slices
        else:
            given[param.name] = argument
    named = {p.name for p in operator.params if p.kind not in ("tensors", *_BY_DIM)}
    if any(p.kind in _BY_DIM for p in operator.params):
        slices = [k for k in keywords if k.name.text not in given and k.name.text not in named]
    if not by_name(operator.name, [k for k in keywords if k not in slices], named, given, frame):
        return None, rest, slices
    missing = [p for p in params if p.required and p.kind != "tensors" and p.name not in given]
    if missing:
        missing_argument(operator.name, missing[0].name, span, frame)
        return None, rest, slices
    return given, rest, slices


def by_name(
    callee: str, keywords: Sequence[ast.Keyword], known: Collection[str], given: dict[str, Argument], frame: Frame
) -> bool:
    """Add named arguments to `given`. False after a report on a repeated or unknown one."""
    sink, sound = frame.context.sink, True
    for keyword in keywords:
        name = keyword.name
        sound = sound and name.text in known and name.text not in given
        if name.text in given:
            sink.again("SH219", f"`{callee}` gets `{name.text}` twice", name.span, given[name.text].span)
        elif name.text in known:
            given[name.text] = Argument(keyword.value.span, keyword.value)
        else:
            listed = ", ".join(f"`{n}`" for n in sorted(known)) or "no arguments by name"
            theirs = torch_help(name.text) if "over" in known else ""
            help = offer(name.text, known, theirs or f"it takes {listed}")
            sink.report("SH220", f"`{callee}` has no argument `{name.text}`", name.span, "unknown argument", help=help)
    return sound


def line_up(
    callee: str, names: Sequence[str], call: ast.Call, frame: Frame, most: int | None = None
) -> tuple[dict[str, Argument], bool]:
    """The arguments of a call by name, others in the order of `names` (by default all may be);
    whether all are right. An argument by name from `--set` takes the place of one without."""
    given = {name: Argument(node.span, node) for name, node in zip(names, call.args, strict=False)}
    for keyword in call.keywords:
        if keyword.span.source != call.span.source:
            given.pop(keyword.name.text, None)
    most = len(names) if most is None else most
    fits = len(call.args) <= most
    if not fits:
        fact = f"`{callee}` takes {most} argument{'s' * (most != 1)}{' without a name' * (most < len(names))}"
        wrong, free = call.args[most].span, names[most : most + 1]
        help = f"name it: `{free[0]} = {wrong.text}`" if free else ""
        frame.context.sink.report("SH218", fact, wrong, "one too many", help=help)
    return given, by_name(callee, call.keywords, names, given, frame) and fits


def declared_arguments(
    callee: str, params: Sequence[Param], call: ast.Call, frame: Frame, most: int = 0, all_due: bool = True,
    free: Collection[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The arguments that a call of something declared gives, by name; `most` may stand without one.
    Reported where some are wrong. all_due: what has no default must be given. free: names that the
    user has chosen, whose values have no limits."""
    given, sound = line_up(callee, [param.name for param in params], call, frame, most)
    missing = [param.name for param in params if all_due and param.required and param.name not in given]
    if sound and missing:
        missing_argument(callee, missing[0], call.span, frame)
    if missing or not sound:
        raise Reported
    named = [param for param in params if param.name in given]
    found = {p.name: settled(p, given[p.name], frame, p.name not in free) for p in named}
    if UNKNOWN in found.values():
        raise Reported
    return found


def settled(param: Param, argument: Argument, frame: Frame, limited: bool = True) -> Any:
    """The value of a declared argument or of a setting, within its limits; UNKNOWN after a report.
    A new dim stays what it is given as."""
    value, span = argument.evaluate(frame), argument.span
    if value is not UNKNOWN and param.kind != "newdim":
        value = _convert(param, value, span, frame)
    if value is not UNKNOWN and param.kind == "number":
        value = float(value)
    limit = LIMITS.get(param.name) if limited else None
    if value is UNKNOWN or limit is None or limit.fits(value):
        return value
    shown = f"{value:g}" if isinstance(value, float) else show(value)
    return frame.wrong(limit.code, f"`{param.name}` must be {limit.wanted}, and this is {shown}", span, shown)


def missing_argument(callee: str, name: str, span: Span, frame: Frame) -> None:
    frame.context.sink.report(
        "SH221", f"`{callee}` needs `{name}`", span, f"`{name}` is missing", help=f"add `{name} = ...`"
    )


def _operands(rest: Sequence[Argument], bound: Bound, frame: Frame) -> None:
    for argument in rest:
        value = argument.evaluate(frame)
        bound.sound = bound.sound and value is not UNKNOWN
        bound.values.append(value)
        bound.spans.append(argument.span)
        bound.names.append(argument.name if argument.node is not None or not isinstance(value, Tensor) else value.name)


def _operand(param: Param, argument: Argument | None, bound: Bound, span: Span, frame: Frame) -> None:
    if argument is not None:
        return _operands([argument], bound, frame)
    bound.values.append(None)
    bound.spans.append(span)
    bound.names.append(param.name)


def _by_dim(
    keywords: Sequence[ast.Keyword], one: Callable[[ast.Keyword, Frame], Any], first: Mapping[str, Term], bound: Bound,
    frame: Frame,
) -> Any:  # fmt: skip
    """`d = 0..4` -> (term, 0, 4, 1); of an index, `d = 3` -> (term, 3)."""
    found = []
    for keyword in keywords:
        term, value = named_term(keyword.name, first, frame), one(keyword, frame)
        if term is None or UNKNOWN in value:
            bound.sound = False
        else:
            found.append((term, *value))
    return tuple(found)


def _range(keyword: ast.Keyword, frame: Frame) -> tuple[Any, ...]:
    node, sink = keyword.value, frame.context.sink
    if not isinstance(node, ast.Range):
        sink.report("SH210", f"`{keyword.name.text}` needs a range", node.span, "here", help="write `0..4`")
        return (UNKNOWN,)
    start = whole(frame.evaluate(node.start), node.start.span, sink, "the start of a range")
    stop = whole(frame.evaluate(node.end), node.end.span, sink, "the end of a range")
    step = 1 if node.step is None else whole(frame.evaluate(node.step), node.step.span, sink, "the step of a range")
    return start, stop, step


def _place(keyword: ast.Keyword, frame: Frame) -> tuple[Any, ...]:
    return (whole(frame.evaluate(keyword.value), keyword.value.span, frame.context.sink, "an index"),)


def _pads(keyword: ast.Keyword, frame: Frame) -> tuple[Any, ...]:
    """How many before and behind; one number is for both."""
    value, span = frame.evaluate(keyword.value), keyword.value.span
    both = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    return tuple(whole(each, span, frame.context.sink, "the count of a pad") for each in both)


def _static(param: Param, argument: Argument, first: Mapping[str, Term], frame: Frame) -> Any:
    """The value of a static argument by its kind; UNKNOWN after a report."""
    node = argument.node
    if param.kind == "dim" and node is not None:
        term = named_term(node, first, frame)
        return UNKNOWN if term is None else term
    if param.kind == "dims" and node is not None:
        nodes = node.items if isinstance(node, ast.Tuple) else (node,)
        terms = [named_term(n, first, frame) for n in nodes]
        return UNKNOWN if None in terms else tuple(terms)
    if param.kind == "dtype" and isinstance(node, ast.Name) and node.text in DTYPES:
        return node.text
    if param.kind == "newdim" and isinstance(node, ast.Name) and node.text in first:
        return first[node.text]
    value = argument.evaluate(frame)
    return value if value is UNKNOWN else _convert(param, value, argument.span, frame)


def _convert(param: Param, value: Any, span: Span, frame: Frame) -> Any:
    sink = frame.context.sink
    what = f"`{param.name}`"
    if isinstance(value, Tensor):
        return unfit(f"{what} must be known before the run", value, span, sink)
    match param.kind:
        case "newdim":
            if isinstance(value, DimValue):
                return value.term
            length = size(value, span, sink, what)
            return UNKNOWN if length is None else frame.context.dims.fresh("", length)
        case "int":
            return whole(value, span, sink, what)
        case "pair":
            items = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
            found = tuple(whole(v, span, sink, what) for v in items)
            return UNKNOWN if UNKNOWN in found else found
        case "float" | "number":
            return number(value, span, frame, what, param.kind == "float")
        case "numbers":
            due = len(param.default) if param.default is not None else 0
            if not isinstance(value, tuple) or (due and len(value) != due):
                help = f"write `{param.name} = {show(param.default or (1.0, 2.0))}`"
                return frame.wrong("SH210", f"{what} must be {due or 'some'} numbers", span, describe(value), help=help)
            found = tuple(number(v, span, frame, what, True) for v in value)
            return UNKNOWN if UNKNOWN in found else found
    wanted = {"bool": bool, "str": str}.get(param.kind)
    if wanted is not None and isinstance(value, wanted):
        return value
    kinds = {"bool": "true or false", "str": "a text", "dtype": f"one of {', '.join(DTYPES)}"}
    return unfit(f"{what} must be {kinds.get(param.kind, 'a dim, by name')}", value, span, sink)


def number(value: Any, span: Span, frame: Frame, what: str, floating: bool) -> Any:
    value = plain(value)
    if value is UNKNOWN:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        fact = f"{what} must be a number, and `{show(value)}` is {describe(value)}"
        return frame.wrong("SH210", fact, span, describe(value))
    return float(value) if floating or isinstance(value, Fraction) else value
