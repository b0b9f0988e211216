"""A loss over classes in chunks of rows, with the product that makes its scores: `chunks`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardlang.ops.code import RT, Code, infix, method
from shardlang.ops.declaration import CallSite, Indexing, Inference, Param, Total, declare
from shardlang.ops.factors import Factors, marked
from shardlang.ops.families.losses import CHUNKED, mode_of, options_of, statistics_of
from shardlang.ops.families.reductions import tally_text
from shardlang.ops.rule import FactorRule, Split
from shardlang.ops.saved_activations import LocalOp, Residuals, elements, size
from shardlang.ops.site import OpSite
from shardlang.ops.streams import KernelIO, Streams
from shardlang.ops.texts import group_text, offset_text
from shardlang.ops.working_memory import WorkingMemory
from shardlang.types.dim import BYTES, TensorType


def chunked_rule(types: Sequence[TensorType], dim: int, smoothing: float) -> FactorRule:
    """The rule of a chunked loss of operands of these types, whose weight has the classes at `dim`.
    Operands: label, hidden, weight, perhaps bias and count."""
    hidden, weight = (type.dims for type in types[1:3])
    (classes,), inner = weight[dim : dim + 1], hidden[-1:]
    marks = marked((classes,), Split.INSIDE, statistics_of(smoothing)) | marked(inner, Split.WHOLE)
    factors = Factors(marks)
    return factors.rule([factors.dims(type.dims) for type in types], ((),))


def _infer_chunked(site: CallSite) -> Inference:
    static = {name: site.static[name] for name in ("chunks", "dim", "ignore_index", "label_smoothing")}
    types = [type for type in site.operands if type is not None]
    attrs = {**static, "bias": site.operands[3] is not None}
    loss = TensorType("f64" if types[1].dtype == "f64" else "f32", ())
    return Inference((loss,), chunked_rule(types, static["dim"], static["label_smoothing"]), attrs)


def _chunked_sum(site: OpSite, reduction: str) -> Code:
    """The loss over the local items: their sum, or each ("none")."""
    label, hidden, weight = site.operands[:3]
    attrs = site.attrs
    factors = site.rule.operands[2][attrs["dim"]]
    group = group_text(site, factors)
    options: dict[str, object] = {"bias": site.operands[3]} if attrs["bias"] else {}
    options |= {"group": group, "start": offset_text(site, factors)} if group else {}
    options |= {"classes": math.prod(site.rule.factors[f].size for f in factors)} if attrs["label_smoothing"] else {}
    options |= options_of(site) | ({} if reduction == "sum" else mode_of(reduction))
    return RT(CHUNKED, hidden, weight if attrs["dim"] == 0 else method(weight, "t"), label, attrs["chunks"], **options)


def _emit_chunked(site: OpSite) -> Code:
    counted = len(site.operands) > 3 + site.attrs["bias"]
    count = site.operands[-1] if counted else math.prod(site.operand_types[0].shape)
    return infix("/", _chunked_sum(site, "sum"), count)


def _accumulate_chunked(site: OpSite) -> Code:
    ignore = site.attrs["ignore_index"]
    mask = "" if ignore is None else infix("!=", site.operands[0], ignore)
    return tally_text(site, _chunked_sum(site, "none"), 0, mask)


def _saved_chunked(local: LocalOp) -> Residuals:
    """The gradients of all that is trained, which forward computes; the divisor."""
    counted = len(local.operands) > 3 + local.attrs["bias"]
    made = zip(local.operands, local.operand_types, local.gradient, strict=True)
    more = sum(size(shape, type.dtype) for shape, type, trained in made if trained)
    return Residuals((len(local.operands) - 1,) if counted else (), more=more)


def _work_chunked(local: LocalOp) -> WorkingMemory:
    """A chunk has its scores and, in f32 at least, the scores less the greatest and shares, or
    shares and gradients; a label has its place and seven numbers. The gradients that are kept are
    there too, that of the weight in f32 at least."""
    (label, hidden, weight, *_), dtype = local.operands, local.operand_types[1].dtype
    wide = "f64" if dtype == "f64" else "f32"
    rows = -(-elements(label) // local.attrs["chunks"])
    scores = (rows, weight[local.attrs["dim"]])
    chunk = 2 * size(scores, wide) + size(scores, dtype)
    labels = rows * (BYTES["i64"] + BYTES["bool"] + 7 * BYTES[wide])
    made = size(hidden, dtype) * local.gradient[1] + size(weight, wide) * local.gradient[2]
    return WorkingMemory(forward=chunk + labels + made + (size(weight, dtype) * local.gradient[2]))


def _product_chunked(rule: FactorRule) -> tuple[int, int, int, int]:
    """The scores: [rows, inner] and [inner, classes]."""
    *rows, inner = rule.operands[1]
    classes = {f for dim in rule.operands[2] for f in dim} - {*inner}
    m, n, k = (math.prod(rule.factors[f].size for f in each) for each in ([f for d in rows for f in d], classes, inner))
    return 1, m, n, k


def _streams_chunked(local: LocalOp) -> Streams:
    """The scores of all chunks, in f32 at least; backward scales the gradients."""
    label, _, weight = local.operands[:3]
    scores = elements(label) * weight[local.attrs["dim"]] * max(BYTES["f32"], BYTES[local.operand_types[1].dtype])
    made = _saved_chunked(local).more
    return Streams(KernelIO(7 * scores, 5 * scores, 12 * local.attrs["chunks"]), KernelIO(made, made, 2))


declare(
    CHUNKED,
    (
        Param("label", "tensor"), Param("hidden", "tensor"), Param("weight", "tensor"), Param("bias", "tensor", None),
        Param("count", "tensor", None), Param("chunks", "int", 2), Param("dim", "int", 0),
        Param("ignore_index", "int", None), Param("label_smoothing", "number", 0.0),
    ),
    _infer_chunked, _emit_chunked, "The mean cross-entropy of the scores `hidden` times `weight`, in chunks of rows.",
    internal=True, reduces=Total.MEAN, accumulate=_accumulate_chunked, saved=_saved_chunked, work=_work_chunked,
    indexes=Indexing(0, 2), product=_product_chunked, streams=_streams_chunked,
)  # fmt: skip
