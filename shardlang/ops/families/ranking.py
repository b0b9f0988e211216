"""Figures of how well scores rank: auc. They need all scores at once and have no gradient."""

from __future__ import annotations

import math

from shardlang.ops.code import RT, Code, infix, joined, method
from shardlang.ops.declaration import CallSite, Inference, Operator, Param, Precision, Total, register
from shardlang.ops.factors import Factors, marked, quoted, require
from shardlang.ops.rule import Split
from shardlang.ops.site import OpSite
from shardlang.types.dim import TensorType


def _infer_auc(site: CallSite) -> Inference | None:
    scores, label = site.operands
    if not require(site, 0, "floating"):
        return None
    same = site.dims.same
    alike = len(scores.dims) == len(label.dims)
    if not alike or not all(a == b or same(a, b) for a, b in zip(scores.dims, label.dims, strict=True)):
        site.sink.report(
            "SH290",
            f"`auc` compares values of the same dims: {quoted(site.names[0])} is {scores}, "
            f"{quoted(site.names[1])} is {label}",
            site.span, labels=[(site.spans[0], str(scores)), (site.spans[1], str(label))],
            help="give each score its label: nothing is broadcast",
        )  # fmt: skip
        return None
    terms = [site.dims.resolve(t) for t in scores.dims]
    factors = Factors(marked(terms, Split.WHOLE))
    dims = factors.dims(terms)
    return Inference((TensorType(site.floating, ()),), factors.rule((dims, dims), ((),)))


def _emit_auc(site: OpSite) -> Code:
    return RT("auc", *site.operands)


def _accumulate_auc(site: OpSite) -> Code:
    """All scores and labels of a batch, which every rank has whole."""
    found = [d for d, factors in enumerate(site.rule.operands[0]) if site.batch in factors]
    if site.batch < 0 or not found or not site.rows:
        return joined(site.operands, brackets="()")
    dim, factors = found[0], site.rule.operands[0][found[0]]
    inner = math.prod(site.rule.factors[f].size for f in factors[factors.index(site.batch) + 1 :])
    rows = site.rows if inner == 1 else infix("*", site.rows, inner)
    return joined([method(x, "narrow", dim, 0, rows) for x in site.operands], brackets="()")


register(
    Operator(
        "auc",
        (Param("scores", "tensor"), Param("label", "tensor")),
        _infer_auc,
        _emit_auc,
        "The area under the receiver operating characteristic of scores with labels 0 and 1.",
        example="(scores: [batch], label: i64[batch]) -> [] { auc(scores, label) }",
        differentiable=False,
        reduces=Total.ROWS,
        precision=Precision.GIVEN,
        accumulate=_accumulate_auc,
    )
)
