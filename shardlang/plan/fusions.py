"""Two operators -> one call of torch where that is exact and reads better: a product, then its
bias.

A product and the addition of a bias along its last dim are one line (`F.linear`) if nothing else
reads the product and no conversion stands between them. Both may be pending: then one rank has the
bias, and the others zeros."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Kind, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.plan import Plan, PlannedOp
from shardlang.plan.reads import makers


@dataclass(frozen=True, slots=True)
class Fusion:
    """`product` takes `bias` (operand of the addition) as third argument; they index `Plan.ops`."""

    product: int
    addition: int
    bias: int


@remembered
def fusions(plan: Plan) -> dict[int, Fusion]:
    """The index of each addition that becomes one call with its product; checked when written."""
    readers = Counter(use.value for op in plan.ops for use in op.operands)
    shown = {plan.graph.loss, *plan.graph.metrics.values()}
    converted = {conversion.value for conversion in plan.conversions}
    found: dict[int, Fusion] = {}
    for at, planned in enumerate(plan.ops):
        fusion = _fusion(plan, at, planned, makers(plan))
        if fusion is None:
            continue
        product = plan.graph.ops[plan.ops[fusion.product].op].results[0]
        if readers[product] == 1 and product not in converted and product not in shown:
            found[at] = fusion
    return found


def _fusion(plan: Plan, at: int, planned: PlannedOp, makers: Mapping[int, int]) -> Fusion | None:
    """An addition of a linear product and a bias of its last dim and its type."""
    op = plan.graph.ops[planned.op]
    if REGISTRY[op.operator].symbol != "+" or len(planned.operands) != 2:
        return None
    product, bias = planned.operands
    maker = makers.get(product.value)
    if maker is None:
        return None
    values = plan.graph.values
    alike = values[bias.value].type.dtype == values[product.value].type.dtype
    if values[bias.value].kind is not Kind.PARAM or not alike or not _is_last_dim(plan, op, bias.value):
        return None
    return Fusion(maker, at, 1) if is_linear(plan.graph.ops[plan.ops[maker].op]) else None


def _is_last_dim(plan: Plan, op: Op, bias: int) -> bool:
    dims = op.rule.operands[1]
    return len(plan.graph.values[bias].type.dims) == 1 and dims[0] == op.rule.results[0][-1]


def is_linear(op: Op) -> bool:
    """`x [..., in], w [out, in] -> [..., out]`, as F.linear has it: a sum of products."""
    if op.rule.through != ((0,), (1,)) or len(op.operands) != 2:
        return False
    x, w = op.rule.operands
    return len(w) == 2 and len(x) >= 1 and x[-1] == w[1] and op.rule.results[0] == (*x[:-1], w[0]) and w[0] not in x
