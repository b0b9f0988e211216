"""Claim: a GPU's kernels for attention give what the formula gives in float64, and its gradients, to their rounding.

Later queries of a sequence, grouped heads, hidden keys, widths that are no multiple of 8, a bias that learns or does
not, and weights that drop out, in each type.

    python -m benchmarks.gpu.attention [--device cpu]
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from timing import verdict
from torch import Tensor

from benchmarks.gpu.place import place
from shardlang import runtime as rt
from shardlang.runtime import random
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.functions.attention import attention

# How far a whole tensor is from the formula's, by the norms of both.
LIMITS = {torch.float64: 1e-14, torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
KEYS, KEY = 48, random.seeded_key(7, "attention")
Attention = Callable[..., Tensor]


def formula(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool, start: int, bias: Tensor | None, p: float
) -> Tensor:
    """[batch, heads, queries, width], with all pairs at once."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    unseen = torch.zeros(scores.shape[-2:], dtype=torch.bool)
    if causal:
        unseen = torch.arange(KEYS) > start + torch.arange(q.shape[2])[:, None]
    if keep is not None:
        unseen = unseen | ~keep[:, None, None, :]
    weights = torch.softmax(scores.masked_fill(unseen, -1e300), -1) * ~unseen
    return rt.dropout(weights, p, KEY) @ v if p else weights @ v


def ours(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool, start: int, bias: Tensor | None, p: float
) -> Tensor:
    further = {"p": p, "key": KEY} if p else {}
    return attention(q, k, v, keep, causal, start=start, bias=bias, **further)


def given(dtype: torch.dtype, widths: Sequence[int]) -> Iterator[tuple[list[Tensor], tuple[object, ...]]]:
    """Tensors in float64 that the type has exactly, [batch, heads, places, width], and how attention is of them."""
    torch.manual_seed(0)
    for few, width, (start, count), padded, learns, p in itertools.product(
        (4, 2, 1), widths, ((0, KEYS), (20, 13), (KEYS - 4, 4)), (False, True), (None, False, True), (0.0, 0.25)
    ):
        if p and start:  # the formula draws for all pairs
            continue
        sizes = (2, 4, count, width), (2, few, KEYS, width), (2, few, KEYS, width)
        tensors = [torch.randn(size, dtype=torch.float64).to(dtype).double() for size in sizes]
        keep = (torch.rand(2, KEYS) > 0.3).index_fill(1, torch.arange(5), True) if padded else None
        bias = None
        if learns is not None:
            bias = torch.randn(1, 4, count, KEYS, dtype=torch.float64).to(dtype).double().requires_grad_(learns)
        yield [*tensors, torch.randn(sizes[0], dtype=torch.float64).to(dtype).double()], (keep, True, start, bias, p)


def computed(
    function: Attention, tensors: Sequence[Tensor], how: Sequence[object], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """The result and the gradients of q, k, v, and of a bias that learns, in float64 on the CPU."""
    *xs, slope = (x.to(device, dtype) for x in tensors)
    keep, causal, start, bias, p = how
    keep = keep.to(device) if isinstance(keep, Tensor) else None
    bias = bias.detach().to(device, dtype).requires_grad_(bias.requires_grad) if isinstance(bias, Tensor) else None
    leaves = [x.requires_grad_() for x in xs] + ([bias] if bias is not None and bias.requires_grad else [])
    result = function(*xs, keep, causal, start, bias, p)
    return [x.double().cpu() for x in (result.detach(), *torch.autograd.grad(result, leaves, slope))]


def farthest(widths: Sequence[int]) -> dict[str, tuple[float, int]]:
    """By type: how far the farthest tensor of all cases is, and how many cases there were."""
    found = {}
    for dtype in LIMITS:
        apart, cases = 0.0, 0
        for tensors, how in given(dtype, widths):
            sides = [
                computed(formula, tensors, how, torch.float64, torch.device("cpu")),
                computed(ours, tensors, how, dtype, world.device),
            ]
            for exact, there in zip(*sides, strict=True):
                distance = float((there - exact).norm() / exact.norm())
                apart = max(apart, distance if distance == distance else math.inf)
            cases += 1
        found[str(dtype).removeprefix("torch.")] = apart, cases
    return found


def main() -> int:
    here = place()
    (found,) = here.forked(lambda: farthest((16, 12, 64) if here.whole else (12,)))
    held = []
    for dtype, limit in LIMITS.items():
        apart, cases = found[name := str(dtype).removeprefix("torch.")]
        label = f"attention in {name}: farthest of {cases} cases, {apart:.1e} / {limit:.0e}"
        held.append(verdict(label, [apart / limit], 1.0))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
