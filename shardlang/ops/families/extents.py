"""Operators that repeat or place elements along dims: expand, flip, roll, stack, pad."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.ops.code import TORCH, Code, F, around, joined, method
from shardlang.ops.declaration import Arrow, CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, arrow_of, marked, quoted, refuse_twice, same_dims, sized
from shardlang.ops.families.reductions import positions, single_position
from shardlang.ops.rule import FactorRule, Split
from shardlang.ops.saved_activations import Aliasing, LocalOp, nothing, own, rearranged
from shardlang.ops.site import OpSite
from shardlang.ops.texts import dims_text
from shardlang.ops.working_memory import parts
from shardlang.types.dim import TensorType, Term, term_size

_X = Param("x", "tensor")
STACK = "stack"
_NAMESAKES = (
    "a dim that a layer declares is its own, whatever its name: declare it in the file and give it to the layers, "
    "or take the `sum` or `mean` in the layer"
)


def _infer_expand(site: CallSite) -> Inference:
    type = site.operands[0]
    arrow = arrow_of(site)
    refuse_twice(site, arrow)
    lost = _lost(site, type.dims, arrow)
    if lost is not None:
        fact = f"`expand` keeps every dim in its order: {sized(lost)} of {quoted(site.names[0])} is not there"
        help = "`rearrange` permutes, splits and merges dims; `expand` repeats all along the dims that it adds"
        site.refuse("SH284", fact, help, 0)
    after = tuple(site.dims.resolve(t) for t in arrow)
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


def _aliasing_expand(local: LocalOp) -> Aliasing:
    return own(local) if _repeats(local.rule) else rearranged(local)


declare("expand", (_X,), _infer_expand, _emit_expand,
        "The same value along further dims, by name: dims of x keep their order, and a literal 1 is left out or added.",
        example="(token: [1, d], x: [batch, 1, d]) -> [batch, 1, d] { x + expand(token -> [batch, 1, d]) }",
        in_torch=None, arrow=Arrow.DIMS, saved=nothing, aliasing=_aliasing_expand, moves=True,
        precision=Precision.GIVEN)  # fmt: skip


# --- flip, roll ----------------------------------------------------------------


def _moved(site: CallSite, dims: tuple[int, ...]) -> Inference:
    """Elements change places along dims, which no rule may split."""
    type = site.operands[0]
    factors = Factors(marked([type.dims[d] for d in dims], Split.WHOLE))
    places = factors.dims(type.dims)
    attrs = {"dims": dims, **{name: site.static[name] for name in ("shift",) if name in site.static}}
    return Inference((type,), factors.rule((places,), (places,), ((0,),)), attrs)


declare("flip", (_X, Param("over", "dims")), lambda site: _moved(site, positions(site, site.static["over"])),
        lambda site: method(site.operands[0], "flip", dims_text(site.attrs["dims"])),
        "The elements along the dims `over` in the opposite order.",
        example="(x: [batch, seq]) -> [batch, seq] { flip(x, over = seq) }",
        saved=nothing, moves=True, precision=Precision.GIVEN)  # fmt: skip
declare("roll", (_X, Param("over", "dim"), Param("shift", "int")),
        lambda site: _moved(site, (single_position(site, (site.static["over"],)),)),
        lambda site: method(site.operands[0], "roll", site.attrs["shift"], site.attrs["dims"][0]),
        "The elements along a dim `shift` places on; the last come first.",
        example="(x: [batch, seq]) -> [batch, seq] { roll(x, over = seq, shift = 1) }",
        saved=nothing, moves=True, precision=Precision.GIVEN)  # fmt: skip


# --- stack ---------------------------------------------------------------------


def _infer_stack(site: CallSite) -> Inference:
    first, over = site.operands[0], site.static["over"]
    for at, type in enumerate(site.operands):
        if type.dtype != first.dtype or not same_dims(site, type.dims, first.dims):
            names = f"{quoted(site.names[0])} is {first}, {quoted(site.names[at])} is {type}"
            help = _NAMESAKES if str(first) == str(type) else "`concat` is along a dim in which values may differ"
            shown = (0, at) if site.spans[0] != site.spans[at] else ()
            site.refuse("SH292", f"`stack` needs all dims alike: {names}", help, *shown)
    size = term_size(over)
    if size is not None and size != len(site.operands):
        site.refuse("SH292", f"`stack` makes a dim of {len(site.operands)}, and {sized(over)} is none",
                    f"`over = {len(site.operands)}`, or a dim of that size")  # fmt: skip
    dims = (over, *map(site.dims.resolve, first.dims))
    if any(dim in term for dim in over for term in dims[1:]):
        refuse_twice(site, dims)
    factors = Factors()
    (mine,) = factors.by_place([dims[1:]])
    count = len(site.operands)
    rule = factors.rule([mine] * count, ((factors.alone(over), *mine),), (tuple(range(count)),))
    return Inference((TensorType(first.dtype, dims),), rule)


declare(STACK, (Param("operands", "tensors"), Param("over", "newdim")), _infer_stack,
        lambda site: TORCH("stack", joined(site.operands, brackets="[]")),
        "Several values of the same dims one after the other along a new first dim.",
        example="(a: [batch, d], b: [batch, d]) -> [2, batch, d] { stack(a, b, over = 2) }",
        saved=nothing, work=parts, moves=True, precision=Precision.ALIKE)  # fmt: skip


# --- pad -----------------------------------------------------------------------


def _infer_pad(site: CallSite) -> Inference:
    type, value = site.operands[0], site.static["value"]
    factors, dims = Factors(), list(type.dims)
    own: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    pads: dict[int, tuple[int, int]] = {}
    for term, *both in site.static["pads"]:
        at, size = single_position(site, (term,)), term_size(term)
        if min(both) < 0:
            site.refuse("SH293", f"`pad` adds {both[0]} before and {both[1]} behind {sized(term)}",
                        "`slice` takes a part of a dim", 0)  # fmt: skip
        dims[at] = site.dims.fresh(" * ".join(d.name for d in term), None if size is None else size + sum(both))
        own[at], pads[at] = (factors.alone(term), factors.alone(dims[at])), (both[0], both[1])
    before, after = (
        tuple(own[d][side] if d in own else factors.term(t) for d, t in enumerate(terms))
        for side, terms in enumerate((type.dims, dims))
    )
    rule = factors.rule((before,), (after,), ((0,),) if not value else ())
    attrs = {"pads": tuple(sorted(pads.items())), "value": value}
    return Inference((TensorType(type.dtype, tuple(dims)),), rule, attrs)


def _emit_pad(site: OpSite) -> Code:
    """torch names the last dim first."""
    pads, rank = dict(site.attrs["pads"]), len(site.operand_shapes[0])
    given = [n for d in reversed(range(min(pads, default=rank), rank)) for n in pads.get(d, (0, 0))]
    value = site.attrs["value"]
    return F("pad", site.operands[0], tuple(given), **({"value": value} if value else {}))


declare("pad", (_X, Param("pads", "pads"), Param("value", "number", 0)), _infer_pad, _emit_pad,
        "x with `value` before and behind dims, which are new ones in the result.",
        example="(x: [batch, seq]) { pad(x, seq = (1, 2)) }", saved=nothing, precision=Precision.GIVEN)  # fmt: skip
