"""Types and dims as written in a program -> terms in the dims of the model they stand in.

Also terms named in an operator's arguments, which look among the operand's dims first. Comparing
types is left to `boundary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardlang.check.constants import size
from shardlang.check.context import Frame
from shardlang.check.values import UNKNOWN, DimValue, describe
from shardlang.facts.dtypes import DTYPES
from shardlang.hints.nearest import offer
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim, TensorType, Term, term_size, term_text

Terms = tuple[Term, ...]
DIMS_LIMIT = 64  # torch's
FACTORS_LIMIT = 64


def element_type(written: ast.TensorType, frame: Frame) -> str | None:
    """The element type: the run's floating type where none is written. None after a report."""
    if written.dtype is None:
        return frame.context.dtype
    name = written.dtype.text
    if name in DTYPES:
        return name
    help = offer(name, DTYPES, f"the element types are {', '.join(DTYPES)}")
    frame.wrong("SH257", f"there is no element type `{name}`", written.dtype.span, "unknown", help=help)
    return None


def written_type(written: ast.TensorType, frame: Frame, path: str) -> TensorType | None:
    """The type of a parameter, state or field; every number in it is a new literal dim."""
    check_plain(written, frame)
    terms = written_terms(written, frame, {}, path)
    if terms is None:
        return None
    dtype = element_type(written, frame)
    if twice(written, terms, frame) or dtype is None:
        return None
    return TensorType(dtype, terms)


def check_plain(written: ast.TensorType, frame: Frame) -> None:
    """A model's types say what, not where: layouts belong in strategies."""
    axes = [*written.pending, *written.replicated, *(a for t in written.dims for f in t.factors for a in f.axes)]
    if axes:
        help = "take it out here, and pin it in a strategy: `at NAME: [batch@dp, d]`"
        label = f"axis `{axes[0].text}`"
        frame.wrong("SH254", "a type of a model has a layout", axes[0].span, label, help=help)


def twice(written: ast.TensorType, terms: Terms, frame: Frame) -> bool:
    """Whether a written type holds a dim twice, which is reported."""
    if len({dim for term in terms for dim in term}) == sum(map(len, terms)):
        return False
    seen: dict[Dim, Span] = {}
    for term, node in zip(terms, _spans(written, len(terms)), strict=True):
        for dim in term:
            if dim in seen:
                help = (
                    f"declare `dim other = {dim.name}` and give one of them that name; "
                    "`relabel(x -> [..., other])` renames a dim of a tensor without moving data"
                )
                frame.context.sink.again("SH253", f"dim `{dim.name}` occurs twice in one type", node, seen[dim], help)
                return True
            seen[dim] = node
    return False


def _spans(written: ast.TensorType, count: int) -> list[Span]:
    """A place for each term; those of `...` share one."""
    extra = count - (len(written.dims) - sum(t.ellipsis for t in written.dims))
    return [term.span for term in written.dims for _ in range(extra if term.ellipsis else 1)]


def written_terms(written: ast.TensorType, frame: Frame, first: Mapping[str, Term], path: str) -> Terms | None:
    """The terms of a type; names are looked up in `first`, then in the frame. Or None, reported."""
    found: list[Term] = []
    sound = True
    for node in written.dims:
        if node.ellipsis:
            if frame.ellipsis is None:
                help = "write `...` in a type of the arguments first: `forward(x: [..., d])`"
                frame.wrong("SH255", "nothing binds `...` here", node.span, "not bound", help=help)
                sound = False
            found.extend(frame.ellipsis or ())
            continue
        term = written_term(node, frame, first, path)
        sound = sound and term is not None
        found.append(term or ())
    if len(found) > DIMS_LIMIT:
        limit = f"at most {DIMS_LIMIT}"
        frame.wrong("SH217", f"a tensor of {len(found)} dims", written.span, limit, help="merge some of them")
        return None
    return tuple(found) if sound else None


def written_term(node: ast.DimTerm, frame: Frame, first: Mapping[str, Term], path: str) -> Term | None:
    """One dim of a type, with its factors, major first."""
    found: list[Dim] = []
    for factor in node.factors:
        term = _factor(factor.dim, frame, first, path)
        if term is None:
            return None
        found.extend(term)
    if too_many_factors(tuple(found), node, frame):
        return None
    return frame.context.dims.resolve(tuple(found))


def too_many_factors(term: Term, node: ast.DimTerm | ast.Name, frame: Frame) -> bool:
    """Whether a product of dims has more factors than any tensor needs, which is reported: products
    of products double with each model that they pass through."""
    if frame.context.dims.factors(term) <= FACTORS_LIMIT:
        return False
    fact = f"`{node.span.text}` is a product of more than {FACTORS_LIMIT} dims"
    frame.wrong("SH217", fact, node.span, "too many factors")
    return True


def _factor(node: ast.Name | ast.Number, frame: Frame, first: Mapping[str, Term], path: str) -> Term | None:
    if isinstance(node, ast.Number):
        length = size(node.value, node.span, frame.context.sink, "a dim")
        if length is None:
            return None
        name = f"{path}.{length}" if path else str(length)
        return () if length == 1 else (frame.context.dims.literal(name, length, node.span),)
    if node.text in first:
        return first[node.text]
    return known_dim(node, frame, first)


def known_dim(node: ast.Name, frame: Frame, first: Mapping[str, Term]) -> Term | None:
    """The dim that a name means in the frame, or a report."""
    value = frame.find(node.text)
    if isinstance(value, DimValue):
        return value.term
    if value is UNKNOWN:
        return None
    if value is not None:
        number = isinstance(value, int)
        help = f"declare `dim {node.text}_size = {node.text}` to use its number as a dim" if number else ""
        frame.wrong("SH251", f"`{node.text}` is {describe(value)}, not a dim", node.span, "a dim is needed", help=help)
    elif frame.first_unknown(node.text):
        if (later := frame.declared_below(node.text)) is not None:
            unknown_yet(node, later, "SH250", "dim", frame)
            return None

        def nearest() -> str:
            dims = [name for name in frame.visible() if isinstance(_peek(frame, name), DimValue)]
            return offer(node.text, [*first, *dims], f"declare it: `dim {node.text} = ...`")

        frame.wrong("SH250", f"there is no dim `{node.text}` here", node.span, "unknown dim", help=nearest)
    return None


def unknown_yet(node: ast.Name, later: Span, code: str, what: str, frame: Frame) -> Any:
    """UNKNOWN, after reporting a name that is declared further down."""
    return frame.wrong(
        code, f"there is no `{node.text}` here", node.span, f"unknown {what}", labels=[(later, "declared only here")],
        help=f"declare `{node.text}` first: a name is known from its declaration on",
    )  # fmt: skip


def _peek(frame: Frame, name: str) -> object:
    for names in (frame.names, frame.instance.names if frame.instance else {}, frame.file.names):
        if name in names:
            return names[name]
    return None


def namesake(name: str, own: Term, frame: Frame) -> bool:
    """Whether a name means a dim here that is as large as an operand's `own` dim of that name."""
    known = _peek(frame, name)
    return isinstance(known, DimValue) and known.size is not None and known.size == term_size(own)


def operand_dims(types: Sequence[TensorType]) -> dict[str, Term]:
    """Names of the operands' dims -> dims; the first operand that has a name decides."""
    found: dict[str, Term] = {}
    for dim in (dim for type in types for term in type.dims for dim in term):
        found.setdefault(dim.name, (dim,))
    return found


def hidden_by(frame: Frame, first: Mapping[str, Term]) -> dict[str, Term]:
    """Names of dims of `...` that mean others here: a caller's `d` is not the `d` of a model."""
    found, dims = {}, frame.context.dims
    for term in frame.ellipsis or ():
        name = term[0].name if term else ""
        known = _peek(frame, name)
        if isinstance(known, DimValue) and first.get(name) == term and not dims.one_outside(known.term, term):
            found[name] = known.term
    return found


def named_term(node: ast.Expr, first: Mapping[str, Term], frame: Frame) -> Term | None:
    """A dim in an argument (`over = d`, or a product `heads * head_dim`); None after a report."""
    if isinstance(node, ast.Name):
        term = first.get(node.text)
        return term if term is not None else known_dim(node, frame, first)
    if isinstance(node, ast.Binary) and node.op == "*":
        left, right = named_term(node.left, first, frame), named_term(node.right, first, frame)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Number) and node.value == 1:
        return ()
    names = sorted({term_text(t) for t in first.values()})
    could = f"one of {', '.join(f'`{n}`' for n in names)}" if names else "a dim"
    frame.wrong("SH251", "a dim is needed here, by name", node.span, could)
    return None
