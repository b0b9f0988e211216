"""A product and the addition of its bias (plan/fusions.py) -> one call of torch."""

from __future__ import annotations

from shardlang.emit.text.sites import Sites
from shardlang.ops.code import Code, around
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.products import linear
from shardlang.plan.fusions import Fusion


def fused_text(fusion: Fusion, sites: Sites) -> Code:
    """`F.linear(x, w, b)`; or the sum of both texts if the product is no such call."""
    planned = sites.plan.ops[fusion.product]
    product = sites.site(planned)
    bias = sites.site(sites.plan.ops[fusion.addition]).operands[fusion.bias]
    text = REGISTRY[sites.plan.graph.ops[planned.op].operator].emit(product)
    x, w = product.operands
    return linear(product, x, w, bias) if text == linear(product, x, w) else around("", text, f" + {bias}")
