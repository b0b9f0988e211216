"""Microbatches on four real ranks: whatever their number and the level of ZeRO, a step gives the whole batch's."""

from __future__ import annotations

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.comm.mesh import microbatches, world
from shardlang.runtime.logs import Log
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.runtime.forked import on_ranks

SHAPES = {"up.weight": (6, 10), "up.bias": (10,), "down.weight": (10, 3), "scale": (), "unused": (5,), "gain": (3,)}
BATCH = 16


class Figures(Log):
    """Keeps what a run reports."""

    asks = True

    def __init__(self) -> None:
        super().__init__(None, None)
        self.steps, self.evaluations = [], []

    def step(self, step, epoch, figures, *further):
        self.steps.append(figures)

    def evaluation(self, epoch, step, figures, by_step=False):
        self.evaluations.append(figures)


def forward_of(mesh):
    """Masked mean of a model with dropout, plus terms that do not depend on the batch: once of a parameter that is used
    for the batch too, once of one that is not and so has a whole gradient in each microbatch.
    """
    batch = ("dp", "microbatch")

    def forward(p, x, label, loss_count):
        h = torch.relu(x @ p.up.weight + p.up.bias)
        each = BATCH // mesh[batch].size
        start = (mesh[batch].index * each, 0)
        h = rt.dropout(h, 0.25, rt.random.key("h"), (BATCH, 10), start)
        y = h @ p.down.weight * p.scale
        kept = (label > 4).double()
        loss = (y.square().sum(1) * kept).sum() / loss_count
        loss = loss + rt.replicated_to_pending(p.up.weight.square().sum() * 0.01, mesh[batch])
        loss = loss + rt.identical_to_pending((p.gain - 1.0).square().sum(), mesh[batch])
        return loss, {"mean": y.detach().sum() / BATCH, "scale": p.scale.detach()}

    return forward


def _count_of(x, label):
    return {"loss_count": (label > 4).double().sum()}


def counted_of(mesh):
    return lambda loss_count: {"loss_count": rt.all_reduce(loss_count, mesh.dp)}


def evaluate_of(mesh):
    @torch.no_grad()
    def evaluate(p, x, label, rows):
        y = torch.relu(x @ p.up.weight + p.up.bias) @ p.down.weight
        each = BATCH // mesh["dp", "microbatch"].size
        return {
            "loss:1": rt.tally(y.square().sum(1), 0, mesh["dp", "microbatch"].index * each, rows),
            "scale:1": torch.stack((p.scale.double(), torch.ones_like(p.scale))),
        }

    return evaluate


def program(parts, zero=0, bucket_bytes=200, dp=4, **settings) -> rt.Program:
    """Six steps of batches of 16, cut over dp and then in time; an evaluation of two batches after each epoch."""
    mesh = rt.Mesh(dp=dp, microbatch=rt.Time(parts))
    batch = ("dp", "microbatch")
    zeroed = {"zero": (zero, "dp")}
    fields = [
        rt.Field("x", "f32", (BATCH, 6), cut={0: batch}),
        rt.Field("label", "i64", (BATCH,), cut={0: batch}, bound=10),
    ]
    return rt.Program(
        name="test.shard", strategy="", ranks=world.size, mesh=mesh, seed=3, precision="f64",
        parameters=[
            rt.Parameter(path, shape, init=("normal", 0.5), **zeroed, once=path == "gain",
                         reduce=() if path == "gain" else "dp")
            for path, shape in SHAPES.items()
        ],
        data=rt.Source("random", batch=BATCH, fields=fields, batches=3, seed=1),
        eval=rt.Source("random", batch=BATCH, fields=fields, batches=2, seed=2),
        optimizers=[rt.Optimizer("adamw", lr=0.01)],
        forward=forward_of(mesh), before_microbatch=_count_of, before_step=counted_of(mesh),
        loss_pending=batch, metrics_pending={"mean": batch, "scale": ()},
        evaluate=evaluate_of(mesh), finish=lambda totals: {n: t[0] / t[1] for n, t in totals.items()},
        eval_pending={"loss:1": batch, "scale:1": ()},
        epochs=2, bucket_bytes=bucket_bytes, clip=0.5, **settings,
    )  # fmt: skip


def trained(parts, **settings) -> tuple[dict[str, torch.Tensor], Figures]:
    made = program(parts, **settings)
    log = Figures()
    run = TrainingRun(made, datasets(made), log)
    run.train()
    return {tensor.path: block().detach().clone() for tensor, block in run.model.blocks()}, log


def _same(found, expected, what: str) -> None:
    for path, value in expected[0].items():
        torch.testing.assert_close(
            found[0][path], value, atol=1e-12, rtol=1e-11, msg=lambda m, p=path: f"{what} {p}: {m}"
        )
    for mine, theirs in zip(
        found[1].steps + found[1].evaluations, expected[1].steps + expected[1].evaluations, strict=True
    ):
        assert mine == pytest.approx(theirs, rel=1e-11, abs=1e-12), what


def any_number_and_level() -> None:
    expected = trained(1)
    assert len(expected[1].steps) == 6 and len(expected[1].evaluations) == 2
    for parts in (2, 4):
        for zero in (0, 1, 2, 3):
            for bucket_bytes in (100, 10_000):
                _same(trained(parts, zero=zero, bucket_bytes=bucket_bytes), expected, f"{parts} parts, zero {zero}")


def alone() -> None:
    """One rank, as four do."""
    expected = trained(4, dp=1)
    _same(trained(1, dp=1), expected, "alone")
    _same(trained(2), expected, "four ranks")


def each_kind_of_bucket_starts_when_it_should() -> None:
    """Plain sums and ZeRO 1 once a step, in the last backward; ZeRO 2 in that of each microbatch."""
    for zero, expected in ((0, [3]), (1, [3, 3]), (2, [0, 0, 1, 1, 2, 2, 3, 3])):
        made = program(4, zero=zero, bucket_bytes=10_000)
        run = TrainingRun(made, datasets(made), Figures())
        begun: list[int] = []
        for bucket in run.model.reducer.buckets:
            bucket.launch = _counted(bucket.launch, begun)
        run.passes.step(next(iter(run.loader.epoch(1))))
        assert begun == expected, (zero, begun)


def _counted(launch, begun: list[int]):
    def counted() -> None:
        begun.append(world.microbatch)
        launch()

    return counted


@pytest.mark.parametrize("what", ["any_number_and_level", "alone", "each_kind_of_bucket_starts_when_it_should"])
def test_on_four_ranks(what: str) -> None:
    on_ranks(__file__, what, 4)


def test_an_axis_in_time_counts_in_indexes_and_in_no_group_of_ranks() -> None:
    mesh = rt.Mesh(dp=2, microbatch=rt.Time(3))
    kept = world.rank
    try:
        found = []
        for world.rank in range(2):
            found += [(mesh["dp", "microbatch"].index, mesh.microbatch.index, mesh.dp.index) for _ in microbatches(3)]
    finally:
        world.rank = kept
    assert found == [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 0, 1), (4, 1, 1), (5, 2, 1)]
    assert (mesh["dp", "microbatch"].size, mesh.dp.size, list(mesh)) == (6, 2, ["dp"])
    with pytest.raises(ValueError, match="nothing is sent"):
        mesh["dp", "microbatch"].handle(torch.zeros(1))


def test_a_mesh_of_the_ranks_of_a_stage() -> None:
    """Stages along the middle axis of 2 x 2 x 2: another factoring of the four ranks that share a coordinate."""
    whole = rt.Mesh(dp=2, pp=2, mp=2)
    inner = rt.Mesh((whole, "pp"), a=4)
    kept = world.rank
    try:
        found = {}
        for world.rank in range(8):
            found[world.rank] = (inner.a.ranks, inner.a.index)
    finally:
        world.rank = kept
    assert [found[r][0] for r in (0, 1, 4, 5)] == [(0, 1, 4, 5)] * 4
    assert [found[r] for r in (2, 3, 6, 7)] == [((2, 3, 6, 7), i) for i in range(4)]
