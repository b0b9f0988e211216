"""Figures of how well scores rank: auc. They need all scores at once and have no gradient."""

from __future__ import annotations

from shardlang.ops.code import RT, Code, joined, method
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, Total, calls, declare
from shardlang.ops.factors import Factors, marked, quoted, require, same_dims
from shardlang.ops.families.reductions import counted_rows
from shardlang.ops.rule import Split
from shardlang.ops.site import OpSite
from shardlang.types.dim import TensorType


def _infer_auc(site: CallSite) -> Inference:
    scores, label = site.operands
    require(site, 0, "floating")
    if not same_dims(site, scores.dims, label.dims):
        names = f"{quoted(site.names[0])} is {scores}, {quoted(site.names[1])} is {label}"
        help = "give each score its label: nothing is broadcast"
        site.refuse("SH290", f"`auc` compares values of the same dims: {names}", help, 0, 1)
    terms = [site.dims.resolve(t) for t in scores.dims]
    factors = Factors(marked(terms, Split.WHOLE))
    dims = factors.dims(terms)
    return Inference((TensorType(site.floating, ()),), factors.rule((dims, dims), ((),)))


def _accumulate_auc(site: OpSite) -> Code:
    """All scores and labels of a batch, which every rank has whole."""
    counted = counted_rows(site, 0)
    if counted is None:
        return joined(site.operands, brackets="()")
    dim, _, rows = counted
    return joined([method(x, "narrow", dim, 0, rows) for x in site.operands], brackets="()")


declare(
    "auc",
    (Param("scores", "tensor"), Param("label", "tensor")),
    _infer_auc,
    calls(RT, "auc"),
    "The area under the receiver operating characteristic of scores with labels 0 and 1.",
    example="(scores: [batch], label: i64[batch]) -> [] { auc(scores, label) }",
    differentiable=False,
    reduces=Total.ROWS,
    precision=Precision.GIVEN,
    accumulate=_accumulate_auc,
)
