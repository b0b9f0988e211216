"""attention, fused; and rotary, which turns the pairs of a head by angles that grow with their
place.

Batch, heads and the queries' places split freely; a rank needs the keys and values of all places,
so they are gathered over an axis that cuts the queries' sequence, or sent round a ring."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardlang.ops.code import RT, Code, F
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, marked, quoted, require, same_dims, sized
from shardlang.ops.families.normalisations import report_shape
from shardlang.ops.families.reductions import single_position
from shardlang.ops.rule import HALVES, RING, DimFactors, FactorRule, Split, factor_rule
from shardlang.ops.saved_activations import Aliasing, Local, Saved, elements, nothing, own, size
from shardlang.ops.site import OpSite
from shardlang.ops.streams import Streams, in_kernels
from shardlang.ops.texts import group_text, offset_text
from shardlang.ops.working_memory import Work
from shardlang.types.dim import BYTES, TensorType, Term, term_size, term_text


def _infer_attention(site: CallSite) -> Inference | None:
    if not all(require(site, at, "floating") for at in range(3)) or not _ranks(site):
        return None
    q, k, v = (t.dims for t in site.operands[:3])
    lead = q[:-3]
    if not _fits(site, 1, (*lead, *k[len(lead) : -1], q[-1])):
        return None
    if not _fits(site, 2, (*k[:-1], v[-1])) or not _heads(site, q, k) or not _causal(site, q[-2], k[-2]):
        return None
    keep = site.operands[3] if len(site.operands) > 3 else None
    if keep is not None and not (require(site, 3, "bool") and _fits(site, 3, (*lead, k[-2]))):
        return None
    q, k, v = (tuple(map(site.dims.resolve, dims)) for dims in (q, k, v))
    rule = _attention_rule(q, k, v, keep is not None)
    attrs = {"causal": site.static["causal"], "scale": site.static["scale"], "keep": keep is not None}
    return Inference((TensorType(site.operands[0].dtype, (*q[:-1], v[-1])),), rule, attrs)


def _ranks(site: CallSite) -> bool:
    """Whether q, k and v have as many dims, at least two; else SH287."""
    ranks = [len(t.dims) for t in site.operands[:3]]
    if len(set(ranks)) == 1 and ranks[0] >= 2:
        return True
    at = next((i for i, r in enumerate(ranks) if r < 2 or r != ranks[0]), 0)
    site.sink.report(
        "SH287", f"`attention` needs [..., heads, seq, width] three times, and {quoted(site.names[at])} is "
        f"{site.operands[at]}", site.spans[at],
        labels=[(site.spans[0], str(site.operands[0]))] if at else [],
        help="`rearrange(q -> [batch, heads, seq, head_dim])` takes the heads apart and puts them before the sequence",
    )  # fmt: skip
    return False


def _fits(site: CallSite, at: int, wanted: Sequence[Term]) -> bool:
    if same_dims(site, site.operands[at].dims, wanted):
        return True
    report_shape(site, at, wanted)
    return False


def _heads(site: CallSite, q: Sequence[Term], k: Sequence[Term]) -> bool:
    """Whether q's heads are a whole multiple of those of the keys; else SH295."""
    if len(q) < 3 or q[-3] == k[-3]:
        return True
    many, few = term_size(q[-3]), term_size(k[-3])
    if few == 1 or many is None or few is None or many % few == 0:
        return True
    site.sink.report(
        "SH295", f"`attention` groups the heads of {quoted(site.names[0])} by those of {quoted(site.names[1])}: "
        f"{sized(q[-3])} is no multiple of {sized(k[-3])}", site.span,
        labels=[(site.spans[0], str(site.operands[0])), (site.spans[1], str(site.operands[1]))],
        help=f"{many} heads can share 1 to {many} heads of keys that divide {many}",
    )  # fmt: skip
    return False


def _causal(site: CallSite, queries: Term, keys: Term) -> bool:
    """Whether places can be compared, where only earlier ones may be seen; else SH293."""
    many, few = term_size(queries), term_size(keys)
    if not site.static["causal"] or queries == keys or many is None or few is None or many == few:
        return True
    site.sink.report(
        "SH293", f"causal attention compares places of one sequence: {sized(queries)} meets {sized(keys)}", site.span,
        labels=[(site.spans[0], str(site.operands[0])), (site.spans[1], str(site.operands[1]))],
        help="`causal = false` lets each query see all keys",
    )  # fmt: skip
    return False


def _attention_rule(q: Sequence[Term], k: Sequence[Term], v: Sequence[Term], keep: bool) -> FactorRule:
    """Heads of q are (heads of k, heads that share one of those), major first. Keys' places and the
    width that is summed over stay whole; the width of v, another factor, does not."""
    factors = Factors()
    lead = factors.dims(q[:-3])
    few: tuple[DimFactors, ...] = factors.dims(k[-3:-2])
    many = few if q[-3:-2] == k[-3:-2] else ((*few[0], *_sharing(factors, q[-3], k[-3])),)
    queries = factors.alone(q[-2], Split.FREE)
    keys, inner, outer = factors.alone(k[-2]), factors.alone(q[-1]), factors.alone(v[-1], Split.FREE)
    operands = [(*lead, *many, queries, inner), (*lead, *few, keys, inner), (*lead, *few, keys, outer)]
    if keep:
        operands.append((*lead, keys))
    # A weighted mean of v is linear in it, with the weights the same on all ranks.
    return factors.rule(operands, ((*lead, *many, queries, outer),), ((2,),))


def _sharing(factors: Factors, many: Term, few: Term) -> DimFactors:
    """The factor of the heads that share one head of keys; none where each has its own."""
    if many[: len(few)] == few and few:
        return factors.term(many[len(few) :])
    size = (term_size(many) or 1) // (term_size(few) or 1)
    return () if size == 1 else factors.group(many, size)


def _attention_flops(rule: FactorRule, attrs: Mapping[str, Any]) -> int:
    """Two products, each of every query with every key that it sees: over q's width, and for each
    of v's."""
    (*_, asking, inner), (*_, keys, _), (*_, outer) = rule.operands[:3]
    queries, seen, *both = (math.prod(rule.factors[f].size for f in dims) for dims in (asking, keys, inner, outer))
    rest = math.prod(f.size for i, f in enumerate(rule.factors) if i not in (*asking, *keys, *inner, *outer))
    pairs = queries * seen - (queries * (queries - 1) // 2 if attrs["causal"] else 0)
    return 2 * rest * pairs * sum(both)


def _exchanging(rule: FactorRule, attrs: Mapping[str, Any], ring: bool) -> FactorRule:
    """The rule of an attention that, where queries and keys are cut alike, sends keys and values
    round a ring, and where it is causal exchanges halves of the queries; the same rule if neither.
    """
    marks = {rule.operands[1][-2]: RING} if ring else {}
    marks |= {rule.operands[0][-2]: HALVES} if attrs["causal"] else {}
    factors = [replace(f, exchanged=marks.get((at,), "")) for at, f in enumerate(rule.factors)]
    return factor_rule(tuple(factors), rule.operands, rule.results, rule.through)


def _exchanges(rule: FactorRule, at: int, cut: Sequence[object]) -> bool:
    """Whether the places of operand `at` are exchanged. cut: per factor, whether it is."""
    return any(rule.factors[f].exchanged and cut[f] for f in rule.operands[at][-2])


def _emit_attention(site: OpSite) -> Code:
    q, k, v, *keep = site.operands
    scale = {"scale": site.attrs["scale"]} if site.attrs["scale"] is not None else {}
    causal, queries = site.attrs["causal"], site.rule.operands[0][-2]
    start = offset_text(site, queries) if causal else "0"
    cut = causal and site.operand_shapes[0][-2] != site.operand_types[1].shape[-2]
    kept = {"keep": keep[0]} if keep else {}
    if _exchanges(site.rule, 1, site.axes):
        group = group_text(site, site.rule.operands[1][-2])
        return RT("ring_attention", q, k, v, group, **kept, **({"causal": True} if causal else {}), **scale)
    if _exchanges(site.rule, 0, site.axes):
        return RT("even_attention", q, k, v, group_text(site, queries), **kept, **scale)
    q_shape, k_shape, v_shape = site.operand_shapes[:3]
    plain = len(q_shape) == 4 and q_shape[-3] == k_shape[-3] and q_shape[-1] == v_shape[-1]
    if plain and not keep and not cut:
        return F("scaled_dot_product_attention", q, k, v, **({"is_causal": True} if causal else {}), **scale)
    options = {**kept, **({"causal": True} if causal else {}), **scale}
    return RT("attention", q, k, v, **options, **({"start": start} if start != "0" else {}))


def _saved_attention(local: Local) -> Saved:
    """Queries, keys, values and result as one kernel keeps them, with a number for each query and
    head, but copies of what is exchanged, and of what is narrower than others; a ring has gathered
    `keep`."""
    q, k, v, *keep = local.operands
    dtype = local.operand_types[0].dtype
    ring, even = (_exchanges(local.rule, at, local.cut) for at in (1, 0))
    wide, more, kept = max(q[-1], v[-1]), 0, []
    for at, (x, copied) in enumerate(((q, even), (k, even and ring), (v, even and ring))):
        if copied or x[-1] < wide:
            more += elements(x[:-1]) * wide
        else:
            kept.append(at)
    own = even or v[-1] < wide
    made = size((more + (elements(q[:-1]) * wide if own else 0),), dtype)
    # The logarithms of the sums are in f32 at least.
    made += size(q[:-1], "f64" if dtype == "f64" else "f32")
    if keep and ring:
        made += size((*keep[0][:-1], local.operand_types[3].shape[-1]), "bool")
    return Saved((*kept, *([3] if keep and not ring else ())), () if own else (0,), made)


def _aliasing(local: Local) -> Aliasing:
    """The kernel's result has its dims in memory as its queries have them, if these lie in rows;
    what is exchanged has not."""
    rows = local.order[-1:] == (len(local.order) - 1,)
    kernel = rows and local.operands[0][-1] == local.operands[2][-1] and not _exchanges(local.rule, 0, local.cut)
    return Aliasing(False, local.order) if kernel else own(local)


declare(
    "attention",
    (
        Param("q", "tensor"),
        Param("k", "tensor"),
        Param("v", "tensor"),
        Param("keep", "tensor", None),
        Param("causal", "bool", False),
        Param("scale", "number", None),
    ),
    _infer_attention,
    _emit_attention,
    "The mean of the values for each query, weighted by softmax(q k' * scale) over the keys; `scale` is 1 / "
    "sqrt(width) by default. Heads of q share those of k and v in groups. With `causal` a query sees no key of a "
    "later position; keys where `keep` is false are never seen. A query that sees no key gives 0.",
    _attention_flops,
    example="(q: [batch, heads, seq, width], k: [batch, heads, keys, width], v: [batch, heads, keys, out], "
    "keep: bool[batch, keys]) -> [batch, heads, seq, out] { attention(q, k, v, keep) }",
    saved=_saved_attention,
    aliasing=_aliasing,
    precision=Precision.LOW,
    exchanging=_exchanging,
)


# --- rotary ------------------------------------------------------------------


def _infer_rotary(site: CallSite) -> Inference | None:
    if not require(site, 0, "floating"):
        return None
    over, along = (single_position(site, (site.static[name],)) for name in ("over", "along"))
    if over is None or along is None:
        return None
    type, base = site.operands[0], site.static["base"]
    width = term_size(type.dims[over])
    if over == along or base <= 0 or (width is not None and width % 2):
        _report_rotary(site, over, along)
        return None
    factors = Factors(marked([type.dims[over]], Split.WHOLE))
    dims = factors.dims(type.dims)
    return Inference((type,), factors.rule((dims,), (dims,), ((0,),)), {"over": over, "along": along, "base": base})


def _report_rotary(site: CallSite, over: int, along: int) -> None:
    term, base = site.operands[0].dims[over], site.static["base"]
    if over == along:
        fact, help = (
            f"`rotary` is over and along `{term_text(term)}`",
            "it turns pairs over one dim, by places along another",
        )
    elif base <= 0:
        fact, help = f"`base` is {base:g}, and angles are its powers", "`base = 10000.0` is usual"
    else:
        fact, help = f"`rotary` turns pairs, and {sized(term)} is odd", f"make `{term_text(term)}` even"
    site.sink.report("SH293", fact, site.span, labels=[(site.spans[0], str(site.operands[0]))], help=help)


def _work_rotary(local: Local) -> Work:
    """Products of halves of x, in f32 at least, that make a result of the same size; what is
    narrower is made wide first."""
    narrow = BYTES[local.operand_types[0].dtype] < BYTES["f32"]
    wide = elements(local.operands[0]) * max(BYTES["f32"], BYTES[local.operand_types[0].dtype])
    return Work((2 + narrow) * wide, (2 + narrow) * wide)


def _streams_rotary(local: Local) -> Streams:
    """Four products of halves, two sums, and both put together; back as many. A narrow
    x is made wide first, and narrow in the end."""
    narrow = BYTES[local.operand_types[0].dtype] < BYTES["f32"]
    way = (5 + 1.5 * narrow, 4 + 1.5 * narrow, 7 + 2 * narrow)
    return in_kernels(way, way, "f32")(local)


def _emit_rotary(site: OpSite) -> Code:
    start = offset_text(site, site.rule.operands[0][site.attrs["along"]])
    parts = [site.operands[0], *(site.attrs[name] for name in ("over", "along", "base"))]
    return RT("rotary", *parts, **({"start": start} if start != "0" else {}))


declare(
    "rotary",
    (Param("x", "tensor"), Param("over", "dim"), Param("along", "dim"), Param("base", "number", 10000.0)),
    _infer_rotary,
    _emit_rotary,
    "Turns each pair (i, i + n/2) of the n elements over a dim by position * base ** (-2 i / n), as Llama does. "
    "The position is the index along another dim.",
    example="(x: [batch, heads, seq, head_dim]) -> [batch, heads, seq, head_dim] "
    "{ rotary(x, over = head_dim, along = seq) }",
    saved=nothing,
    work=_work_rotary,
    streams=_streams_rotary,
    precision=Precision.GIVEN,
)
