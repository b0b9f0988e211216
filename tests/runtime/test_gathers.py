"""ZeRO on real ranks: what a rank holds follows the paper; parameters come together, and ahead of their use."""

from __future__ import annotations

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.state import alive
from shardlang.runtime.state.zero3 import Gathers, Order, Stored
from shardlang.runtime.step.train import Run, datasets
from tests.runtime.forked import on_ranks

LAYERS, WIDTH, BATCH = 6, 64, 8
# Parameters of a layer, and of all: a weight and a bias.
EACH = WIDTH * WIDTH + WIDTH
COUNT = LAYERS * EACH


def _forward(p, x, label):
    for layer in range(LAYERS):
        x = torch.tanh(x @ p.layers[layer].weight + p.layers[layer].bias)
    return (x - label).square().sum() / (BATCH * WIDTH), {}


def program(zero: int, bucket_bytes: int, optimizer: str = "adam", parts: int = 1) -> rt.Program:
    mesh = rt.Mesh(dp=world.size, microbatch=rt.Time(parts))
    cut = {0: ("microbatch", "dp")}
    zeroed = {"zero": (zero, "dp")}
    shapes = {
        f"layers[{n}].{name}": s for n in range(LAYERS) for name, s in (("weight", (WIDTH, WIDTH)), ("bias", (WIDTH,)))
    }
    return rt.Program(
        name="test.shard", strategy="", ranks=world.size, mesh=mesh, seed=3,
        parameters=[
            rt.Parameter(path, shape, ("normal", 0.3), reduce="dp", **zeroed)
            for path, shape in shapes.items()
        ],
        data=rt.Source(
            "random", batch=BATCH, batches=4, seed=1,
            fields=[rt.Field("x", "f32", (BATCH, WIDTH), cut), rt.Field("label", "f32", (BATCH, WIDTH), cut)],
        ),
        optimizers=[rt.Optimizer(optimizer, lr=0.01)],
        forward=_forward, loss_pending=("dp", "microbatch"), epochs=2, bucket_bytes=bucket_bytes,
    )  # fmt: skip


def _bytes(tensors) -> int:
    """Of distinct memory."""
    found = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None and t.numel()
    }
    return sum(found.values())


def follows_the_paper() -> None:
    """Bytes of parameters, gradients and optimizer state: 4, 4 and 8 of each parameter (Adam in float32), of which ZeRO
    divides by the number of ranks the last, the last two, or all (Rajbhandari and others, 2020, figure 1).
    """
    n = world.size
    for zero, expected in ((0, (4, 4, 8)), (1, (4, 4, 8 / n)), (2, (4, 4 / n, 8 / n)), (3, (4 / n, 4 / n, 8 / n))):
        made = program(zero, 10_000)
        run = Run(made, datasets(made), Log(None, None))
        loader = run.loader.epoch(1)
        run.passes.step(next(loader))
        run.model.update(1, 8)
        run.passes.step(next(loader))
        model = run.model
        held = list(model.trained.values())
        gradients = [t.grad for t in model.trained.values()]
        kept = [t for o in model.optimizers for tensors in o.kept().values() for t in tensors]
        found = _bytes(held), _bytes(gradients), _bytes(kept)
        if zero == 1:
            # Whole gradients are there until the last microbatch is through; then they are rows.
            assert _bytes(gradients) == COUNT * 4 // n
            found = found[0], COUNT * 4, found[2]
        for mine, bytes_each in zip(found, expected, strict=True):
            assert mine == pytest.approx(COUNT * bytes_each, rel=0.02), (zero, found, expected)


def comes_together_and_ahead() -> None:
    """From the second pass on: a collective a bucket, the next one begun before the last has been used up."""
    made = program(3, 2 * EACH * 4, parts=2)
    run = Run(made, datasets(made), Log(None, None))
    begun: list[int] = []
    real = primitives.begin_all_gather
    primitives.begin_all_gather = lambda x, group: (begun.append(x.numel()), real(x, group))[1]
    try:
        batches = run.loader.epoch(1)
        run.passes.step(next(batches))
        first = len(begun)
        # The first microbatch learns; in the second all come in threes of two layers each.
        orders = run.model.gathers.orders
        assert {kind: len(order.groups) for kind, order in orders.items()} == {"forward": 3, "backward": 3}
        assert first == 2 * LAYERS + (LAYERS - 1) + 3 + 3
        begun.clear()
        run.passes.step(next(batches))
        assert len(begun) == 2 * (3 + 3)
    finally:
        primitives.begin_all_gather = real
    order = orders["forward"]
    now = run.model.gathers
    with now.during("forward"):
        for at, stored in enumerate(order.uses):
            now.bring(stored)
            assert now.now.opened == order.where[at] + 1
            assert (now.now.coming is None) == (order.where[at] == len(order.groups) - 1)
    assert alive._known == {}


def another_way_is_learned_anew() -> None:
    made = program(3, 10_000)
    run = Run(made, datasets(made), Log(None, None))
    gathers, stored = run.model.gathers, list(run.model.stored.values())
    real = {id(s): s.gather() for s in stored}
    ways = [stored[:4], stored[:4], stored[:2], [stored[3], stored[0]], stored[:6], stored[:6]]
    for way in ways:
        with gathers.during("some"):
            for s in way:
                assert torch.equal(gathers.bring(s), real[id(s)])
        assert gathers.orders["some"].uses == way


@pytest.mark.parametrize("what", ["follows_the_paper", "comes_together_and_ahead", "another_way_is_learned_anew"])
def test_on_four_ranks(what: str) -> None:
    on_ranks(__file__, what, 4)


class _Used:
    def __init__(self, group: str, size: int) -> None:
        self.group, self.dtype, self.shape = group, torch.float32, (size,)


def test_an_order_is_cut_by_bytes_groups_and_repeated_uses() -> None:
    a, b, c, d = _Used("dp", 10), _Used("dp", 10), _Used("mp", 10), _Used("dp", 50)
    order = Order.of([a, b, a, c, a, d, d], 80)
    assert [group.members for group in order.groups] == [[a, b], [c], [a], [d]]
    assert order.where == [0, 0, 0, 1, 2, 3, 3]
    assert order.last == [False, True, True, True, True, False, True]


class _Here(Gathers):
    """Nothing has to be brought."""

    def bring(self, stored: Stored) -> torch.Tensor:
        return stored.piece


def _alone() -> Stored:
    """A parameter of two elements, on the only rank."""
    return Stored(torch.tensor([2.0, 3.0]), (2,), rt.Mesh(dp=1)["dp"], _Here(100))


def test_gradients_of_all_uses_are_added() -> None:
    stored = _alone()
    (stored() * torch.tensor([1.0, 10.0]) + stored().square()).sum().backward()
    gradient = stored.take()
    assert gradient is not None
    assert gradient.tolist() == [1.0 + 4.0, 10.0 + 6.0]
    assert stored.take() is None


def test_what_each_microbatch_has_whole_counts_in_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = _alone()
    stored.once = True
    for number, factor in enumerate((5.0, 7.0)):
        monkeypatch.setattr(world, "microbatch", number)
        (stored() * factor).sum().backward()
    gradient = stored.take()
    assert gradient is not None
    assert gradient.tolist() == [5.0, 5.0]
