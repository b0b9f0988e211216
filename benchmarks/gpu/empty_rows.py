"""Claim: attention in parts is float64's by formula, and its gradients, where queries see no key of a part, or none.

Masks of minus infinity (of pairs, of keys, one that learns), low numbers in their place as imported masks have them,
`keep`, causal and with a window, in each type: of later queries, and merged of parts of the keys as in a ring.

    python -m benchmarks.gpu.empty_rows [--device cpu]
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from timing import verdict
from torch import Tensor

from benchmarks.gpu.place import place
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.functions.attention import Merged, attention, kernel_for
from shardlang.runtime.functions.attention_kernels import AttentionScores
from shardlang.runtime.functions.attention_scores import with_sinks

# How far a whole tensor is from the formula's, by the norms of both. A wrong row in sixteen would be at 0.2.
LIMITS = {torch.float64: 1e-14, torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float16: 5e-3}
MASKS = ("pairs", "keys", "learns", "keep", "window", "ring", "low")


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, unseen: Tensor) -> Tensor:
    """[batch, heads, queries, width], with all pairs at once. A query that sees no key gives 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    unseen = unseen | (bias == -torch.inf)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    return (torch.softmax(scores.masked_fill(unseen, -1e300), -1) * ~unseen) @ v


def hiding(rows: int, keys: int) -> Tensor:
    """[1, 1, rows, keys]: numbers of which many are minus infinity: of some queries all, of some those of the first or
    of the second half of the keys."""
    bias = torch.randn(1, 1, rows, keys, dtype=torch.float64)
    bias = bias.masked_fill(torch.rand(1, 1, rows, keys) > 0.6, -torch.inf)
    bias[..., 0::4, : keys // 2] = -torch.inf
    bias[..., 1::4, keys // 2 :] = -torch.inf
    bias[..., 2::8, :] = -torch.inf
    return bias


def given(dtype: torch.dtype, sizes: Sequence[int]) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
    """q, k, v and a slope in float64 that the type has exactly, and how attention is of them. unseen: pairs besides
    those of the bias."""
    torch.manual_seed(0)
    for keys, few, causal, mask in itertools.product(sizes, (4, 2), (False, True), MASKS):
        for start, count in ((0, keys), (keys // 2 - 3, keys // 3), (keys - 4, 4)):
            shapes = (2, 4, count, 12), (2, few, keys, 12), (2, few, keys, 12), (2, 4, count, 12)
            tensors = [torch.randn(size, dtype=torch.float64).to(dtype).double() for size in shapes]
            apart = start + torch.arange(count)[:, None] - torch.arange(keys)
            unseen, bias = (apart < 0) & causal, torch.zeros(1, 1, 1, keys, dtype=torch.float64)
            keep = torch.rand(2, keys) > 0.3
            keep[:, : keys // 2 + 1] = False
            if mask == "keep":
                unseen = unseen | ~keep[:, None, None, :]
            elif mask == "keys":
                bias = bias.expand(2, 1, 1, keys).masked_fill(~keep[:, None, None, :], -torch.inf)
            else:
                bias = hiding(count, keys).to(dtype).double()
            if mask == "low":
                lowest = torch.finfo(torch.bfloat16 if dtype == torch.bfloat16 else torch.float32).min
                bias = bias.masked_fill(bias == -torch.inf, lowest).to(dtype).double()
            if mask == "window":
                unseen = unseen | (apart.abs() >= 5)
            if mask != "ring" or not causal:
                yield (
                    tensors,
                    {"mask": mask, "causal": causal, "start": start, "bias": bias, "unseen": unseen, "keep": keep},
                )


def in_parts(q: Tensor, k: Tensor, v: Tensor, slope: Tensor, bias: Tensor) -> list[Tensor]:
    """The result and the gradients of q, k and v: the keys come in parts, as they do in a ring."""
    kernel, found, scale = kernel_for(q), Merged(q), 1.0 / math.sqrt(q.shape[-1])
    parts = [(k_now, v_now, AttentionScores(scale, False, seen)) for k_now, v_now, seen in
             zip(k.chunk(4, 2), v.chunk(4, 2), bias.to(q.dtype).chunk(4, 3), strict=True)]  # fmt: skip
    for part in parts:
        found.add(kernel.forward(q, *part))
    whole = with_sinks(found.whole(), None, True)
    slopes = [kernel.backward(slope, q, k_now, v_now, whole, seen) for k_now, v_now, seen in parts]
    dq, dk, dv = zip(*slopes, strict=True)
    return [whole[0], sum(x.double() for x in dq), torch.cat(dk, 2), torch.cat(dv, 2)]


def ours(tensors: Sequence[Tensor], how: dict[str, Any], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """The result and the gradients of q, k, v and of a bias that learns, in float64 on the CPU."""
    *xs, slope = (x.to(device, dtype) for x in tensors)
    bias, mask = how["bias"].to(device, dtype), how["mask"]
    if mask == "ring":
        return [x.double().cpu() for x in in_parts(*xs, slope, bias)]
    leaves = [x.requires_grad_() for x in xs] + ([bias.requires_grad_()] if mask == "learns" else [])
    keep = how["keep"].to(device) if mask == "keep" else None
    window = {"window": 5} if mask == "window" else {}
    result = attention(
        *xs, keep, how["causal"], start=how["start"], bias=None if mask == "keep" else bias, **window
    )  # fmt: skip
    return [x.double().cpu() for x in (result.detach(), *torch.autograd.grad(result, leaves, slope))]


def exact(tensors: Sequence[Tensor], how: dict[str, Any]) -> list[Tensor]:
    """The same by the formula."""
    *xs, slope = tensors
    bias = torch.zeros(()) if how["mask"] == "keep" else how["bias"].detach()
    leaves = [x.requires_grad_() for x in xs] + ([bias.requires_grad_()] if how["mask"] == "learns" else [])
    result = formula(*xs, bias, how["unseen"])
    return [result.detach(), *torch.autograd.grad(result, leaves, slope)]


def farthest(sizes: Sequence[int]) -> dict[str, tuple[float, int, str]]:
    """By type: how far the farthest tensor of all cases is, how many cases there were, and which it was."""
    found = {}
    for dtype in LIMITS:
        apart, cases, which = -1.0, 0, ""
        for tensors, how in given(dtype, sizes):
            wanted = exact([x.clone() for x in tensors], how)
            for at, (one, other) in enumerate(zip(wanted, ours(tensors, how, dtype, world.device), strict=True)):
                distance = float((other - one).norm() / one.norm().clamp_min(1.0))
                distance = distance if distance == distance else math.inf
                if distance > apart:
                    kind = ("result", "dq", "dk", "dv", "dbias")[at]
                    words = how["mask"], f"keys {other.shape[-2]}", f"start {how['start']}", "causal" * how["causal"]
                    apart, which = distance, " ".join((kind, *words))
            cases += 1
        found[str(dtype).removeprefix("torch.")] = apart, cases, which.strip()
    return found


def main() -> int:
    here = place()
    (found,) = here.forked(lambda: farthest((48, 304, 700) if here.whole else (48,)))
    held = []
    for dtype, limit in LIMITS.items():
        apart, cases, which = found[name := str(dtype).removeprefix("torch.")]
        label = f"rows without keys in {name}: farthest of {cases} cases, {apart:.1e} / {limit:.0e} ({which})"
        held.append(verdict(label, [apart / limit], 1.0))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
