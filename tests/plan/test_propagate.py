"""What follows from a few rules on a transformer block: the parallelisms that have names, found as layouts."""

from __future__ import annotations

from collections import Counter

import pytest

from shardlang.plan.plan import Plan
from tests.emit import sources

TEXT = """
dim batch = 8, seq = 16, key = 16, d = 32, heads = 4, ffn = 64
dim head_dim = d / heads

model Block {
  param scale: [d] = ones()
  param shift: [d] = zeros()
  param wq: [heads * head_dim, d] = normal(0.02)
  param wk: [heads * head_dim, d] = normal(0.02)
  param wv: [heads * head_dim, d] = normal(0.02)
  param wo: [d, heads * head_dim] = normal(0.02)
  param up: [ffn, d] = normal(0.02)
  param down: [d, ffn] = normal(0.02)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    n = layer_norm(x, scale, shift, over = d)
    q = rearrange(einsum(n, wq -> [batch, seq, heads * head_dim]) -> [batch, heads, seq, head_dim])
    k = rearrange(einsum(n, wk -> [batch, seq, heads * head_dim]) -> [batch, heads, seq, head_dim])
    v = rearrange(einsum(n, wv -> [batch, seq, heads * head_dim]) -> [batch, heads, seq, head_dim])
    keys = relabel(k -> [batch, heads, key, head_dim])
    values = relabel(v -> [batch, heads, key, head_dim])
    probs = softmax(einsum(q, keys -> [batch, heads, seq, key]), over = key)
    mixed = einsum(probs, values -> [batch, heads, seq, head_dim])
    o = einsum(rearrange(mixed -> [batch, seq, heads * head_dim]), wo -> [batch, seq, d])
    y = x + o
    m = layer_norm(y, scale, shift, over = d)
    h = gelu(einsum(m, up -> [batch, seq, ffn]))
    return y + einsum(h, down -> [batch, seq, d])
  }
}

strategy s {
  RULES
}

train {
  model = Block()
  data = random(x: [batch, seq, d], label: [batch, seq, d], batches = 2, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def planned(rules: str, ranks: int) -> Plan:
    return sources.planned(TEXT.replace("RULES", rules.replace("; ", "\n  ")), ranks)


def counted(found: Plan) -> Counter[tuple[str, str]]:
    """How often each collective runs over each axis, gradients or not."""
    return Counter((c.move.kind.value, ", ".join(c.move.axes)) for c in found.conversions)


def test_data_parallel() -> None:
    found = planned("mesh dp = auto; split batch over dp", 4)
    assert counted(found) == {}
    assert {p.reduce_axes for p in found.params.values()} == {("dp",)}


def test_sequence_parallel_as_megatron_has_it() -> None:
    """seq is split over tp wherever heads and ffn do not need it: a gather and a reduce-scatter around each half."""
    found = planned("mesh dp = auto, tp = 2; split batch over dp; split heads, ffn over tp; split seq over tp?", 4)
    assert counted(found) == {("all_gather_replicated", "tp"): 2, ("reduce_scatter", "tp"): 2}
    stored = {found.graph.values[p.value].path: (p.stored.dims, p.reduce_axes) for p in found.params.values()}
    assert stored["wq"] == ((("tp",), ()), ("dp",))
    assert stored["wo"] == (((), ("tp",)), ("dp",))
    assert stored["scale"] == (((),), ("dp", "tp"))


def test_context_parallel_gathers_keys_and_values() -> None:
    found = planned("mesh cp = auto; split seq over cp", 4)
    assert counted(found) == {("all_gather_replicated", "cp"): 2}
    names = {found.graph.values[c.value].name for c in found.conversions}
    assert names == {"keys", "values"}


def test_three_axes_at_once() -> None:
    rules = "mesh dp = auto, cp = 2, tp = 2; split batch over dp; split heads, ffn over tp; split seq over (cp, tp?)"
    found = planned(rules, 8)
    assert counted(found) == {
        ("all_gather_replicated", "tp"): 2, ("reduce_scatter", "tp"): 2, ("all_gather_replicated", "cp"): 2,
    }  # fmt: skip


def test_tensor_parallel_alone_keeps_sums_pending_through_residuals() -> None:
    found = planned("mesh tp = auto; split heads, ffn over tp", 4)
    kinds = counted(found)
    assert sum(kinds.values()) <= 6
    assert not any(kind.startswith("all_to_all") for kind, _ in kinds)


@pytest.mark.parametrize("axis", ["heads", "ffn", "d", "seq", "key", "batch"])
def test_every_dim_alone(axis: str) -> None:
    found = planned(f"mesh a = 2, b = 2; split {axis} over (a, b)", 4)
    assert any(op.chosen == "split" for op in found.ops)
