"""Gradients of weights are computed while the sum of their operand's gradient travels, with the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardlang import runtime as rt
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.collectives import LateGradients
from shardlang.runtime.comm.mesh import world
from tests.runtime.forked import on_ranks

BATCH, WIDTH, HEADS = 4, 6, 5
Made = Callable[[Tensor], Tensor]


class _Order(TorchDispatchMode):
    """Notes products, collectives that begin, and waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.events.append("product")
        return func(*args, **(kwargs or {}))

    def begun(self, begin: Callable[..., primitives.AsyncResult]) -> Callable[..., primitives.AsyncResult]:
        def started(*arguments: object, **named: object) -> primitives.AsyncResult:
            self.events.append("begin")
            return _Waited(begin(*arguments, **named), self.events)

        return started


class _Waited(primitives.AsyncResult):
    def __init__(self, ready: primitives.AsyncResult, events: list[str]) -> None:
        self.ready, self.events = ready, events

    def wait(self) -> Tensor:
        self.events.append("wait")
        return self.ready.wait()


def _trained(convert: Made, bias: bool, weights: int, frozen: int = 0) -> tuple[list[Tensor], list[str]]:
    """The gradients of x and of the weights and biases of products that read what `convert` makes of it; what backward
    did, in order.
    """
    torch.manual_seed(world.rank)
    x = torch.randn(BATCH, 2, WIDTH, requires_grad=True)
    ws = [torch.randn(HEADS, WIDTH, requires_grad=at >= frozen) for at in range(weights)]
    bs = [torch.randn(HEADS, requires_grad=True) if bias else None for _ in ws]
    h = convert(x * 2)
    loss = sum((rt.overlapped_linear(h, w, b).square().sum() for w, b in zip(ws, bs, strict=True)), torch.zeros(()))
    order, real = _Order(), (primitives.begin_reduce, primitives.begin_reduce_scatter)
    primitives.begin_reduce, primitives.begin_reduce_scatter = map(order.begun, real)
    try:
        with order:
            loss.backward()
    finally:
        primitives.begin_reduce, primitives.begin_reduce_scatter = real
    return [t.grad for t in (x, *ws, *bs) if t is not None and t.grad is not None], order.events


def the_sum_begins_before_the_gradients_of_weights() -> None:
    mesh = rt.Mesh(tp=world.size)
    converts: list[Made] = [
        lambda x: rt.identical_to_replicated(x, mesh.tp),
        lambda x: rt.all_gather_replicated(x, 1, mesh.tp),
        lambda x: rt.all_gather_replicated(x, 0, mesh.tp, sizes=(BATCH,) * world.size),
    ]
    cases = [(True, 1, 0), (False, 1, 0), (True, 3, 0), (False, 3, 1)]
    for convert, (bias, weights, frozen) in ((c, case) for c in converts for case in cases):
        LateGradients.on = False
        plain, events = _trained(convert, bias, weights, frozen)
        assert events == [*["product"] * (2 * weights - frozen), "begin", "wait"]
        LateGradients.on = True
        found, events = _trained(convert, bias, weights, frozen)
        assert events == [*["product"] * weights, "begin", *["product"] * (weights - frozen), "wait"]
        assert len(found) == len(plain)
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    LateGradients.on = False


@pytest.mark.parametrize("what", ["the_sum_begins_before_the_gradients_of_weights"])
def test_on_two_ranks(what: str) -> None:
    on_ranks(__file__, what, 2)
