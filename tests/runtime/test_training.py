"""Training on four real ranks: buckets, ZeRO 1 to 3, clipping and weights give what one rank in plain torch gives."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime import random
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.state import alive
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.runtime.forked import on_ranks

MESH = rt.Mesh(dp=4)
SHAPES = {"up.weight": (6, 10), "up.bias": (10,), "down[1].weight": (10, 3), "scale": (), "unused": (5,)}


def _forward(p, x, label):
    h = torch.relu(x @ p.up.weight + p.up.bias)
    y = h @ p.down[1].weight * p.scale
    loss = (y - label).square().sum() / (8 * 3)
    return loss, {"largest": y.detach().square().sum() / 8, "scale": p.scale.detach()}


def program(mesh=MESH, zero=0, optimizer="sgd", bucket_bytes=200, reduce=("dp",), **settings):
    """A model of five parameters, one of them not used, one a scalar; batch 8 of 32 examples."""
    cut = {0: "dp"}
    zeroed = {"zero": (zero, "dp")}
    parameters = [
        rt.Parameter(path, shape, init=("normal", 0.5), reduce=reduce, **zeroed) for path, shape in SHAPES.items()
    ]
    arguments = {
        "sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
        "adam": {"lr": 0.01},
        "adamw": {"lr": 0.01, "weight_decay": 0.1},
    }[optimizer]
    return rt.Program(
        name="test.shard",
        strategy="",
        ranks=world.size,
        mesh=mesh,
        parameters=parameters,
        seed=3,
        data=rt.Source(
            "random",
            batch=8,
            fields=[rt.Field("x", "f32", (8, 6), cut=cut), rt.Field("label", "f32", (8, 3), cut=cut)],
            batches=4,
            seed=1,
        ),
        optimizers=[rt.Optimizer(optimizer, **arguments), rt.Optimizer("sgd", at=list(SHAPES)[3:], lr=0.05)],
        forward=_forward,
        loss_pending=("dp",),
        metrics_pending={"largest": ("dp",), "scale": ()},
        epochs=3,
        bucket_bytes=bucket_bytes,
        **settings,
    )


def trained(**settings) -> dict[str, torch.Tensor]:
    """The whole parameters after three epochs."""
    made = program(**settings)
    run = TrainingRun(made, datasets(made), Log(None, None))
    run.train()
    return {tensor.path: block().detach().clone() for tensor, block in run.model.blocks()}


def plain(optimizer: str, clip: float | None = None) -> dict[str, torch.Tensor]:
    """The same by torch.optim on the whole batch."""
    one = rt.Mesh(dp=1)
    made = program(mesh=one, optimizer=optimizer)
    random.start(made.seed)
    leaves = {
        t.path: torch.nn.Parameter(
            random.normal(random.key(t.path, step=0), t.shape, t.shape, (0,) * len(t.shape)) * 0.5
        )
        for t in made.parameters
    }
    main = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    first, second = list(leaves.values())[:3], list(leaves.values())[3:]
    kinds = [main(first, **made.optimizers[0].arguments), torch.optim.SGD(second, lr=0.05)]
    from shardlang.runtime.data.loader import Loader
    from shardlang.runtime.tree import namespace

    loader = Loader(made, made.data, datasets(made)["data"])
    for epoch in (1, 2, 3):
        for batch in loader.epoch(epoch):
            _forward(namespace(leaves), *batch[0].values())[0].backward()
            for leaf in leaves.values():
                leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(list(leaves.values()), clip)
            for kind in kinds:
                kind.step()
                kind.zero_grad()
    return leaves


def _close(found, expected, what) -> None:
    for path, value in expected.items():
        torch.testing.assert_close(
            found[path], value.detach(), atol=2e-6, rtol=2e-5, msg=lambda m, p=path: f"{what} {p}: {m}"
        )


def levels() -> None:
    """Every level of ZeRO with every optimizer; buckets small and large."""
    for optimizer in ("sgd", "adam", "adamw"):
        expected = trained(optimizer=optimizer)
        for zero in (1, 2, 3):
            for bucket_bytes in (100, 10_000):
                _close(
                    trained(zero=zero, optimizer=optimizer, bucket_bytes=bucket_bytes),
                    expected,
                    f"{optimizer} zero {zero}",
                )


def levels_over_two_axes() -> None:
    """Sharded over one axis of two, whose groups are not in rank order; pending over both, or not over the sharding
    one.
    """
    mesh = rt.Mesh(b=2, dp=2)
    two = {"mesh": mesh, "reduce": ("b", "dp")}

    def run(zero, axes, reduce):
        made = program(**{**two, "reduce": reduce})
        made.parameters = [
            rt.Parameter(t.path, t.shape, init=t.init, cut=t.cut, reduce=reduce, zero=(zero, axes))
            for t in made.parameters
        ]
        made.loss_pending = reduce
        made.metrics_pending = {"largest": reduce, "scale": ()}
        cut = {0: reduce}
        made.data = rt.Source(
            "random",
            batch=8,
            batches=4,
            seed=1,
            fields=[rt.Field("x", "f32", (8, 6), cut=cut), rt.Field("label", "f32", (8, 3), cut=cut)],
        )
        running = TrainingRun(made, datasets(made), Log(None, None))
        running.train()
        return {tensor.path: block().detach().clone() for tensor, block in running.model.blocks()}

    expected = run(0, (), ("b", "dp"))
    for zero in (1, 2, 3):
        for axes in (("dp",), ("b",), ("dp", "b"), ("b", "dp")):
            _close(run(zero, axes, ("b", "dp")), expected, f"zero {zero} over {axes}")
            _close(run(zero, axes, ("dp",)), expected, f"zero {zero} over {axes}, pending over dp")


def clipped_and_saved() -> None:
    """The norm is over the whole model; saved weights are whole and start another run."""
    expected = trained(clip=0.3)
    for zero in (1, 3):
        _close(trained(clip=0.3, zero=zero), expected, f"clip, zero {zero}")
        # Over b all ranks have the same: each part counts once.
        _close(trained(mesh=rt.Mesh(b=2, dp=2), clip=0.3, zero=zero), expected, f"clip, zero {zero} beside b")
    folder = Path(tempfile.gettempdir())  # of these ranks alone
    made = program(zero=3)
    run = TrainingRun(made, datasets(made), Log(None, None))
    run.train()
    run.save(folder / "w.safetensors")
    torch.distributed.barrier()
    again = program(zero=2, init=rt.Safetensors("w.safetensors"))
    again.base = folder
    model = RankModel(again)
    _close({t.path: b().detach() for t, b in model.blocks()}, trained(), "saved and loaded")


def frees_and_overlaps() -> None:
    """With ZeRO-3 no gathered parameter is alive after forward; buckets start while backward still runs."""
    made = program(zero=3)
    run = TrainingRun(made, datasets(made), Log(None, None))
    batch = next(iter(run.loader.epoch(1)))[0].values()
    with run.model.forward_context():
        loss, _ = made.forward(run.model.p, *batch)
    assert alive._known == {}
    run.model.backward(loss)

    plain_model = RankModel(program(bucket_bytes=1))
    begun: list[int] = []
    for number, bucket in enumerate(plain_model.reducer.buckets):
        bucket.launch = _counted(bucket.launch, begun, number)
    with_unused = dict.fromkeys(range(len(plain_model.reducer.buckets)))
    loss, _ = made.forward(plain_model.p, *batch)
    plain_model.reducer.start()
    loss.backward()
    # The last parameter in the program's order is not used, so its bucket, the first, holds the others back.
    assert begun == []
    plain_model.reducer.finish()
    assert begun == list(with_unused)

    used = program(bucket_bytes=1)
    used.parameters = used.parameters[:-1]
    used.optimizers = []
    used_model = RankModel(used)
    begun.clear()
    for number, bucket in enumerate(used_model.reducer.buckets):
        bucket.launch = _counted(bucket.launch, begun, number)
    used_model.reducer.start()
    made.forward(used_model.p, *batch)[0].backward()
    assert begun == [0, 1, 2, 3]
    used_model.reducer.finish()


def _counted(launch, begun: list[int], number: int):
    def counted() -> None:
        begun.append(number)
        launch()

    return counted


def agrees_with_torch() -> None:
    for optimizer in ("sgd", "adam", "adamw"):
        _close(trained(optimizer=optimizer), plain(optimizer), f"{optimizer} against torch.optim")
    _close(trained(clip=0.3), plain("sgd", clip=0.3), "clip against torch")


@pytest.mark.parametrize(
    "what", ["levels", "levels_over_two_axes", "clipped_and_saved", "frees_and_overlaps", "agrees_with_torch"]
)
def test_on_four_ranks(what: str) -> None:
    on_ranks(__file__, what, 4)


def test_bias_over_eight_ranks_has_chunk_sizes() -> None:
    """[10] over 8: 2, 2, 2, 2, 2, 0, 0, 0."""
    mesh = rt.Mesh(dp=8)
    kept = world.rank
    try:
        sizes = []
        for rank in range(8):
            world.rank = rank
            sizes.append(mesh.dp.chunk(10))
    finally:
        world.rank = kept
    assert sizes == [2, 2, 2, 2, 2, 0, 0, 0]
