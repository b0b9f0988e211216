"""`rt.recompute` changes no gradient, keeps nothing between forward and backward, and moves no state twice."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef

from shardlang import runtime as rt
from shardlang.runtime import random
from shardlang.runtime.comm import blocks
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.state import alive
from shardlang.runtime.state.alive import dropped_between
from shardlang.runtime.state.zero import shard
from shardlang.runtime.state.zero3 import GatherSchedule, Zero3Parameter
from shardlang.runtime.step.recompute import Recomputing
from tests.runtime.forked import on_ranks


def layer(x, weight, seen=None):
    h = torch.relu(x @ weight)
    if seen is not None:
        seen.append(weakref.ref(h))
    return rt.dropout(h, 0.5, rt.random.key("h")) @ weight


def test_the_same_gradients_with_nothing_kept() -> None:
    random.start(3)
    x, weight = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    expected = torch.autograd.grad(layer(x, weight).square().sum(), (x, weight))
    seen: list = []
    y = rt.recompute(lambda x: layer(x, weight, seen), x)
    assert [h() for h in seen] == [None]
    found = torch.autograd.grad(y.square().sum(), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(seen) == 2 and not Recomputing.now


def test_dropped_results_are_computed_once_for_all_their_uses() -> None:
    """Two functions, of which the second reads what the first drops, products of these, and a view."""
    torch.manual_seed(0)
    x, w, v = (torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    calls, made, inputs = [], [], []

    def normed(x):
        calls.append("normed")
        h = x * x
        n = F.layer_norm(h, (8,))
        made.extend(StorageWeakRef(result.untyped_storage()) for result in (n, h))
        return n, h

    def gated(g, h):
        calls.append("gated")
        inputs.append(StorageWeakRef(g.untyped_storage()))
        return F.silu(g) * h

    def net(again):
        n, h = again(normed, x)
        y = again(gated, n @ w, h)
        return (y @ w + n.T @ v + h).square().sum()

    expected = torch.autograd.grad(net(lambda f, *given: f(*given)), (x, w, v))
    for each in (calls, made, inputs):
        each.clear()
    with dropped_between():
        loss = net(partial(rt.recompute, drop_results=True))
    assert calls == ["normed", "gated"] and all(each.expired() for each in made)
    found = torch.autograd.grad(loss, (x, w, v))
    del loss
    # After backward nothing is held, what went in neither.
    assert all(each.expired() for each in (*made, *inputs)) and alive._known == {}
    assert sorted(calls) == ["gated", "gated", "normed", "normed"]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_it_is_noted_and_does_nothing_without_gradients() -> None:
    Recomputing.called()
    with torch.no_grad():
        assert rt.recompute(lambda x: x + 1, torch.zeros(2)).tolist() == [1, 1]
    assert not Recomputing.called()
    rt.recompute(lambda x: x * 2, torch.zeros(2, requires_grad=True))
    assert Recomputing.called() and not Recomputing.called()


def test_running_statistics_move_once() -> None:
    x = torch.randn(8, 3, requires_grad=True)
    once, twice = (torch.zeros(3), torch.ones(3)), (torch.zeros(3), torch.ones(3))
    rt.batch_norm(x, 1, *once, size=8).square().sum().backward()
    rt.recompute(lambda x: rt.batch_norm(x, 1, *twice, size=8), x).square().sum().backward()
    assert torch.equal(once[0], twice[0]) and torch.equal(once[1], twice[1])


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 1)])
def test_two_calls_that_share_running_statistics_have_gradients(order: tuple[int, int]) -> None:
    """torch's own keeps the tensors that it moves for a backward that does not read them: a second call may move them
    too, whichever of the two functions each is."""
    kinds = (
        lambda x, *moved: F.batch_norm(x, *moved, training=True),
        lambda x, *moved: rt.batch_norm(x, 1, *moved, size=8),
    )
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for chosen in ((0, 0), order):
        moved = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        y = x
        for kind in chosen:
            y = torch.relu(kinds[kind](y, *moved))
        found.append((*moved, *torch.autograd.grad(y.square().sum(), x)))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def collectives_run_again() -> None:
    """Inside, they run in forward and again in backward, on all ranks alike; gathered parameters are freed."""
    mesh = rt.Mesh(mp=2)
    torch.manual_seed(world.rank)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.arange(36, dtype=torch.float64).view(6, 6) / 36
    stored = Zero3Parameter(shard(weight, mesh.mp).clone(), (6, 6), mesh.mp, GatherSchedule())

    def block(x):
        h = rt.all_gather_replicated(torch.tanh(x @ stored()), 0, mesh.mp)
        return rt.reduce_scatter(torch.tanh(h @ stored()), 0, mesh.mp)

    with dropped_between():
        expected = torch.autograd.grad(block(x).square().sum(), (x, stored.leaf))[0], stored.take()
    calls = []
    kept = blocks.gathered
    blocks.gathered = lambda *a: (calls.append(a[0].shape), kept(*a))[1]
    try:
        with dropped_between():
            y = rt.recompute(block, x)
        assert len(calls) == 1
        found = torch.autograd.grad(y.square().sum(), (x, stored.leaf))[0], stored.take()
    finally:
        blocks.gathered = kept
    assert len(calls) > 1
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-13, rtol=1e-12)


def test_collectives_run_again() -> None:
    on_ranks(__file__, "collectives_run_again", 2)


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    Recomputing.called()
