"""Reductions over named dims: sum, mean, amax, amin, argmax; and cumsum.

A sum over a split dim is pending, and a mean divides by the count of the whole; a maximum is
combined within the operator, since no sum over ranks means it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from shardlang.ops.code import RT, Code, around, infix, method
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, Total, declare
from shardlang.ops.factors import Factors, marked, quoted, require, sized
from shardlang.ops.python_text import tuple_text
from shardlang.ops.rule import DimFactors, Split, Statistics
from shardlang.ops.saved_activations import LocalOp, Residuals, elements, nothing, size
from shardlang.ops.site import OpSite
from shardlang.ops.texts import TORCH_DTYPES, cut, dims_text, factors_of, group_text, offset_text
from shardlang.types.dim import TensorType, Term, low, term_size, term_text

_OVER = Param("over", "dims", None)
_X = Param("x", "tensor")


def positions(site: CallSite, terms: Sequence[Term] | None) -> tuple[int, ...]:
    """Positions of the dims of `over` in the first operand, ascending (None: all)."""
    type = site.operands[0]
    if terms is None:
        return tuple(range(len(type.dims)))
    found: list[int] = []
    for term in terms:
        there = [i for i, t in enumerate(type.dims) if t == term and t]
        if len(there) > 1:
            _refuse_ambiguous(site, term, there[-1])
        at = there[0] if there else -1
        if at < 0 or at in found:
            what = "twice" if at >= 0 else f", which is no dim of {quoted(site.names[0])}"
            site.refuse("SH286", f"`{site.operator.name}` is over `{term_text(term)}` {what}".replace(" ,", ","),
                        f"its dims are {_listed(type)}", 0)  # fmt: skip
        found.append(at)
    return tuple(sorted(found))


def _refuse_ambiguous(site: CallSite, term: Term, last: int) -> NoReturn:
    """SH286 for a dim that the operand has twice, as the scores of a sequence with itself do."""
    type, name, dim = site.operands[0], site.names[0], term_text(term)
    kept = ", ".join("other" if at == last else term_text(t) or "1" for at, t in enumerate(type.dims))
    site.refuse("SH286", f"`{site.operator.name}` is over `{dim}`, which {quoted(name)} has twice",
                f"declare `dim other = {dim}`, and say which it is: "
                f"`relabel({name if name.isidentifier() else 'x'} -> [{kept}])`", 0)  # fmt: skip


def _listed(type: TensorType) -> str:
    return ", ".join(f"`{term_text(t)}`" for t in type.dims if t) or "none: it is a single number"


def single_position(site: CallSite, terms: Sequence[Term] | None) -> int:
    """As `positions`, for an operator over exactly one dim."""
    if terms is None or len(terms) != 1:
        site.refuse("SH286", f"`{site.operator.name}` is over one dim",
                    f"`over = {next((term_text(t) for t in site.operands[0].dims if t), 'd')}`, say", 0)  # fmt: skip
    return positions(site, terms)[0]


def _reduce(
    site: CallSite, dims: tuple[int, ...], dtype: str, split: Split, through: bool, statistics: Statistics = ((), ())
) -> Inference:
    type = site.operands[0]
    gone = [type.dims[d] for d in dims]
    factors = Factors(marked(gone, split, statistics) if split is not Split.FREE else None)
    operand = factors.dims(type.dims)
    kept = [d for d in range(len(type.dims)) if d not in dims]
    rule = factors.rule((operand,), (tuple(operand[d] for d in kept),), ((0,),) if through else ())
    return Inference((TensorType(dtype, tuple(type.dims[d] for d in kept)),), rule, {"dims": dims})


# --- sum, mean ---------------------------------------------------------------


def _infer_linear(otherwise: str) -> Callable[[CallSite], Inference]:
    """`otherwise`: the result's element type if the operand is not floating; "" for the run's."""

    def infer(site: CallSite) -> Inference:
        dims, type = positions(site, site.static["over"]), site.operands[0]
        dtype = type.dtype if type.floating else otherwise or site.floating
        return _reduce(site, dims, dtype, Split.FREE, type.dtype != "bool")

    return infer


def _method(site: OpSite, name: str, text: str) -> Code:
    """`x.sum()` over all dims, else `x.sum(1)`."""
    dims = site.attrs["dims"]
    if not site.operand_shapes[0]:
        return around("", text)
    every = len(dims) == len(site.operand_shapes[0])
    return method(text, name, *([] if every else [dims_text(dims)]))


def _floating_text(site: OpSite) -> str:
    text, to = site.operands[0], "double" if site.result_types[0].dtype == "f64" else "float"
    return text if site.operand_types[0].floating else method(text, to)


def _emit_mean(site: OpSite) -> Code:
    dims = site.attrs["dims"]
    if not cut(site, 0, dims):
        return _method(site, "mean", _floating_text(site))
    count = math.prod(site.operand_types[0].shape[d] for d in dims)
    return infix("/", _method(site, "sum", _floating_text(site)), count)


def tally_text(site: OpSite, items: str, at: int = 0, mask: str = "", once: str = "") -> Code:
    """`rt.tally(...)`: sum and count of `items`, laid out as operand `at`, without the rows past
    `site.rows`.

    mask: which items count; once: the condition under which this rank counts them at all."""
    counted = counted_rows(site, at)
    extra = {name: text for name, text in (("mask", mask), ("once", once)) if text}
    if counted is None:
        return RT("tally", items, **extra)
    dim, factors, rows = counted
    return RT("tally", items, dim, offset_text(site, factors), rows, **extra)


def counted_rows(site: OpSite, at: int) -> tuple[int, DimFactors, str] | None:
    """The dim of the batch in operand `at`, with its factors, and how many of its rows count; None
    where all do."""
    found = [(d, factors) for d, factors in enumerate(site.rule.operands[at]) if site.batch in factors]
    if site.batch < 0 or not found or not site.rows:
        return None
    dim, factors = found[0]
    inner = math.prod(site.rule.factors[f].size for f in factors[factors.index(site.batch) + 1 :])
    return dim, factors, site.rows if inner == 1 else infix("*", site.rows, inner)


def _accumulate(site: OpSite) -> Code:
    return tally_text(site, site.operands[0])


declare("sum", (_X, _OVER), _infer_linear("i64"), lambda site: _method(site, "sum", site.operands[0]),
        "The sum over the dims `over`, or over all. For whole numbers and bool it is i64.", reduces=Total.SUM,
        example="(x: [batch, seq, d]) -> [batch, d] { sum(x, over = seq) }", accumulate=_accumulate,
        saved=nothing, precision=Precision.SUM)  # fmt: skip
declare("mean", (_X, _OVER), _infer_linear(""), _emit_mean,
        "The mean over the dims `over`, or over all, of all ranks.", reduces=Total.MEAN,
        example="(x: [batch, seq, d]) -> [batch, d] { mean(x, over = seq) }", accumulate=_accumulate,
        saved=nothing, precision=Precision.SUM)  # fmt: skip


# --- logsumexp, var ---------------------------------------------------------


def _infer_logsumexp(site: CallSite) -> Inference:
    found = _infer_extremum(site)
    require(site, 0, "floating")
    return found


def _infer_var(site: CallSite) -> Inference:
    found, correction = _infer_logsumexp(site), site.static["correction"]
    type = site.operands[0]
    sizes = [term_size(type.dims[d]) for d in found.attrs["dims"]]
    count = math.prod(size or 0 for size in sizes)
    if None not in sizes and not 0 <= correction < count:
        site.refuse("SH293", f"`var` divides by {count} elements less {correction}",
                    "`correction = 0` divides by how many elements there are", 0)  # fmt: skip
    return Inference(found.results, found.rule, {**found.attrs, "correction": correction})


def _saved_logsumexp(local: LocalOp) -> Residuals:
    return Residuals((0,), (0,)) if local.operands[0] else Residuals()


def _saved_var(local: LocalOp) -> Residuals:
    """Over a split dim the mean too."""
    shared = local.shares(local.attrs["dims"])
    return Residuals((0,), more=size(local.results[0], local.operand_types[0].dtype) if shared else 0)


def _over_all(site: OpSite) -> tuple[str, str]:
    """The dims as an argument, and the group that shares them."""
    dims = site.attrs["dims"]
    return tuple_text(dims), group_text(site, factors_of(site.rule.operands[0][d] for d in dims))


def _emit_logsumexp(site: OpSite) -> Code:
    dims, group = _over_all(site)
    if group:
        return RT("logsumexp", site.operands[0], dims, group)
    return method(site.operands[0], "logsumexp", dims) if site.operand_shapes[0] else around("", site.operands[0])


def _emit_var(site: OpSite) -> Code:
    (dims, group), correction = _over_all(site), site.attrs["correction"]
    if not group:
        return method(site.operands[0], "var", dims, **({} if correction == 1 else {"correction": correction}))
    count = math.prod(site.operand_types[0].shape[d] for d in site.attrs["dims"])
    return RT("var", site.operands[0], dims, group, count, **({} if correction == 1 else {"correction": correction}))


declare("logsumexp", (_X, _OVER), _infer_logsumexp, _emit_logsumexp,
        "The logarithm of the sum of exp(x) over the dims `over`, or over all.",
        example="(x: [batch, seq, d]) -> [batch, d] { logsumexp(x, over = seq) }", saved=_saved_logsumexp)  # fmt: skip
declare("var", (_X, _OVER, Param("correction", "int", 1)), _infer_var, _emit_var,
        "The sum of the squared distances from the mean over n - correction, over the dims `over`, or over all.",
        example="(x: [batch, seq, d]) -> [batch, d] { var(x, over = seq) }", saved=_saved_var)  # fmt: skip


# --- maxima ------------------------------------------------------------------


def _infer_extremum(site: CallSite) -> Inference:
    dims = positions(site, site.static["over"])
    return _reduce(site, dims, site.operands[0].dtype, Split.INSIDE, False, ((1, 1), ()))


def _saved_extremum(local: LocalOp) -> Residuals:
    """The positions of the greatest elements; over a split dim which are, and how many."""
    if not local.shares(local.attrs["dims"]):
        return Residuals((0,), (0,))
    return Residuals(more=elements(local.operands[0]) + size(local.results[0], local.operand_types[0].dtype))


def _extremum(name: str, doc: str) -> None:
    def emit(site: OpSite) -> Code:
        dims = site.attrs["dims"]
        group = group_text(site, factors_of(site.rule.operands[0][d] for d in dims))
        if group:
            return RT(name, site.operands[0], dims_text(dims) if dims else (), group)
        return _method(site, name, site.operands[0])

    example = f"(x: [batch, seq, d]) -> [batch, d] {{ {name}(x, over = seq) }}"
    declare(name, (_X, _OVER), _infer_extremum, emit, doc, example=example, saved=_saved_extremum,
            precision=Precision.GIVEN)  # fmt: skip


_extremum("amax", "The greatest value over the dims `over`, or over all; equal ones share the gradient.")
_extremum("amin", "The least value over the dims `over`, or over all; equal ones share the gradient.")


def _infer_argmax(site: CallSite) -> Inference:
    dim = single_position(site, site.static["over"])
    return _reduce(site, (dim,), "i64", Split.INSIDE, False, ((1, 1), ()))


def _emit_argmax(site: OpSite) -> Code:
    dim = site.attrs["dims"][0]
    factors = site.rule.operands[0][dim]
    group = group_text(site, factors)
    if group:
        return RT("argmax", site.operands[0], dim, group, start=offset_text(site, factors))
    if site.operand_types[0].dtype == "bool":  # torch's own takes none
        return RT("argmax", site.operands[0], dim)
    return method(site.operands[0], "argmax", dim)


declare(
    "argmax", (_X, Param("over", "dims")), _infer_argmax, _emit_argmax,
    "The index of the greatest value over one dim, the first of equal ones; true is greater than false.",
    differentiable=False, places=lambda attrs: attrs["dims"][0],
    example="(x: [..., classes]) -> i64[...] { argmax(x, over = classes) }", precision=Precision.GIVEN,
)  # fmt: skip


def _infer_top_k(site: CallSite) -> Inference:
    dim, many = single_position(site, (site.static["over"],)), site.static["k"]
    require(site, 0, "number")
    type = site.operands[0]
    size, count = term_size(type.dims[dim]), term_size(many)
    if size is not None and count is not None and count > size:
        help = "`k` is at most the size of the dim"
        site.refuse("SH293", f"`top_k` takes {count} of {sized(type.dims[dim])}", help, 0)
    factors = Factors(marked([type.dims[dim]], Split.WHOLE))
    dims = factors.dims(type.dims)
    result = (*dims[:dim], factors.alone(many), *dims[dim + 1 :])
    found = TensorType("i64", (*type.dims[:dim], many, *type.dims[dim + 1 :]))
    return Inference((found,), factors.rule((dims,), (result,)), {"dim": dim, "k": count or 1})


declare(
    "top_k", (_X, Param("k", "newdim"), Param("over", "dim")), _infer_top_k,
    lambda site: RT("top_k", site.operands[0], site.attrs["k"], site.attrs["dim"]),
    "The indices of the k greatest values over a dim, the greatest first and of equal ones the first.",
    differentiable=False, precision=Precision.GIVEN, places=lambda attrs: attrs["dim"],
    example="(x: [batch, experts]) -> i64[batch, 2] { top_k(x, 2, over = experts) }",
)  # fmt: skip


# --- cumsum ------------------------------------------------------------------


def _infer_cumsum(site: CallSite) -> Inference:
    dim = single_position(site, site.static["over"])
    type = site.operands[0]
    factors = Factors(marked([type.dims[dim]], Split.WHOLE))
    dims = factors.dims(type.dims)
    dtype = type.dtype if type.floating else "i64"
    return Inference((TensorType(dtype, type.dims),), factors.rule((dims,), (dims,), ((0,),)), {"dims": (dim,)})


def _emit_cumsum(site: OpSite) -> Code:
    dim, dtype = site.attrs["dims"][0], site.operand_types[0].dtype
    if not low(dtype):
        return method(site.operands[0], "cumsum", dim)
    wide = method(site.operands[0], "cumsum", dim, dtype=TORCH_DTYPES["f32"])  # devices would add up in the low type
    return method(wide, "to", TORCH_DTYPES[dtype])


declare(
    "cumsum",
    (_X, Param("over", "dims")),
    _infer_cumsum,
    _emit_cumsum,
    "The running sum along one dim.",
    example="(x: [batch, seq]) -> [batch, seq] { cumsum(x, over = seq) }",
    saved=nothing,
    precision=Precision.INSIDE,
)
