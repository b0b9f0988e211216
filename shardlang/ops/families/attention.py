"""attention, fused.

Batch, heads and the queries' places split freely; a rank needs the keys and values of all places,
so they are gathered over an axis that cuts the queries' sequence, or sent round a ring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardlang.ops.code import RT, Code, F
from shardlang.ops.declaration import CallSite, Inference, Operator, Param, Precision, declaring
from shardlang.ops.factors import Factors, quoted, refuse_shape, require, require_dims, sized
from shardlang.ops.rule import DimFactors, FactorRule, InsideExchange, SentInside, Split, SplitOp, factor_rule
from shardlang.ops.saved_activations import Aliasing, LocalOp, Residuals, elements, own, size
from shardlang.ops.site import OpSite
from shardlang.ops.texts import cut, group_text, key_text, offset_text
from shardlang.ops.working_memory import WorkingMemory
from shardlang.types.dim import BYTES, TensorType, Term, term_size

# The most scores of a rank that are there at one time where the runtime makes them itself: as
# runtime/functions/attention_scores.py has it.
ROOM = 1 << 22
# Tensors besides q, k and v, in their order, each of which may be absent.
_FURTHER = ("keep", "bias", "sinks")


def _infer_attention(site: CallSite) -> Inference:
    for at in range(3):
        require(site, at, "floating")
    _require_ranks(site)
    _require_in_range(site)
    q, k, v = (t.dims for t in site.operands[:3])
    lead = q[:-3]
    require_dims(site, 1, (*lead, *k[len(lead) : -1], q[-1]))
    require_dims(site, 2, (*k[:-1], v[-1]))
    _require_heads(site, q, k)
    _require_one_sequence(site, q[-2], k[-2])
    given = dict(zip(_FURTHER, (*site.operands, None, None, None)[3:6], strict=True))
    _require_further(site, given, q, k[-2])
    q, k, v = (tuple(map(site.dims.resolve, dims)) for dims in (q, k, v))
    rule = _attention_rule(q, k, v, given)
    attrs = {name: site.static[name] for name in ("causal", "scale", "window", "softcap", "p")}
    attrs |= {"given": tuple(name for name, type in given.items() if type is not None)}
    return Inference((TensorType(site.operands[0].dtype, (*q[:-1], v[-1])),), rule, attrs)


def _require_in_range(site: CallSite) -> None:
    """SH293 where a number among the arguments is not possible."""
    window, softcap, p = (site.static[name] for name in ("window", "softcap", "p"))
    fact = help = ""
    if window is not None and window < 1:
        fact, help = f"`window` is {window}", "with `window = 4096` a query sees keys of less than 4096 places away"
    elif softcap is not None and softcap <= 0:
        fact, help = f"`softcap` is {softcap:g}, and scores stay within it", "`softcap = 50.0`, say"
    elif not 0 <= p < 1:
        fact = f"`p` is {p:g}, and it is the share of weights that falls out: from 0 to less than 1"
        help = "`p = 0.1` drops a tenth"
    if fact:
        site.refuse("SH293", fact, help)


def _require_further(site: CallSite, given: Mapping[str, TensorType | None], q: Sequence[Term], keys: Term) -> None:
    """SH281 or SH288 where a tensor besides q, k and v does not fit."""
    if given["keep"] is not None:
        require(site, 3, "bool")
        require_dims(site, 3, (*q[:-3], keys))
    if given["bias"] is not None:
        require(site, 4, "floating")
        _require_biased(site, 4, (*q[:-1], keys))
    if given["sinks"] is not None:
        require(site, 5, "floating")
        require_dims(site, 5, q[-3:-2])


def _require_biased(site: CallSite, at: int, wanted: Sequence[Term]) -> None:
    """A bias lines up with [..., heads, queries, keys] from the right, a literal 1 or nothing for
    any of these. A type has no dim twice: where queries and keys are one, another dim of the size
    stands for the keys."""
    dims, keys = site.operands[at].dims, wanted[-1]
    if dims and wanted[-2] == keys and dims[-1] != keys and term_size(dims[-1]) == term_size(keys):
        wanted = (*wanted[:-1], dims[-1])
    pairs = zip(reversed(dims), reversed(wanted), strict=False)
    if len(dims) > len(wanted) or not all(not a or a == b or site.dims.same(a, b) for a, b in pairs):
        refuse_shape(site, at, wanted)


def _require_ranks(site: CallSite) -> None:
    """SH287 where q, k and v have not as many dims, at least two."""
    ranks = [len(t.dims) for t in site.operands[:3]]
    at = next((i for i, r in enumerate(ranks) if r < 2 or r != ranks[0]), None)
    if at is not None:
        site.refuse(
            "SH287", f"`attention` needs [..., heads, seq, width] three times, and {quoted(site.names[at])} is "
            f"{site.operands[at]}",
            f"`rearrange({site.names[at] or 'q'} -> [batch, heads, seq, head_dim])` takes the heads apart and puts "
            "them before the sequence", *[0] * (at > 0), span=site.spans[at],
        )  # fmt: skip


def _require_heads(site: CallSite, q: Sequence[Term], k: Sequence[Term]) -> None:
    """SH295 where q's heads are no whole multiple of those of the keys."""
    if len(q) < 3 or q[-3] == k[-3]:
        return
    many, few = term_size(q[-3]), term_size(k[-3])
    if few == 1 or many is None or few is None or many % few == 0:
        return
    site.refuse("SH295",
                f"`attention` groups the heads of {quoted(site.names[0])} by those of {quoted(site.names[1])}: "
                f"{sized(q[-3])} is no multiple of {sized(k[-3])}",
                f"{many} heads can share 1 to {many} heads of keys that divide {many}", 0, 1)  # fmt: skip


def _require_one_sequence(site: CallSite, queries: Term, keys: Term) -> None:
    """SH293 where only earlier or near places may be seen, and they cannot be compared."""
    many, few = term_size(queries), term_size(keys)
    causal, window = site.static["causal"], site.static["window"]
    if not (causal or window) or queries == keys or many is None or few is None or many == few:
        return
    what = "causal attention" if causal else "a `window`"
    site.refuse("SH293", f"{what} compares places of one sequence: {sized(queries)} meets {sized(keys)}",
                "`causal = false` lets each query see all keys" if causal else "without it each query sees all keys",
                0, 1)  # fmt: skip


def _attention_rule(
    q: Sequence[Term], k: Sequence[Term], v: Sequence[Term], given: Mapping[str, TensorType | None]
) -> FactorRule:
    """Heads of q are (heads of k, heads that share one of those), major first. Keys' places and the
    width that is summed over stay whole; the width of v, another factor, does not."""
    factors = Factors()
    lead = factors.dims(q[:-3])
    few: tuple[DimFactors, ...] = factors.dims(k[-3:-2])
    many = few if q[-3:-2] == k[-3:-2] else ((*few[0], *_sharing(factors, q[-3], k[-3])),)
    queries = factors.alone(q[-2], Split.FREE)
    keys, inner, outer = factors.alone(k[-2]), factors.alone(q[-1]), factors.alone(v[-1], Split.FREE)
    operands = [(*lead, *many, queries, inner), (*lead, *few, keys, inner), (*lead, *few, keys, outer)]
    bias = given["bias"]
    if given["keep"] is not None:
        operands.append((*lead, keys))
    if bias is not None:
        dims = (*lead, *many, queries, keys)[-len(bias.dims) :] if bias.dims else ()
        operands.append(tuple(mine if term else () for mine, term in zip(dims, bias.dims, strict=True)))
    if given["sinks"] is not None:
        operands.append(many)
    # A weighted mean of v is linear in it, with the weights the same on all ranks.
    return factors.rule(operands, ((*lead, *many, queries, outer),), ((2,),))


def _sharing(factors: Factors, many: Term, few: Term) -> DimFactors:
    """The factor of the heads that share one head of keys; none where each has its own."""
    if many[: len(few)] == few and few:
        return factors.term(many[len(few) :])
    size = (term_size(many) or 1) // (term_size(few) or 1)
    return () if size == 1 else factors.group(many, size)


def _pairs(queries: int, keys: int, causal: bool, window: int | None) -> int:
    """How many keys all queries together see; of the last queries, where they are a part."""
    far = max(0, keys - (window or keys))
    if not causal:
        return queries * keys - far * (far + 1) * queries // keys
    before = max(0, far - queries)
    return queries * keys - (queries * (queries - 1) + far * (far + 1) - before * (before + 1)) // 2


def _attended_bytes(op: SplitOp, at: int) -> int:
    """Bytes of an operand on a rank, in all microbatches, as wide as the widest is."""
    wide = max(op.local(i)[-1] for i in (1, 2))
    return math.prod(op.local(at)[:-1]) * wide * op.itemsizes[at] * op.times


def _widened(op: SplitOp) -> int:
    """How many times as wide as keys the sums of their gradients are: in f32 at least."""
    return max(4, op.itemsizes[1]) // op.itemsizes[1]


def _halves_sent(op: SplitOp, queries: int) -> Iterator[SentInside]:
    """Halves that are exchanged so that causal ranks have as much work: of the queries and the
    result, in a ring of keys and values too, and of their gradients. Each of two ranks keeps one
    half; where there are more, some keep none."""
    axes = op.axes[queries]
    q, k = (_attended_bytes(op, at) for at in (0, 1))
    k *= 2 * any(factor.exchanged is RING and op.axes[f] for f, factor in enumerate(op.rule.factors))
    part = 2 if op.degree(axes) == 2 else 1
    yield axes, (2 * q + k) // part, (2 * q + k * _widened(op)) // part * op.trained


def _ring_sent(op: SplitOp, keys: int) -> Iterator[SentInside]:
    """Keys and values that go round a ring, forward and again backward, and their gradients in f32,
    which go a step further to come home; and what says which keys are kept."""
    axes = op.axes[keys]
    ranks, both = op.degree(axes), 2 * _attended_bytes(op, 1)
    keep = any(keys in dim for dims in op.rule.operands[3:4] for dim in dims)
    kept = math.prod(op.local(3)) * op.times if keep else 0
    yield axes, (ranks - 1) * (both + kept), ((ranks - 1) * both + ranks * both * _widened(op)) * op.trained


HALVES = InsideExchange("halves", "all_to_all", _halves_sent, pieces=2)
RING = InsideExchange("ring", "permute", _ring_sent, along=True)


def _exchanges(rule: FactorRule, at: int, cut: Sequence[object]) -> bool:
    """Whether the places of operand `at` are exchanged. cut: per factor, whether it is."""
    return any(rule.factors[f].exchanged and cut[f] for f in rule.operands[at][-2])


class _Attention(Operator):
    attends = True

    def flops(self, rule: FactorRule, attrs: Mapping[str, Any]) -> int:
        """Two products, each of every query with every key that it sees: over q's width, and for
        each of v's."""
        (*_, asking, inner), (*_, keys, _), (*_, outer) = rule.operands[:3]
        queries, seen, *both = (math.prod(rule.factors[f].size for f in dims) for dims in (asking, keys, inner, outer))
        rest = math.prod(f.size for i, f in enumerate(rule.factors) if i not in (*asking, *keys, *inner, *outer))
        pairs = _pairs(queries, seen, attrs["causal"], attrs["window"])
        return 2 * rest * pairs * sum(both)

    def exchanging(self, rule: FactorRule, attrs: Mapping[str, Any], ring: bool) -> FactorRule:
        """Where queries and keys are cut alike, keys and values go round a ring, and where it is
        causal halves of the queries are exchanged; the same rule if neither. A bias is then whole
        in both: each rank takes the part of its pairs."""
        marks = {rule.operands[1][-2]: RING} if ring else {}
        marks |= {rule.operands[0][-2]: HALVES} if attrs["causal"] else {}
        factors = [replace(f, exchanged=marks.get((at,))) for at, f in enumerate(rule.factors)]
        if not marks:
            return rule
        paired = {dims[-2] for dims in rule.operands[:2]}
        bias = 3 + attrs["given"].index("bias") if "bias" in attrs["given"] else -1
        operands = [tuple(() if i == bias and d in paired else d for d in dims) for i, dims in enumerate(rule.operands)]
        return factor_rule(tuple(factors), tuple(operands), rule.results, rule.through)

    def keeps(self, rule: FactorRule, attrs: Mapping[str, Any], axes: Sequence[object]) -> Sequence[int]:
        """Queries, keys and values; all ranks compute with each other's where places are
        exchanged."""
        return () if _exchanges(rule, 0, axes) or _exchanges(rule, 1, axes) else range(3)


def _emit_attention(site: OpSite) -> Code:
    q, k, v, *further = site.operands
    named: dict[str, object] = dict(zip(site.attrs["given"], further, strict=True))
    kept, causal, queries = dict(named), site.attrs["causal"], site.rule.operands[0][-2]
    seen: dict[str, object] = {"causal": True} if causal else {}
    options = {name: site.attrs[name] for name in ("scale", "window", "softcap") if site.attrs[name] is not None}
    options |= _dropped(site)
    if _exchanges(site.rule, 1, site.axes):
        group = group_text(site, site.rule.operands[1][-2])
        return RT("ring_attention", q, k, v, group, **kept, **seen, **options)
    if _exchanges(site.rule, 0, site.axes):
        return RT("even_attention", q, k, v, group_text(site, queries), **kept, **options)
    q_shape, k_shape, v_shape = site.operand_shapes[:3]
    placed = causal or _whole_bias(site) or any(name in options for name in ("window", "p"))
    start = offset_text(site, queries) if placed else "0"
    part = causal and q_shape[-2] != site.operand_types[1].shape[-2]
    plain = len(q_shape) == 4 and q_shape[-3] == k_shape[-3] and q_shape[-1] == v_shape[-1]
    if plain and not part and not kept and set(options) <= {"scale"}:
        seen = {"is_causal": True} if causal else {}
        return F("scaled_dot_product_attention", q, k, v, **seen, **options)
    at = {"start": start} if start != "0" else {}
    return RT("attention", q, k, v, **kept, **seen, **options, **at)


def _whole_bias(site: OpSite) -> bool:
    """Whether a bias has the rows of all queries, also where a rank has a part of these."""
    at = 3 + site.attrs["given"].index("bias") if "bias" in site.attrs["given"] else 0
    return at > 0 and site.rule.operands[at][-2:-1] == ((),) and site.operand_types[at].shape[-2] > 1


def _dropped(site: OpSite) -> dict[str, object]:
    """The share of weights that falls out, the key of their numbers, and where these weights are
    among all."""
    if not site.training or not site.attrs["p"]:
        return {}
    found: dict[str, object] = {"p": site.attrs["p"], "key": key_text(site)}
    if cut(site, 0):
        whole = (*site.operand_types[0].shape[:-1], site.operand_types[1].shape[-2])
        offsets = tuple(offset_text(site, factors) for factors in site.rule.operands[0][:-2])
        found |= {"whole": whole, "offsets": offsets}
    return found


def _saved_attention(local: LocalOp) -> Residuals:
    """Queries, keys, values and result as one kernel keeps them, with a number for each query and
    head, but copies of what is exchanged, and of what is narrower than others; a ring has gathered
    `keep`."""
    q, k, v, *further = local.operands
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
    # The logarithms of the sums are in f32 at least, of two numbers beside a bias.
    made += size(q[:-1], "f64" if dtype == "f64" else "f32") * (2 if "bias" in local.attrs["given"] else 1)
    keep = local.attrs["given"][:1] == ("keep",)
    if keep and ring:
        made += size((*further[0][:-1], local.operand_types[3].shape[-1]), "bool")
    for at, (name, shape) in enumerate(zip(local.attrs["given"], further, strict=True), 3):
        batch, of = math.prod(shape[:-3]), math.prod(q[:-3])
        if name == "bias" and batch not in (1, of):  # all leading dims become one
            made += size((of, *shape[-3:]), dtype)
        elif not (ring and name == "keep"):
            kept.append(at)
    return Residuals(tuple(kept), () if own else (0,), made)


def _work_attention(local: LocalOp) -> WorkingMemory:
    """Scores, their weights, slopes and numbers drawn, where the runtime makes them itself: of as
    many pairs as it has room for at a time."""
    if not any(local.attrs[name] for name in ("window", "softcap", "p")) and "bias" not in local.attrs["given"]:
        return WorkingMemory()
    pairs = min(ROOM, elements(local.operands[0][:-1]) * local.operands[1][-2])
    drawn = BYTES["i64"] // 2 + BYTES["bool"] if local.attrs["p"] else 0
    return WorkingMemory(pairs * (3 * BYTES["f32"] + drawn), pairs * (5 * BYTES["f32"] + drawn))


def _aliasing(local: LocalOp) -> Aliasing:
    """The kernel's result has its dims in memory as its queries have them, if these lie in rows;
    what is exchanged has not."""
    rows = local.order[-1:] == (len(local.order) - 1,)
    kernel = rows and local.operands[0][-1] == local.operands[2][-1] and not _exchanges(local.rule, 0, local.cut)
    return Aliasing(False, local.order) if kernel else own(local)


declaring(_Attention)(
    "attention",
    (
        Param("q", "tensor"),
        Param("k", "tensor"),
        Param("v", "tensor"),
        Param("keep", "tensor", None),
        Param("causal", "bool", False),
        Param("scale", "number", None),
        Param("bias", "tensor", None),
        Param("window", "int", None),
        Param("softcap", "number", None),
        Param("p", "number", 0.0),
        Param("sinks", "tensor", None),
    ),
    _infer_attention,
    _emit_attention,
    "The mean of the values for each query, weighted by softmax(q k' * scale) over the keys; `scale` is 1 / "
    "sqrt(width) by default. Heads of q share those of k and v in groups. With `causal` a query sees no key of a "
    "later position, with `window` none that is so many places away or more; keys where `keep` is false are never "
    "seen. A query that sees no key gives 0. Scores s become `softcap` * tanh(s / `softcap`), then `bias` [..., heads, "
    "queries, keys] is added, of which any dim may be a 1 or absent. `sinks` [heads] are scores of a further key "
    "without a value. Of the weights a share `p` drops out, in training.",
    example="(q: [batch, heads, seq, width], k: [batch, heads, keys, width], v: [batch, heads, keys, out], "
    "keep: bool[batch, keys]) -> [batch, heads, seq, out] { attention(q, k, v, keep) }",
    saved=_saved_attention,
    aliasing=_aliasing,
    work=_work_attention,
    random=lambda attrs: attrs["p"] > 0,
    precision=Precision.LOW,
)
