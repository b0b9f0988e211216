"""Calls of operators: arguments bound to parameters, types inferred (once per shape of call), the
operator added.

The declaration of an operator says what it means; what an argument's expression means is
`expressions`' and `dimension`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import shardlang.ops.all_families  # noqa: F401  (fills the registry)
from shardlang.check.context import Context, Frame
from shardlang.check.model.precision import in_precision
from shardlang.check.values import UNKNOWN, DimValue, Tensor, describe
from shardlang.ops.declaration import FAMILIES, REGISTRY, CallSite, Inference, Operator
from shardlang.ops.families.shapes import CAST
from shardlang.sources.source import Span
from shardlang.types.dim import FLOATS, Dim, TensorType, Term


def is_operator(name: str) -> bool:
    return name in REGISTRY and not REGISTRY[name].internal


def operator_names() -> list[str]:
    """All that a program can call, by families: in which order these were imported says nothing."""
    return sorted((name for name, operator in REGISTRY.items() if not operator.internal), key=FAMILIES.__getitem__)


def infer(
    name: str | Operator, values: Sequence[Any], spans: Sequence[Span], names: Sequence[str], span: Span, frame: Frame,
    static: Mapping[str, Any] = MappingProxyType({}), arrow: tuple[Term, ...] | None = None,
) -> Any:  # fmt: skip
    """The result of an operator on `values` (None: absent); UNKNOWN after a mistake."""
    operator = REGISTRY[name] if isinstance(name, str) else name
    operands = _operands(values, spans, frame)
    if operands is None:
        return UNKNOWN
    operands = in_precision(operator.precision, operands, static, frame, lambda x, dtype: _cast(x, dtype, span, frame))
    types = tuple(None if o is None else frame.context.dims.resolve_type(o.type) for o in operands)
    found = _inference(operator, types, spans, names=names, static=static, arrow=arrow, span=span, frame=frame)
    if found is None:
        return UNKNOWN
    return _add(operator, operands, found, span, frame)


def _cast(tensor: Tensor, dtype: str, span: Span, frame: Frame) -> Tensor:
    """The cast that mixed precision needs; it is no part of the statement that was written."""
    found = infer(CAST, [tensor], [span], names=[tensor.name], static={"dtype": dtype}, span=span, frame=frame)
    if found is UNKNOWN:  # too many operators, which has been reported
        return tensor
    frame.context.build.ops[-1].implied = True
    return Tensor(found.id, found.type, tensor.name)


def _operands(values: Sequence[Any], spans: Sequence[Span], frame: Frame) -> tuple[Tensor | None, ...] | None:
    """Tensors for all operands, constants for numbers. None if one is unknown or no tensor."""
    tensors = [v for v in values if isinstance(v, Tensor)]
    first = next((v for v in tensors if v.type.dtype != "bool"), tensors[0] if tensors else None)
    found: list[Tensor | None] = []
    for value, at in zip(values, spans, strict=True):
        operand = value if value is None or isinstance(value, Tensor) else _constant(value, first, at, frame)
        if operand is UNKNOWN:
            return None
        found.append(operand)
    return tuple(found)


def _constant(value: Any, beside: Tensor | None, span: Span, frame: Frame) -> Any:
    """A static number as a tensor without dims, of the element type that fits its neighbour."""
    if value is UNKNOWN:
        return value
    if isinstance(value, DimValue):
        value = value.size or 1  # without a size in a model that is checked without values
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        fact = f"an operand must be a tensor or a number, and this is {describe(value)}"
        return frame.wrong("SH216", fact, span, describe(value))
    if isinstance(value, Fraction):
        value = float(value)
    dtype = beside.type.dtype if beside is not None else frame.context.dtype
    if dtype not in FLOATS and isinstance(value, float):
        dtype = frame.context.dtype
    elif dtype == "bool":
        dtype = "i64"
    id = frame.context.build.constant(value, dtype, span)
    return Tensor(id, TensorType(dtype, ()), f"{value:g}" if isinstance(value, float) else str(value))


def _inference(
    operator: Operator, types: tuple[TensorType | None, ...], spans: Sequence[Span], names: Sequence[str],
    static: Mapping[str, Any], arrow: tuple[Term, ...] | None, span: Span, frame: Frame,
) -> Inference | None:  # fmt: skip
    """The inference of the operator, from the memo if an equal call is there."""
    context = frame.context
    exact = (operator.name, operator.infer, types, tuple(static.items()), arrow)
    known: Inference | None = context.memo.get(exact)
    if known is not None:
        return known
    dims: list[Dim] = []
    key = _key(operator, types, static, arrow, dims)
    if key is not None and key in context.memo:
        return _keep(exact, _recall(context.memo[key], dims, context.dims.fresh), types, context)
    before = len(context.dims.become)
    site = CallSite(
        operator, types, static,  # type: ignore[arg-type]
        arrow=arrow, dims=context.dims, sink=context.sink, span=span, spans=tuple(spans), names=tuple(names),
        floating="f64" if context.dtype == "f64" else "f32",
    )  # fmt: skip
    found = operator.inferred(site)
    if found is None or len(context.dims.become) > before:
        return found
    if key is not None and not any(_has_dim(v) for v in found.attrs.values()):
        context.memo[key] = _template(found, dims)
    return _keep(exact, found, types, context)


def _keep(exact: object, found: Inference, types: tuple[TensorType | None, ...], context: Context) -> Inference:
    """Remember the result for these very dims, unless it made new dims of its own."""
    given = {dim for t in types if t is not None for term in t.dims for dim in term}
    if all(dim in given for t in found.results for term in t.dims for dim in term):
        context.memo[exact] = found
    return found


def _key(
    operator: Operator, types: tuple[TensorType | None, ...], static: Mapping[str, Any], arrow: tuple[Term, ...] | None,
    dims: list[Dim],
) -> object | None:  # fmt: skip
    """A key that is equal for calls that differ only in which dims they have; fills `dims` in order
    of appearance.

    None where a literal dim takes part: inference may unify it, which has to happen for each call.
    """
    numbers: dict[Dim, int] = {}

    def number(term: Term) -> tuple[int, ...]:
        for dim in term:
            if dim not in numbers:
                numbers[dim] = len(dims)
                dims.append(dim)
        return tuple(numbers[dim] for dim in term)

    parts: list[object] = [None if t is None else (t.dtype, tuple(number(term) for term in t.dims)) for t in types]
    for name, value in static.items():
        parts.append((name, _portable(value, number)))
    parts.append(None if arrow is None else tuple(number(term) for term in arrow))
    if any(d.literal for d in dims):
        return None
    parts.append(tuple((d.name, d.size) for d in dims))
    return (operator.name, operator.infer, *parts)


def _portable(value: Any, number: Any) -> object:
    if isinstance(value, tuple):
        if value and all(isinstance(v, Dim) for v in value):
            return ("term", number(value))
        return tuple(_portable(v, number) for v in value)
    return (type(value), value)


def _template(found: Inference, dims: list[Dim]) -> object:
    """The inference with dims numbered; the operator's own new dims are numbered from -1 down."""
    numbers = {dim: at for at, dim in enumerate(dims)}
    made: list[Dim] = []
    results = []
    for type in found.results:
        terms = []
        for term in type.dims:
            for dim in term:
                if dim not in numbers:
                    made.append(dim)
                    numbers[dim] = -len(made)
            terms.append(tuple(numbers[dim] for dim in term))
        results.append((type.dtype, tuple(terms)))
    return tuple(results), tuple(made), found


def _has_dim(value: Any) -> bool:
    return isinstance(value, Dim) or (isinstance(value, tuple) and any(_has_dim(v) for v in value))


def _recall(template: Any, dims: list[Dim], fresh: Any) -> Inference:
    results, made, found = template
    if made:
        dims = [*dims, *(fresh(m.name, m.size)[0] for m in reversed(made))]
    types = tuple(
        TensorType(dtype, tuple(tuple([dims[n] for n in term]) for term in terms)) for dtype, terms in results
    )
    return Inference(types, found.rule, found.attrs)


def _add(operator: Operator, operands: tuple[Tensor | None, ...], found: Inference, span: Span, frame: Frame) -> Any:
    build = frame.context.build
    if too_many_operators(len(build.ops) + 1, span, frame):
        return UNKNOWN
    ids = tuple(-1 if o is None else o.id for o in operands)
    at = build.operate(operator, ids, found.results, found.attrs, found.rule, frame.context.sink.placed(span))
    frame.ops.append(at)
    return Tensor(build.ops[at].results[0], found.results[0], operator.name)


def too_many_operators(count: int, span: Span, frame: Frame) -> bool:
    """Whether a program of `count` operators is too large, which is reported once."""
    build = frame.context.build
    if count > build.operators_limit and not build.full:
        build.full = True
        fact, help = f"the program has more than {build.operators_limit:,} operators", "lower the counts of its layers"
        frame.wrong("SH217", fact, span, "and more from here", help=help)
    return build.full
