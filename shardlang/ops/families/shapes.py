"""Operators that move or rename elements: rearrange, relabel, flatten, concat, slice; cast and
detach.

rearrange works by the names of factors alone: split the operand's dims into them, permute, merge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from shardlang.ops.code import TORCH, Code, around, atom, joined, method
from shardlang.ops.declaration import Arrow, CallRefused, CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, arrow_of, namesakes, quoted, refuse_twice, sized, unary_rule
from shardlang.ops.families.reductions import single_position
from shardlang.ops.rule import DimFactors
from shardlang.ops.saved_activations import Aliasing, LocalOp, nothing, own, rearranged, view
from shardlang.ops.site import OpSite
from shardlang.ops.texts import TORCH_DTYPES, local_factor
from shardlang.ops.working_memory import parts, passing
from shardlang.types.dim import BYTES, FLOATS, Dim, TensorType, Term, term_size, term_text

_X = Param("x", "tensor")
_THROUGH = ((0,),)
CAST, SLICE, REARRANGE = "cast", "slice", "rearrange"
DETACH = "detach"


def _typed(dims: Sequence[Term]) -> str:
    return ", ".join(term_text(t) for t in dims)


# --- rearrange ---------------------------------------------------------------


def _infer_rearrange(site: CallSite) -> Inference:
    type = site.operands[0]
    arrow, resolve = arrow_of(site), site.dims.resolve
    _unify_literals(site, type.dims, arrow)
    before, after = [resolve(t) for t in type.dims], [resolve(t) for t in arrow]
    want = [d for t in after for d in t]
    # A dim of one element that the result does not name is no factor: leaving it out loses nothing.
    before = [tuple(d for d in t if d in want or d.size != 1) for t in before]
    have = [d for t in before for d in t]
    if len(want) != len(set(want)) or set(have) != set(want):
        _refuse_rearranged(site, have, want)
    factors = Factors()
    operand = factors.dims(before)
    rule = factors.rule((operand,), (factors.dims(after),), _THROUGH)
    return Inference((TensorType(type.dtype, tuple(after)),), rule)


def _unify_literals(site: CallSite, before: Sequence[Term], after: Sequence[Term]) -> None:
    """Gives dims made from numbers on one side the terms of their size from the other side."""
    left, right = {d for t in before for d in t}, {d for t in after for d in t}
    lone = [t for t in before if t and not set(t) & right]
    for term in [t for t in after if t and not set(t) & left]:
        match = next((t for t in lone if term_size(t) == term_size(term) and site.dims.same(t, term)), None)
        if match is not None:
            lone.remove(match)


def _refuse_rearranged(site: CallSite, have: Sequence[Dim], want: Sequence[Dim]) -> NoReturn:
    twice = [d for d in dict.fromkeys(want) if want.count(d) > 1]
    lost, extra = [d for d in have if d not in want], [d for d in want if d not in have]
    if twice:
        fact = f"the result names {sized((twice[0],))} twice"
    elif lost and extra:
        fact = f"{_names(lost)} of {quoted(site.names[0])} is left out, and {_names(extra)} is none of its dims"
    else:
        missing = f"{_names(extra)} is none of the dims of {quoted(site.names[0])}"
        fact = f"{_names(lost)} is left out" if lost else missing
    help = _without(site, lost[0]) if lost else "a literal 1 adds a dim, of size 1"
    if lost and extra and math.prod(d.size or 0 for d in lost) == math.prod(d.size or 0 for d in extra):
        help = (
            "equal sizes are not the same dims: `relabel` renames a dim, and a dim splits only where it was declared "
        )
        help += "as a product (`heads * head_dim`)"
    site.refuse("SH284", f"`rearrange` keeps every dim: {fact}", help, 0)


def _without(site: CallSite, lost: Dim) -> str:
    """Help for a `rearrange` that leaves out a dim of several elements."""
    x = site.names[0] if site.names[0].isidentifier() else "x"
    name = lost.name
    if not any((lost,) == site.dims.resolve(t) for t in site.operands[0].dims):
        return f"a `rearrange` makes `{name}` a dim of its own first; then `mean(.., over = {name})` removes it"
    return (
        f"`mean({x}, over = {name})` or `sum({x}, over = {name})` removes `{name}`; "
        f"of `slice({x}, {name} = 0..1)` it may be left out, as one element holds all of it"
    )


def _names(dims: Sequence[Dim]) -> str:
    return " and ".join(sized((d,)) for d in dims)


def _emit_rearrange(site: OpSite) -> Code:
    before, after = site.rule.operands[0], site.rule.results[0]
    have, want = [f for t in before for f in t], [f for t in after for f in t]
    text = around("", site.operands[0], primary=True)
    if have == want:
        same = site.operand_shapes[0] == site.result_shapes[0]
        return text if same else method(text, "reshape", *site.result_shapes[0])
    if any(len(t) != 1 for t in before):
        text = method(text, "reshape", *(local_factor(site, f) for f in have))
    order = [have.index(f) for f in want]
    moved = [i for i, o in enumerate(order) if i != o]
    text = method(text, "transpose", *moved) if len(moved) == 2 else method(text, "permute", *order)
    return method(text, "reshape", *site.result_shapes[0]) if any(len(t) != 1 for t in after) else text


declare(REARRANGE, (_X,), _infer_rearrange, _emit_rearrange,
        "The same elements with dims split, permuted and merged, by name.",
        example="(x: [batch, heads, seq, width]) -> [batch, seq, heads * width] "
        "{ rearrange(x -> [batch, seq, heads * width]) }", in_torch=None, arrow=Arrow.DIMS, saved=nothing, work=passing,
        aliasing=rearranged, moves=True,
        precision=Precision.GIVEN)  # fmt: skip


# --- relabel -----------------------------------------------------------------


def _infer_relabel(site: CallSite) -> Inference:
    type, arrow = site.operands[0], arrow_of(site)
    pairs = list(zip(type.dims, arrow, strict=False))
    wrong = [(a, b) for a, b in pairs if term_size(a) != term_size(b) and None not in (term_size(a), term_size(b))]
    if len(type.dims) != len(arrow) or wrong:
        fact = (
            f"{sized(wrong[0][0])} cannot be called {sized(wrong[0][1])}"
            if wrong and len(type.dims) == len(arrow)
            else f"{quoted(site.names[0])} has {len(type.dims)} dims and the result names {len(arrow)}"
        )
        site.refuse("SH285", f"`relabel` renames dims in their places: {fact}",
                    "`rearrange` permutes, splits and merges dims", 0)  # fmt: skip
    refuse_twice(site, arrow)
    factors = Factors()
    lines = [_relabelled(factors, a, b) for a, b in pairs]
    rule = factors.rule((tuple(a for a, _ in lines),), (tuple(b for _, b in lines),), _THROUGH)
    return Inference((TensorType(type.dtype, arrow),), rule)


def _relabelled(factors: Factors, before: Term, after: Term) -> tuple[DimFactors, DimFactors]:
    """The one set of factors of both dims: the finer product's; whole if neither refines."""
    if not before or not after:
        return (), ()
    if len(before) > 1 and len(after) > 1 and [d.size for d in before] != [d.size for d in after]:
        mine = factors.alone(tuple(before))
        return mine, mine
    mine = factors.term(after if len(before) == 1 < len(after) else before)
    return mine, mine


declare("relabel", (_X,), _infer_relabel, lambda site: around("", site.operands[0]),
        "The same tensor with other names for its dims; no data moves.",
        example="(x: [batch, seq, d], y: [batch, keys, d]) -> [batch, keys, d] "
        "{ relabel(x -> [batch, keys, d]) * y }", in_torch=None, arrow=Arrow.NAMES, saved=nothing, work=passing,
        aliasing=view, moves=True,
        precision=Precision.GIVEN)  # fmt: skip


# --- flatten -----------------------------------------------------------------


def _infer_flatten(site: CallSite) -> Inference:
    type = site.operands[0]
    keep = site.static["keep"] or ()
    lead = type.dims[: len(keep)]
    if set(keep) != set(lead):
        merged = _typed([t for t in type.dims if t not in keep]).replace(", ", " * ")
        site.refuse("SH294", f"`flatten` keeps leading dims, and `{_typed(keep)}` does not lead in {type}",
                    f"`rearrange({site.names[0]} -> [{_typed(keep)}, {merged}])`", 0)  # fmt: skip
    merged_term = tuple(d for t in type.dims[len(keep) :] for d in t)
    factors = Factors()
    operand = factors.dims(type.dims)
    dims = (*lead, merged_term)
    return Inference((TensorType(type.dtype, dims),), factors.rule((operand,), (factors.dims(dims),), _THROUGH))


def _emit_flatten(site: OpSite) -> Code:
    kept = len(site.result_shapes[0]) - 1
    return method(site.operands[0], "flatten", *([kept] if kept else []))


declare("flatten", (_X, Param("keep", "dims", None)), _infer_flatten, _emit_flatten,
        "All dims but the leading `keep` merged into one product dim.",
        example="(x: [batch, c, h, w]) -> [batch, c * h * w] { flatten(x, keep = batch) }",
        saved=nothing, work=passing, aliasing=rearranged,
        moves=True, precision=Precision.GIVEN)  # fmt: skip


# --- concat, slice -----------------------------------------------------------


def _infer_concat(site: CallSite) -> Inference:
    first, over = site.operands[0], site.static["over"]
    # In its place the first may have a literal 1.
    at = next((at for type in site.operands for at, t in enumerate(type.dims) if t == over and t), None)
    if at is None or at >= len(first.dims) or first.dims.count(over) > 1:
        single_position(site, (over,))
        raise CallRefused
    for i, type in enumerate(site.operands[1:], 1):
        if not _fits(site, first, type, at):
            names = f"{quoted(site.names[0])} is {first}, {quoted(site.names[i])} is {type}"
            help = namesakes([first, type]) or "only the dim it is over may differ, and it must be in the same place"
            site.refuse("SH292", f"`concat` over `{term_text(over)}` needs all other dims alike: {names}", help, 0, i)
    sizes = [term_size(t.dims[at]) for t in site.operands]
    total = None if None in sizes else sum(s or 0 for s in sizes)
    new = site.dims.fresh(_name(over), total)
    resolve = site.dims.resolve
    factors = Factors()
    operands = [_with(factors, [resolve(d) for d in t.dims], {at: factors.alone(t.dims[at])}) for t in site.operands]
    dims = tuple(new if d == at else resolve(t) for d, t in enumerate(first.dims))
    result = _with(factors, dims, {at: factors.alone(new)})
    rule = factors.rule(operands, (result,), (tuple(range(len(operands))),))
    return Inference((TensorType(first.dtype, dims),), rule, {"dim": at})


def _name(term: Term) -> str:
    """The key of a dim made of another in arguments: its name, also for one made so itself."""
    return " * ".join(d.name for d in term)


def _fits(site: CallSite, first: TensorType, other: TensorType, at: int) -> bool:
    if len(first.dims) != len(other.dims) or first.dtype != other.dtype:
        return False
    pairs = enumerate(zip(first.dims, other.dims, strict=True))
    return all(d == at or a == b or site.dims.same(a, b) for d, (a, b) in pairs)


def _with(factors: Factors, dims: Sequence[Term], own: dict[int, DimFactors]) -> tuple[DimFactors, ...]:
    """Factors of each dim; those in `own` are given."""
    return tuple(own[d] if d in own else factors.term(t) for d, t in enumerate(dims))


declare(
    "concat", (Param("operands", "tensors"), Param("over", "dim")), _infer_concat,
    lambda site: TORCH("cat", joined(site.operands, brackets="[]"), dim=site.attrs["dim"]),
    "Several values one after the other along a dim, which is a new dim in the result; others may have a literal 1 or "
    "another dim in its place.",
    example="(a: [batch, d], b: [batch, e]) { concat(a, b, over = d) }", saved=nothing, work=parts, moves=True,
    precision=Precision.ALIKE,
)  # fmt: skip


def _infer_slice(site: CallSite) -> Inference:
    type = site.operands[0]
    factors = Factors()
    dims = list(type.dims)
    own: dict[int, tuple[DimFactors, DimFactors]] = {}
    ranges: list[tuple[int, int, int, int]] = []
    for term, start, stop, step in site.static["slices"]:
        at, size = single_position(site, (term,)), term_size(term)
        if not 0 <= start < stop or step < 1 or (size is not None and stop > size):
            by = "" if step == 1 else f" by {step}"
            site.refuse("SH291", f"`slice` takes {start}..{stop}{by} of {sized(term)}",
                        f"a range within 0..{size}, its end exclusive", 0)  # fmt: skip
        dims[at] = site.dims.fresh(_name(term), -(-(stop - start) // step))
        own[at] = (factors.alone(term), factors.alone(dims[at]))
        ranges.append((at, start, stop, step))
    operand = _with(factors, type.dims, {at: mine[0] for at, mine in own.items()})
    result = _with(factors, dims, {at: mine[1] for at, mine in own.items()})
    rule = factors.rule((operand,), (result,), _THROUGH)
    return Inference((TensorType(type.dtype, tuple(dims)),), rule, {"ranges": tuple(sorted(ranges))})


def _emit_slice(site: OpSite) -> Code:
    ranges = {at: f"{start}:{stop}{f':{step}' * (step > 1)}" for at, start, stop, step in site.attrs["ranges"]}
    index = [ranges.get(d, ":") for d in range(max(ranges, default=0) + 1)]
    return around("", atom(site.operands[0]), f"[{', '.join(index)}]")


declare(SLICE, (_X, Param("slices", "slices")), _infer_slice, _emit_slice,
        "A range of a dim, its end exclusive, also written `x[d = 0..4]`, or `x[d = 0..8..2]` for each second element; "
        "the dim is a new one in the result.",
        example="(x: [batch, d]) { slice(x, d = 0..4) }", saved=nothing, aliasing=view, moves=True,
        precision=Precision.GIVEN)  # fmt: skip


# --- cast, detach ------------------------------------------------------------


def _infer_cast(site: CallSite) -> Inference:
    type, dtype = site.operands[0], site.static["dtype"]
    # Narrowing the parts of a sum would round each: only a wider type may be pending.
    wider = type.floating and dtype in FLOATS and BYTES[dtype] >= BYTES[type.dtype]
    return Inference((TensorType(dtype, type.dims),), unary_rule(type, wider), {"dtype": dtype})


def _aliasing_cast(local: LocalOp) -> Aliasing:
    return view(local) if local.operand_types[0].dtype == local.result_types[0].dtype else own(local)


declare(
    CAST, (_X, Param("dtype", "dtype")), _infer_cast,
    lambda site: method(site.operands[0], "to", TORCH_DTYPES[site.attrs["dtype"]]),
    "The same values in another element type. A pending sum passes if that type is as wide.",
    example="(x: [..., d]) -> bf16[..., d] { cast(x, bf16) }", saved=nothing, aliasing=_aliasing_cast,
    moves=True, precision=Precision.WRITTEN,
)  # fmt: skip


declare(DETACH, (_X,), lambda site: Inference((site.operands[0],), unary_rule(site.operands[0], True)),
        lambda site: method(site.operands[0], "detach"),
        "The same value, through which no gradient flows.",
        example="(x: [..., d]) -> [..., d] { detach(x) }", differentiable=False, saved=nothing,
        aliasing=view, precision=Precision.GIVEN)  # fmt: skip
