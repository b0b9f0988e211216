"""Types at the border of a model or function: arguments against formals on the way in, results on
the way out.

Inside, every dim that the caller gave is a dim of the callee's own, so that the body is checked
once for all callers."""

from __future__ import annotations

from itertools import islice

from shardlang.check.constants import whole
from shardlang.check.context import Frame
from shardlang.check.model.types import check_plain, element_type, twice, written_term, written_terms
from shardlang.check.values import UNKNOWN, DimValue, Tensor
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import FLOATS, Dim, TensorType, Term, term_size, term_text, told_apart


def bind_tensor(formal: ast.Formal, given: Tensor, span: Span, callee: str, inner: Frame) -> Tensor | None:
    """The argument as the callee sees it; binds new dims of the formal. None after a report."""
    written = formal.kind
    assert isinstance(written, ast.TensorType)
    context = inner.context
    check_plain(written, inner)
    type = context.dims.resolve_type(given.type)
    who = f"`{formal.name.text}` of `{callee}`"
    if not _element(written, type, who, span, inner):
        return None
    lined = _line_up(written, type, who, span, inner)
    if lined is None:
        return None
    terms: list[Term] = []
    for node, parts in lined:
        ellipsis = node.ellipsis
        found = _leading(parts, who, span, inner) if ellipsis else _one(node, parts[0], who, span, type, inner)
        if found is None:
            return None
        terms.extend(found)
    if twice(written, tuple(terms), inner):
        return None
    return Tensor(given.id, TensorType(type.dtype, tuple(terms)), formal.name.text)


def _element(written: ast.TensorType, type: TensorType, who: str, span: Span, inner: Frame) -> bool:
    target = element_type(written, inner)
    if target is None:
        return False
    wanted, fitting = (target, (target,)) if written.dtype is not None else ("floating", FLOATS)
    if type.dtype not in fitting:
        inner.context.sink.report(
            "SH258", f"{who} must be {wanted}, and this is {type.dtype}", span, f"{type}",
            labels=[(written.span, "declared here")], help=f"`cast(x, {target})` changes the element type",
        )  # fmt: skip
    return type.dtype in fitting


def _line_up(
    written: ast.TensorType, type: TensorType, who: str, span: Span, inner: Frame
) -> list[tuple[ast.DimTerm, tuple[Term, ...]]] | None:
    """Each written dim with its part of the type; `...` takes what is left over."""
    nodes, dims = written.dims, type.dims
    extra = len(dims) - (len(nodes) - sum(n.ellipsis for n in nodes))
    if extra < 0 or (extra > 0 and not any(n.ellipsis for n in nodes)):
        fact = f"{who} has {len(nodes)} dims, and this has {len(dims)}"
        inner.context.sink.report("SH252", fact, span, f"{type}", labels=[(written.span, "declared here")])
        return None
    rest = iter(dims)
    return [(node, tuple(islice(rest, extra if node.ellipsis else 1))) for node in nodes]


def _leading(given: tuple[Term, ...], who: str, span: Span, inner: Frame) -> tuple[Term, ...] | None:
    """Bind `...`, or hold it against its binding."""
    dims = inner.context.dims
    bound, steps = inner.ellipsis, inner.steps
    if bound is None:
        bound = inner.ellipsis = tuple((dims.local(term_text(t), t, inner.prefix, steps),) if t else () for t in given)
        return bound
    if len(bound) == len(given) and all(map(dims.same, (dims.outward(b, steps) for b in bound), given)):
        return bound
    left, right = (", ".join(map(term_text, terms)) for terms in (bound, given))
    fact = f"`...` is [{left}] in the first argument, and [{right}] in {who}"
    inner.context.sink.report("SH256", fact, span, f"[{right}]")
    return None


def _one(node: ast.DimTerm, given: Term, who: str, span: Span, type: TensorType, inner: Frame) -> tuple[Term] | None:
    dims = inner.context.dims
    first = node.factors[0].dim
    single = len(node.factors) == 1
    if single and isinstance(first, ast.Name) and inner.find(first.text) is None:
        term: Term = (dims.local(first.text, given, inner.prefix, inner.steps),)
        inner.names[first.text] = DimValue(term)
        inner.spans[first.text] = first.span
        return (term,)
    if single and isinstance(first, ast.Number):
        return _literal(first, given, who, span, type, inner)
    wanted = written_term(node, inner, {}, inner.prefix)
    if wanted is None:
        return None
    outside = dims.outward(wanted, inner.steps)
    if dims.same(outside, given):
        return (wanted,)
    report_different(who, wanted, outside, given=given, type=type, span=span, place=node.span, inner=inner)
    return None


def _literal(node: ast.Number, given: Term, who: str, span: Span, type: TensorType, inner: Frame) -> tuple[Term] | None:
    """A number in a formal's type: the given dim must have that size, and may be any dim."""
    number = whole(node.value, node.span, inner.context.sink, "a dim")
    if number is UNKNOWN:
        return None
    actual = term_size(given)
    if number != actual and actual is not None:
        report_different(
            who, (Dim(str(number), number, node.span, True),), (), given=given, type=type, span=span, place=node.span,
            inner=inner,
        )  # fmt: skip
        return None
    if number == 1:
        inner.context.dims.same((), given)
        return ((),)
    for _ in range(inner.steps):
        dim = inner.context.dims.literal(str(number), number, node.span)
        inner.context.dims.outer[dim] = given
        given = (dim,)
    return (given,)


def report_different(
    who: str, wanted: Term, outside: Term, given: Term, type: TensorType, span: Span, place: Span, inner: Frame
) -> None:
    """Two dims that should be one are not: by size, or by name alone."""
    a, b, help = sized(wanted), sized(given), ""
    shown = term_text(outside) if outside else ""
    # A dim that was made from a number for this very formal is called by the formal's path: that is
    # no other name.
    known = shown.rpartition(".")[2] in (term_text(wanted), str(term_size(wanted)))
    alias = f", which is `{shown}` here" if shown and not known else ""
    left, right = ("", "") if alias else told_apart(outside or wanted, given)
    labels, made = [(place, "declared here")], _made_with(wanted, inner) if alias else None
    if made is not None:
        labels.append((made, f"made with `{shown}` here"))
        help = f"`{made.text}` makes the layer: give it `{term_text(given)}` there, if that is meant"
    new = [shown or term_text(wanted) if t == given else term_text(t) for t in type.dims]
    if term_size(wanted) == term_size(given) and term_size(given) is not None and len({*new}) == len(new):
        fact = f"both are {term_size(given)}, but they are different dims"
        help = f"{fact}; if they are meant to be one: `relabel(x -> [{', '.join(new)}])`"
    elif home := _of_two_files(outside or wanted, given):
        fact = f"each file has a `{given[0].name}` of its own"
        help = f"{fact}: delete this one, and import that of `{home}` by `use`"
    fact = f"{who} needs {a}{alias or left}, and this has {b}{right}"
    inner.context.sink.report("SH256", fact, span, f"{type}", labels=labels, help=help)


def _made_with(wanted: Term, inner: Frame) -> Span | None:
    """The place that gives a layer the dim that it needs; None where nothing gives it."""
    if inner.instance is None or len(wanted) != 1:
        return None
    given = {formal.name.text for formal in inner.instance.decl.node.formals}
    return inner.instance.span if wanted[0].name in given else None


def _of_two_files(wanted: Term, given: Term) -> str:
    """The file of the dim that is wanted, where another declares the one of its name that is given;
    "" elsewhere."""
    if len(wanted) != 1 or len(given) != 1 or wanted[0].name != given[0].name:
        return ""
    places = [dim.span for dim in (*wanted, *given) if dim.span is not None and dim.home is None]
    names = [place.source.name for place in places]
    return names[0] if len({*names}) == 2 else ""


def sized(term: Term) -> str:
    """`hidden` (16); a literal shows its size alone."""
    text, length = term_text(term), term_size(term)
    return f"`{text}`" if length is None or text == str(length) else f"`{text}` ({length})"


def check_result(result: Tensor, written: ast.TensorType, inner: Frame) -> bool:
    """Whether a body's result is of its declared type; reports where it is not."""
    context = inner.context
    check_plain(written, inner)
    type = context.dims.resolve_type(result.type)
    span = written.span
    if not _element(written, type, "the result", span, inner):
        return False
    terms = written_terms(written, inner, {}, inner.prefix)
    if terms is None:
        return False
    if len(terms) != len(type.dims):
        fact = f"the result is declared with {len(terms)} dims, and has {len(type.dims)}"
        context.sink.report("SH252", fact, span, f"it is {type}")
        return False
    for wanted, found in zip(terms, type.dims, strict=True):
        if not context.dims.same(wanted, found):
            report_different("the result", wanted, (), given=found, type=type, span=span, place=span, inner=inner)
            return False
    return True
