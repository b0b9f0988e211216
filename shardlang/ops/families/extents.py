"""Operators that repeat or place elements along dims: expand."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.ops.code import Code, around, method
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, no_arrow, quoted, sized, twice
from shardlang.ops.rule import FactorRule
from shardlang.ops.saved_activations import Aliasing, Local, nothing, own, rearranged
from shardlang.ops.site import OpSite
from shardlang.types.dim import TensorType, Term

_X = Param("x", "tensor")


def _infer_expand(site: CallSite) -> Inference | None:
    type = site.operands[0]
    if site.arrow is None:
        no_arrow(site)
        return None
    if twice(site, site.arrow):
        return None
    lost = _lost(site, type.dims, site.arrow)
    if lost is not None:
        site.sink.report(
            "SH284", f"`expand` keeps every dim in its order: {sized(lost)} of {quoted(site.names[0])} is not there",
            site.span, labels=[(site.spans[0], str(type))],
            help="`rearrange` permutes, splits and merges dims; `expand` repeats all along the dims that it adds",
        )  # fmt: skip
        return None
    after = tuple(site.dims.resolve(t) for t in site.arrow)
    before = [t if t in after else () for t in map(site.dims.resolve, type.dims)]
    factors = Factors()
    results = factors.dims(after)
    rule = factors.rule((factors.dims(before),), (results,), ((0,),))
    return Inference((TensorType(type.dtype, after),), rule)


def _lost(site: CallSite, before: Sequence[Term], after: Sequence[Term]) -> Term | None:
    """The last dim of several elements that the result lacks behind those before it; numbers become
    the dims that they meet, from the right."""
    rest = list(after)
    for term in reversed([t for t in before if t]):
        at = next((i for i in reversed(range(len(rest))) if _one(site, term, rest[i])), None)
        if at is not None:
            del rest[at:]
        elif any(d.size != 1 for d in term):
            return term
    return None


def _one(site: CallSite, before: Term, after: Term) -> bool:
    return bool(after) and (before == after or site.dims.same(before, after))


def _repeats(rule: FactorRule) -> bool:
    """Whether the result has a dim of several elements that the operand lacks."""
    lacked = {f for dim in rule.results[0] for f in dim} - {f for dim in rule.operands[0] for f in dim}
    return any(rule.factors[f].size > 1 for f in lacked)


def _emit_expand(site: OpSite) -> Code:
    had, dims, sizes = set(site.rule.operands[0]), site.rule.results[0], site.result_shapes[0]
    x = around("", site.operands[0], primary=True)
    if not _repeats(site.rule):
        return x if site.operand_shapes[0] == sizes else method(x, "reshape", *sizes)
    shape = tuple(size if dim in had else 1 for dim, size in zip(dims, sizes, strict=True))
    first = next((at for at, dim in enumerate(dims) if dim in had), len(dims))
    if site.operand_shapes[0] not in (shape, shape[first:]):
        x = method(x, "reshape", *(shape[first:] or shape))
    return method(x, "repeat", *(1 if dim in had else size for dim, size in zip(dims, sizes, strict=True)))


def _aliasing_expand(local: Local) -> Aliasing:
    return own(local) if _repeats(local.rule) else rearranged(local)


declare("expand", (_X,), _infer_expand, _emit_expand,
        "The same value along further dims, by name: dims of x keep their order, and a literal 1 is left out or added.",
        example="(token: [1, d], x: [batch, 1, d]) -> [batch, 1, d] { x + expand(token -> [batch, 1, d]) }",
        saved=nothing, aliasing=_aliasing_expand, moves=True, precision=Precision.GIVEN)  # fmt: skip
