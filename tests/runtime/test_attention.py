"""Attention of a part of a sequence, on one rank and over several: the numbers of the whole in float64, memory that
grows with the sequence, not with its square, and as much work on each rank.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from shardlang import runtime as rt
from shardlang.ops.families import attention as declared
from shardlang.runtime.comm import blocks
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.device import Cpu
from shardlang.runtime.functions import attention_kernels, attention_scores
from shardlang.runtime.functions.attention import attention
from shardlang.runtime.functions.attention_kernels import KERNELS, AttentionScores, Host
from tests.runtime.forked import on_ranks
from tests.runtime.largest import Largest

SHAPES = (((2, 4), (2, 2)), ((2, 4), (2, 4)), ((4,), (2,)), ((), ()), ((2, 3, 4), (2, 3, 1)))  # leading dims of q, of k


def by_formula(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, start: int, causal: bool = True, bias: Tensor | None = None
) -> Tensor:
    if q.dim() > 2:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    last = start + torch.arange(q.shape[-2]) if causal else torch.full((q.shape[-2],), k.shape[-2])
    seen = torch.arange(k.shape[-2]) <= last[:, None]
    if keep is not None:
        seen = seen & (keep[..., None, None, :] if q.dim() > 2 else keep)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if bias is not None:
        scores, seen = scores + bias, seen & (bias > -math.inf)
    return (torch.softmax(scores.masked_fill(~seen, -1e300), -1) * seen) @ v


def hiding(*size: int) -> Tensor:
    """Numbers to add to scores, [.., queries, keys], of which many are minus infinity: all of a query's, all of the
    first half of the keys, all of the second; single ones."""
    rows, keys = size[-2:]
    bias = torch.randn(size, dtype=torch.float64).masked_fill(torch.rand(size) > 0.6, -torch.inf)
    bias[..., : rows // 3, : keys // 2] = -torch.inf
    bias[..., rows // 3 : 2 * rows // 3, keys // 2 :] = -torch.inf
    bias[..., :: max(1, rows // 2), :] = -torch.inf
    return bias


def require_alike(ours: Tensor, formula: Tensor, given: list[Tensor]) -> None:
    """The same result, and the same gradients of what is given."""
    slope = torch.randn_like(formula)
    for one, other in zip(
        (ours, *torch.autograd.grad(ours, given, slope)), (formula, *torch.autograd.grad(formula, given, slope)),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["host", "plain"])
def test_a_part_of_the_queries_has_the_numbers_of_the_formula(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "attention", lambda *_: kernel)
    torch.manual_seed(0)
    for (many, few), width, (start, count), padded in itertools.product(
        SHAPES, (4, 6, 3), ((0, 4), (7, 5), (12, 4), (5, 0)), (False, True)
    ):
        sizes = ((*many, count, 4), (*few, 16, 4), (*few, 16, width))
        given = [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]
        keep = (torch.rand(*many[:-1], 16) > 0.5).index_fill(-1, torch.arange(6), False) if padded else None
        ours, formula = attention(*given, keep, True, start=start), by_formula(*given, keep, start)
        require_alike(ours, formula, given)


class Telling:
    """torch's kernels, of which that for attention on the CPU says something of its own of a query that sees no key."""

    def __init__(self, sums: float, result: float) -> None:
        self.sums, self.result = sums, result

    def __getattr__(self, name: str) -> Any:
        call = getattr(torch.ops.aten, name)

        def told(q: Tensor, k: Tensor, v: Tensor, p: float, causal: bool, *, attn_mask: Tensor, **more: Any) -> Any:
            result, sums = call(q, k, v, p, causal, attn_mask=attn_mask, **more)
            later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu_(1)
            seen = 0.0 if attn_mask is None else attn_mask.expand(*sums.shape, k.shape[2])
            blind = (
                torch.zeros_like(sums)[..., None].add(seen).masked_fill(later & causal, -torch.inf).amax(-1)
                == -torch.inf
            )
            return result.masked_fill_(blind[..., None], self.result), sums.masked_fill_(blind, self.sums)

        return call if name.endswith("backward") else told


@pytest.mark.parametrize(
    "kernel, sums, result",
    [("host", 0.0, 0.0), ("host", -math.inf, math.nan), ("host", math.inf, 0.0), ("host", math.nan, math.nan),
     ("plain", 0.0, 0.0)],
)  # fmt: skip
def test_a_query_that_sees_no_key_of_a_part_adds_nothing_of_it(
    kernel: str, sums: float, result: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a kernel says of such a query, of a part or of all keys."""
    monkeypatch.setattr(Cpu, "attention", lambda *_: kernel)
    monkeypatch.setattr(attention_kernels, "aten", Telling(sums, result))
    torch.manual_seed(0)
    for (many, few), causal, (start, count), rows, trained in itertools.product(
        SHAPES, (False, True), ((0, 4), (7, 5), (12, 4)), (True, False), (False, True)
    ):
        sizes = ((*many, count, 4), (*few, 16, 4), (*few, 16, 4))
        given = [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]
        bias = hiding(*many, count, 16) if rows else hiding(*many, 1, 16).index_fill(-1, torch.tensor([9]), 0.0)
        bias.requires_grad_(trained)
        ours = attention(*given, None, causal, start=start, bias=bias)
        formula = by_formula(*given, None, start, causal, bias)
        require_alike(ours, formula, given + [bias] * trained)


@pytest.mark.parametrize("causal", [False, True])
def test_shared_heads_of_a_whole_sequence_are_torchs_on_a_gpu(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "attention", lambda *_: "efficient")
    monkeypatch.setattr(Tensor, "element_size", lambda _: 2)
    torch.manual_seed(0)
    given = [torch.randn(2, heads, 16, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    ours, formula = attention(*given, causal=causal), by_formula(*given, None, 0, causal)
    require_alike(ours, formula, given)


def test_what_the_kernel_of_a_gpu_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """f32, in rows of a multiple of 8 elements, for as many queries as a multiple of 32."""
    calls: list[tuple[Any, ...]] = []

    class Aten:
        def __getattr__(self, name: str) -> Any:
            def called(*given: Any, **named: Any) -> list[Tensor]:
                calls.append(given)
                return list(given[:4]) if name.endswith("backward") else [given[0], given[0][..., 0]]

            return called

    monkeypatch.setattr(attention_kernels, "aten", Aten())
    q, k = torch.randn(2, 4, 6, 12, dtype=torch.bfloat16), torch.randn(2, 2, 6, 12, dtype=torch.bfloat16)
    seen, kernel = AttentionScores(1.0, bias=torch.zeros(1, 1, 6, 6)), KERNELS["efficient"]
    result, sums = kernel.forward(q, k, k, seen)
    assert (result.shape, result.dtype, sums.shape) == (q.shape, q.dtype, (*q.shape[:-1], 2))
    assert {x.dtype for x in kernel.backward(q, q, k, k, (q, sums), seen)} == {q.dtype}
    forward, backward = calls
    assert {(x.shape[-1], x.dtype) for x in (*forward[:3], *backward[:4], backward[5])} == {(16, torch.float32)}
    assert backward[6].shape[-1] == 32


@pytest.mark.parametrize("kernel", ["host", "plain"])
def test_what_lies_in_columns_has_the_same_numbers(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read the last dim as neighbours in memory, wherever its elements are."""
    monkeypatch.setattr(Cpu, "attention", lambda *_: kernel)
    torch.manual_seed(0)
    for columns in itertools.product((False, True), repeat=4):
        q, k, v, slope = (torch.randn(2, 4, 5, 5, dtype=torch.float64) for _ in range(4))
        q, k, v, slope = (x.mT if turned else x for x, turned in zip((q, k, v, slope), columns, strict=True))
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        ours, formula = attention(*given, causal=True), by_formula(*given, None, 0)
        torch.testing.assert_close(ours, formula, rtol=0, atol=1e-12)
        for one, other in zip(*(torch.autograd.grad(y, given, slope) for y in (ours, formula)), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
def test_no_tensor_has_an_element_for_each_pair(padded: bool) -> None:
    q, k = (torch.randn(1, heads, size, 2, requires_grad=True) for heads, size in ((4, 256), (2, 512)))
    keep = torch.ones(1, 512, dtype=torch.bool) if padded else None
    with Largest() as largest:
        attention(q, k, k, keep, True, start=256).sum().backward()
    assert largest.found == k.numel() == q.numel() < 256 * 512


@pytest.mark.parametrize("dtype, masked", [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_the_kernel_of_a_gpu_takes_what_it_is_given(dtype: torch.dtype, masked: bool) -> None:
    """By shapes alone: no GPU is needed."""
    q, k = (torch.empty(2, heads, size, 12, dtype=dtype, device="meta") for heads, size in ((4, 6), (2, 10)))
    seen = AttentionScores(0.3, True, torch.empty(2, 1, 1, 10, dtype=dtype, device="meta") if masked else None)
    result, sums = KERNELS["efficient"].forward(q, k, k, seen)
    assert (result.shape, sums.shape, sums.dtype) == (q.shape, (2, 4, 6, 1 + masked), torch.float32)
    slopes = KERNELS["efficient"].backward(result, q, k, k, (result, sums), seen)
    assert [x.shape for x in slopes] == [q.shape, k.shape, k.shape]


class Counting(Host):
    """Counts the pairs of a query and a key that are computed."""

    def __init__(self) -> None:
        self.pairs = 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: AttentionScores) -> Any:
        queries, keys = q.shape[2], k.shape[2]
        self.pairs += queries * (queries + 1) // 2 if seen.causal else queries * keys
        return super().forward(q, k, v, seen)


def _over(group: Group, many: tuple[int, ...], few: tuple[int, ...], width: int, causal: bool, padded: bool) -> None:
    """Both ways on this rank against the formula of the whole, forward and backward; equal work."""
    size, here = 8 * group.size, slice(8 * group.index, 8 * (group.index + 1))
    sizes = ((*many, size, 4), (*few, size, 4), (*few, size, width))
    whole = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in sizes]
    keep = (torch.rand(*many[:-1], size) > 0.4).index_fill(-1, torch.arange(6), False) if padded else None
    formula = by_formula(*whole, keep, 0, causal)
    slope = torch.randn_like(formula)
    wanted = [x[..., here, :] for x in (formula, *torch.autograd.grad(formula, whole, slope))]
    KERNELS["host"] = counting = Counting()
    part = [x.detach()[..., here, :].requires_grad_() for x in whole]
    ring = rt.ring_attention(*part, group, None if keep is None else keep[..., here], causal)
    for one, other in zip((ring, *torch.autograd.grad(ring, part, slope[..., here, :])), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    pairs = (size * (size + 1) // 2 if causal else size * size) / group.size
    assert counting.pairs == pairs
    if not causal:
        return
    KERNELS["host"] = counting = Counting()
    given = [part[0], *(x.detach().requires_grad_() for x in whole[1:])]
    even = rt.even_attention(*given, group, keep)
    dq, *slopes = torch.autograd.grad(even, given, slope[..., here, :])
    summed = [blocks.scattered(x, x.dim() - 2, group) for x in slopes]
    for one, other in zip((even, dq, *summed), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert counting.pairs == pairs


def over_groups() -> None:
    """On each of four ranks: groups of four and of two, also out of rank order."""
    mesh = rt.Mesh(a=2, b=2)
    for axes in (("a", "b"), ("b", "a"), ("b",)):
        for (many, few), width in zip(SHAPES, (4, 4, 3, 4, 6), strict=True):
            for causal, padded in itertools.product((True, False), (True, False)):
                torch.manual_seed(mesh[("a",)].index if axes == ("b",) else 0)
                _over(mesh[axes], many, few, width, causal, padded)


class Order(Counting):
    """What happens in which order: a message begins, or is waited for; a block is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way, self.computed = 0, list[int]()

    def begun(self, x: Tensor, group: Group, sources: tuple[int, ...]) -> Any:
        found, self.under_way = right(x, group, sources), self.under_way + 1
        wait = found.wait

        def waited() -> Tensor:
            self.under_way -= 1
            return wait()

        found.wait = waited  # type: ignore[method-assign]
        return found

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: AttentionScores) -> Any:
        self.computed.append(self.under_way)
        return super().forward(q, k, v, seen)

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Any, seen: AttentionScores) -> Any:
        self.computed.append(self.under_way)
        return super().backward(gradient, q, k, v, whole, seen)


right = blocks.begin_permuted


def in_order() -> None:
    """Keys and values are on their way while others are computed with, and in backward the gradients behind them."""
    KERNELS["host"] = order = Order()
    blocks.begin_permuted = order.begun
    x = torch.randn(2, 2, 8, 4, requires_grad=True)
    for causal in (False, True):
        order.computed.clear()
        result = rt.ring_attention(x, x, x, rt.Mesh(a=4).a, causal=causal)
        forward, backward = list(order.computed), order.computed
        backward.clear()
        result.sum().backward()
        assert (forward, backward, order.under_way) == ([1, 1, 1, 0], [1, 2, 2, 1], 0)


def test_a_ring_sends_while_it_computes() -> None:
    on_ranks(__file__, "in_order", 4)


def test_over_ranks_numbers_are_the_wholes_and_work_is_even() -> None:
    on_ranks(__file__, "over_groups", 4)


def over_three() -> None:
    _over(rt.Mesh(a=3)["a"], (2, 4), (2, 2), 4, True, True)


def test_over_three_ranks() -> None:
    on_ranks(__file__, "over_three", 3)


HOW: tuple[dict[str, Any], ...] = (
    {"window": 5}, {"softcap": 0.8}, {"p": 0.3}, {"bias": True}, {"sinks": True}, {"keep": True, "sinks": True},
    {"keep": True, "bias": True, "sinks": True, "window": 11, "softcap": 1.5, "p": 0.2}, {"bias": True, "hides": True},
    {"keep": True, "bias": True, "hides": True}, {"bias": True, "hides": True, "sinks": True, "window": 3},
)  # fmt: skip


def _scored(group: Group, causal: bool, more: dict[str, Any]) -> None:
    """Both ways against one rank that has all, which tests/ops holds to formulas."""
    size, here = 8 * group.size, slice(8 * group.index, 8 * (group.index + 1))
    q, k, v = (torch.randn(2, heads, size, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    more, given = dict(more), {"bias": torch.randn(4, size, size).double(), "sinks": torch.randn(4).double()}
    given |= {"bias": hiding(4, size, size)} if more.pop("hides", False) else {}
    extra = {name: x.requires_grad_() for name, x in given.items() if more.pop(name, False)}
    keep = (torch.rand(2, size) > 0.4) if more.pop("keep", False) else None
    drawn = {"key": 5, "whole": (2, 4, size, size), "offsets": (0, 0)} if "p" in more else {}
    leaves = [q, k, v, *extra.values()]
    whole = attention(q, k, v, keep, causal, **extra, **more, **drawn)
    slope = torch.randn_like(whole)
    wanted = [whole, *torch.autograd.grad(whole, leaves, slope)]
    wanted[:4] = [x[..., here, :] for x in wanted[:4]]
    own = {name: x.detach().requires_grad_() for name, x in extra.items()}
    for ring in (True, False) if causal else (True,):
        parts = [x.detach()[..., here, :] if ring or x is q else x.detach() for x in (q, k, v)]
        parts = [x.requires_grad_() for x in parts]
        if ring:
            keeps = None if keep is None else keep[..., here]
            result = rt.ring_attention(*parts, group, keeps, causal, **own, **more, **drawn)
        else:
            result = rt.even_attention(*parts, group, keep, **own, **more, **drawn)
        dq, dk, dv, *rest = torch.autograd.grad(result, [*parts, *own.values()], slope[..., here, :])
        dk, dv = (x if ring else blocks.scattered(x, 2, group) for x in (dk, dv))
        summed = [blocks.scattered(torch.cat([x] * group.size), 0, group) for x in rest]
        for one, other in zip((result, dq, dk, dv, *summed), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def scored_over_groups() -> None:
    mesh = rt.Mesh(a=2, b=2)
    for axes, how, causal in itertools.product((("a", "b"), ("b",)), HOW, (True, False)):
        torch.manual_seed(mesh[("a",)].index if axes == ("b",) else 0)
        _scored(mesh[axes], causal, how)


def test_windows_caps_biases_sinks_and_dropped_weights_are_the_wholes_over_ranks() -> None:
    on_ranks(__file__, "scored_over_groups", 4)


@pytest.mark.parametrize("how", [{"window": 8}, {"softcap": 1.0}, {"p": 0.5, "key": 1}, {"bias": 512}, {"bias": 1}])
def test_scores_are_there_a_few_at_a_time(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor has an element for each pair, but a bias that has one itself."""
    monkeypatch.setattr(attention_scores, "ROOM", 4096)
    q, k = (torch.randn(1, heads, 512, 2, requires_grad=True) for heads in (4, 2))
    rows = how.get("bias")
    more = {"bias": torch.randn(1, rows, 512, requires_grad=True)} if rows else how
    with Largest() as largest:
        attention(q, k, k, causal=True, **more).sum().backward()
    assert largest.found == max(4096, (rows or 0) * 512)


def test_of_a_window_only_what_is_near_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs grow with the sequence, not with its square."""
    counted: list[int] = []
    inner = attention_scores._scores

    def scores(q: Tensor, k: Tensor, *more: Any) -> Any:
        counted.append(q.shape[2] * k.shape[2])
        return inner(q, k, *more)

    monkeypatch.setattr(attention_scores, "_scores", scores)
    q = torch.randn(1, 2, 4096, 4)
    attention(q, q, q, causal=True, window=128)
    assert sum(counted) == 128 * 128 + 31 * 128 * 255


def test_the_room_for_scores_is_what_plans_count() -> None:
    assert attention_scores.ROOM == declared.ROOM
