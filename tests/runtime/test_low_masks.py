"""Attention whose mask is a low number where others have minus infinity: a query of which all keys have it weighs them
alike, on one device and over several, and its gradients are those of these weights.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from shardlang import runtime as rt
from shardlang.runtime.comm import blocks
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.device import Cpu
from shardlang.runtime.functions import attention_kernels
from shardlang.runtime.functions.attention import attention
from shardlang.runtime.functions.attention_kernels import KERNELS, AttentionScores
from tests.runtime.forked import on_ranks

LOWEST = torch.finfo(torch.float32).min  # what imported masks have
LOWEST16 = torch.finfo(torch.bfloat16).min
# A type, the low number in it, and how far the norm of a difference may be from that of what is right.
CASES = (
    (torch.float64, LOWEST, 1e-13), (torch.float64, torch.finfo(torch.float64).min, 1e-13),
    (torch.float32, LOWEST, 2e-6), (torch.float32, -1e9, 2e-6), (torch.bfloat16, LOWEST16, 2e-2),
    (torch.bfloat16, -1e9, 2e-2), (torch.bfloat16, LOWEST, 2e-2), (torch.float16, LOWEST, 4e-3),
)  # fmt: skip


def lowered(low: float, count: int, keys: int, rows: bool) -> Tensor:
    """[count | 1, keys] in float64: of some rows all are low, of some those of the first or of the second half, and
    some are low in two ways or hidden besides. A single row is low at first, and then less so."""
    if not rows:
        places = torch.arange(keys)[None]
        return torch.zeros(1, keys, dtype=torch.float64).masked_fill(places < 11, low / 4).masked_fill(places < 4, low)
    bias = torch.randn(count, keys, dtype=torch.float64)
    bias[0::5] = low
    bias[1::5, : keys // 2] = low
    bias[2::5, keys // 2 :] = low
    bias[3::5, :] = low / 4
    bias[3::5, 1::3] = low
    bias[4::5] = torch.zeros(keys).double().fill_(low).masked_fill(torch.rand(keys) > 0.5, -math.inf)
    return bias


def formula(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, unseen: Tensor, wide: torch.dtype, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """In float64, with all pairs at once. A score is what its sum with a bias rounds to in the type `wide`; its slope
    is that of the sum."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    rounded = (scores.to(wide) + bias.to(wide)).double().detach().masked_fill(unseen, -math.inf)
    top = rounded.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).min)
    top = top if sinks is None else torch.maximum(top, sinks.detach().view(-1, 1, 1))
    zeros = (scores - scores.detach()) + (bias - bias.detach()).nan_to_num(0.0)
    weights = torch.exp(rounded - top + zeros)
    total = weights.sum(-1, keepdim=True)
    total = total if sinks is None else total + torch.exp(sinks.view(-1, 1, 1) - top)
    return weights / total.masked_fill(total == 0, 1.0) @ v


def require_near(ours: Any, wanted: Any, limit: float, what: object) -> None:
    for at, (one, other) in enumerate(zip(ours, wanted, strict=True)):
        apart = float((one.detach().double() - other.detach()).norm() / other.detach().norm().clamp_min(1e-3))
        assert apart < limit, (at, apart, what)


def exact(dtype: torch.dtype, *size: int) -> Tensor:
    """Numbers in float64 that the type has exactly."""
    return torch.randn(size, dtype=torch.float64).to(dtype).double().requires_grad_()


# Causal; where queries begin and how many there are; a bias for each of them, or one for all; what is there besides.
FORMS = tuple(itertools.product(
    (False, True), ((0, 16), (5, 9)), (True, False),
    ({}, {"trained": True}, {"keep": True}, {"sinks": True}, {"window": 5}, {"softcap": 0.8}),
))  # fmt: skip


def whole(dtype: torch.dtype, low: float, form: Any) -> tuple[list[Tensor], list[Tensor], dict[str, Any], Tensor]:
    """Leaves in float64, and those in the type; how attention is of them; which pairs are not seen."""
    causal, (start, count), rows, more = form
    bias = lowered(low, count, 16, rows).to(dtype)
    leaves = [exact(dtype, 2, heads, size, 4) for heads, size in ((4, count), (2, 16), (2, 16))]
    leaves += [bias.double().clone().requires_grad_()] * ("trained" in more) + [exact(dtype, 4)] * ("sinks" in more)
    ours = [x.detach().to(dtype).requires_grad_() for x in leaves]
    how: dict[str, Any] = {name: x for name, x in more.items() if name in ("window", "softcap")}
    apart = start + torch.arange(count)[:, None] - torch.arange(16)
    unseen = (apart < 0) & causal | (apart.abs() >= how.get("window", 99)) | (bias == -math.inf)
    if "keep" in more:
        how["keep"] = torch.rand(2, 16) > 0.3
        unseen = unseen | ~how["keep"][:, None, None, :]
    how |= {"bias": ours[3] if "trained" in more else bias} | ({"sinks": ours[3]} if "sinks" in more else {})
    return leaves, ours, how | {"causal": causal, "start": start}, unseen


@pytest.mark.parametrize("kernel", ["host", "plain"])
@pytest.mark.parametrize("dtype, low, limit", CASES, ids=str)
def test_keys_that_are_all_low_weigh_alike(
    kernel: str, dtype: torch.dtype, low: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cpu, "attention", lambda *_: kernel)
    torch.manual_seed(0)
    for form in FORMS:
        leaves, ours, how, unseen = whole(dtype, low, form)
        bias, wide = how["bias"].detach().double(), torch.promote_types(dtype, torch.float32)
        bias = leaves[3] if "trained" in form[-1] else bias
        sinks = leaves[3] if "sinks" in form[-1] else None
        right = formula(*leaves[:3], bias, unseen, wide, how.get("softcap"), sinks)
        slope = exact(dtype, *right.shape).detach()
        wanted = (right, *torch.autograd.grad(right, leaves, slope))
        found = attention(*ours[:3], **how)
        require_near((found, *torch.autograd.grad(found, ours, slope.to(dtype))), wanted, limit, form)


def test_a_query_of_low_keys_alone_gives_the_mean_of_what_it_sees() -> None:
    """By hand: of n equal scores each weighs 1 / n, and has the slope (g v - the mean of these) / n."""
    q, k, v, slope = (torch.randn(1, 1, 8, 4) for _ in range(4))
    given = [x.requires_grad_() for x in (q, k, v)]
    found = attention(*given, causal=True, bias=torch.full((1, 8), LOWEST))
    dq, dk, dv = (x.double().numpy()[0, 0] for x in torch.autograd.grad(found, given, slope))
    g, keys, values = (x.detach().double().numpy()[0, 0] for x in (slope, k, v))
    for n in range(1, 9):
        torch.testing.assert_close(found[0, 0, n - 1].double(), torch.tensor(values[:n].mean(0)), rtol=0, atol=1e-6)
        products = values[:n] @ g[n - 1]
        wanted = (products - products.mean()) / n @ keys[:n] / 2.0
        torch.testing.assert_close(torch.tensor(dq[n - 1]), torch.tensor(wanted), rtol=0, atol=1e-6)
    sums = torch.stack([torch.tensor(sum(g[i] / (i + 1) for i in range(j, 8))) for j in range(8)])
    torch.testing.assert_close(torch.tensor(dv), sums, rtol=0, atol=1e-6)
    assert abs(dk).max() > 0.01


def test_the_kernel_of_a_gpu_is_given_no_number_that_it_makes_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """It multiplies by log2(e). What it says of a sum is then the greatest score, rounded."""
    calls: list[Tensor] = []

    class Aten:
        def __getattr__(self, name: str) -> Any:
            def called(*given: Any, **named: Any) -> list[Tensor]:
                calls.append(given[4] if name.endswith("backward") else given[3])
                return list(given[:4]) if name.endswith("backward") else [given[0], 1.0001 * given[3].amax(-1)]

            return called

    monkeypatch.setattr(attention_kernels, "aten", Aten())
    q = torch.randn(1, 2, 3, 8)
    bias = torch.tensor([[LOWEST] * 3, [-1e9, -math.inf, -1e9], [-1e9, 0.0, 0.0]])[None, None]
    result, sums = KERNELS["efficient"].forward(q, q, q, AttentionScores(1.0, bias=bias))
    KERNELS["efficient"].backward(q, q, q, q, (result, sums), AttentionScores(1.0, bias=bias))
    low, gone = calls[0][0, 0, 0, 0], -math.inf
    assert low * 2 > -math.inf and torch.equal(calls[0], calls[1])
    torch.testing.assert_close(calls[0][0, 0], torch.tensor([[low] * 3, [low, gone, low], [low, 0.0, 0.0]]))
    wanted = torch.tensor([[low, math.log(3)], [low, math.log(2)], [0.0, 0.0]])
    torch.testing.assert_close(sums[0, 0], wanted, rtol=1e-7, atol=0)


HOW: tuple[dict[str, Any], ...] = ({}, {"keep": True}, {"sinks": True}, {"window": 3}, {"softcap": 0.8}, {"p": 0.3})


def _cut(group: Group, dtype: torch.dtype, low: float, limit: float, causal: bool, rows: bool, more: Any) -> None:
    """Each way of computing a part of the queries against one rank that has all."""
    size = 8 * group.size
    at = slice(8 * group.index, 8 * (group.index + 1))
    bias = lowered(low, size, size, rows).to(dtype).requires_grad_()
    leaves = [torch.randn(2, heads, size, 4).to(dtype).requires_grad_() for heads in (4, 2, 2)] + [bias]
    how = {name: x for name, x in more.items() if name in ("window", "softcap", "p")}
    how |= {"key": 5, "whole": (2, 4, size, size), "offsets": (0, 0)} if "p" in more else {}
    how |= {"sinks": torch.randn(4).to(dtype)} if "sinks" in more else {}
    keep = torch.rand(2, size) > 0.3 if "keep" in more else None
    right = attention(*leaves[:3], keep, causal, bias=bias, **how)
    slope = torch.randn_like(right)
    wanted = [right, *torch.autograd.grad(right, leaves, slope)]
    wanted[:4] = [x[..., at, :] for x in wanted[:4]]
    for way in ("ring", "even", "gathered") if causal else ("ring", "gathered"):
        parts = [x.detach()[..., at, :] if way == "ring" or x is leaves[0] else x.detach() for x in leaves[:3]]
        q, k, v, own = (x.requires_grad_() for x in (*parts, bias.detach()))
        if way == "ring":
            found = rt.ring_attention(
                q, k, v, group, None if keep is None else keep[..., at], causal, bias=own, **how
            )  # fmt: skip
        elif way == "even":
            found = rt.even_attention(q, k, v, group, keep, bias=own, **how)
        else:
            here = own[at] if rows else own
            found = attention(q, k, v, keep, causal, start=at.start, bias=here, **how)
        dq, dk, dv, dbias = torch.autograd.grad(found, (q, k, v, own), slope[..., at, :])
        dk, dv = (x if way == "ring" else blocks.scattered(x, 2, group) for x in (dk, dv))
        dbias = blocks.scattered(
            torch.cat([dbias.to(torch.promote_types(dtype, torch.float32))] * group.size), 0, group
        )
        require_near((found, dq, dk, dv, dbias), wanted, 2 * limit, (way, dtype, low, causal, rows, more))


def over_two() -> None:
    group = rt.Mesh(a=2)["a"]
    for (dtype, low, limit), causal, rows, more in itertools.product(CASES[:5], (False, True), (True, False), HOW):
        torch.manual_seed(0)
        _cut(group, dtype, low, limit, causal, rows, more)


def test_over_two_ranks_they_weigh_as_on_one() -> None:
    on_ranks(__file__, "over_two", 2)
