"""Pipeline stages on four real ranks give what one function does: placements, orders, ZeRO, ties, weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shardlang import runtime as rt
from shardlang.runtime import messages
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.runtime.forked import on_ranks
from tests.runtime.staged import SHAPES, program


class Figures(Log):
    """Keeps what a run reports."""

    asks = True

    def __init__(self) -> None:
        super().__init__(None, None)
        self.seen = []

    def step(self, step, epoch, figures, *further):
        self.seen.append(figures)

    def evaluation(self, epoch, step, figures, by_step=False):
        self.seen.append(figures)


def trained(mesh, **settings):
    """The weights as rank 0 saves them (on the others empty) and all figures."""
    made, log = program(mesh, **settings), Figures()
    run = TrainingRun(made, datasets(made), log)
    for stage, p in run.model.trees.items():
        inner = stage in (1, 2)
        assert [rt.path(block) for block in (p.blocks if inner else ())] == [f"blocks[{stage}]"] * inner
    run.train()
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder) / "w")
        return (load_file(Path(folder) / "w") if world.rank == 0 else {}), log.seen


def same(found, expected, what: str) -> None:
    for path, value in expected[0].items():
        torch.testing.assert_close(
            found[0][path], value, atol=1e-12, rtol=1e-11, msg=lambda m, p=path: f"{what} {p}: {m}"
        )
    assert len(found[1]) == len(expected[1]) == 8
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-11, abs=1e-12), what


def expected():
    return trained(rt.Mesh(dp=1, microbatch=rt.Time(1)))


PLACES = {"four": (4, (0, 1, 2, 3)), "looped": (2, (0, 1, 0, 1)), "v": (2, (0, 1, 1, 0)), "two": (2, (0, 0, 1, 1))}


def placements() -> None:
    """Every placement with every order of actions, stages as the outer and as the inner axis."""
    reference = expected()
    assert set(reference[0] if world.rank == 0 else [*SHAPES, "counts"]) == {*SHAPES, "counts"}
    for name, (pp, coordinates) in PLACES.items():
        for order in ("FB", "BF", "IFW"):
            outer = rt.Mesh(pp=pp, dp=4 // pp, microbatch=rt.Time(4))
            same(trained(outer, coordinates=coordinates, order=order), reference, f"{name} {order}")
        inner = rt.Mesh(dp=4 // pp, pp=pp, microbatch=rt.Time(2))
        same(trained(inner, coordinates=coordinates, order="BF"), reference, f"{name}, stages within")


def sharded() -> None:
    """Every level of ZeRO, in placements that tie a parameter across ranks and on one."""
    reference = expected()
    for zero in (1, 2, 3):
        for name in ("looped", "v"):
            for order in ("BF", "IFW"):
                mesh = rt.Mesh(pp=2, dp=2, microbatch=rt.Time(2))
                found = trained(mesh, coordinates=PLACES[name][1], order=order, zero=zero)
                same(found, reference, f"zero {zero} {name} {order}")


def buckets_start_in_the_last_backward() -> None:
    """Of a stage's actions only the last one that has gradients for a bucket starts it."""
    made = program(rt.Mesh(pp=2, dp=2, microbatch=rt.Time(4)), coordinates=(0, 1, 0, 1), order="BF")
    run = TrainingRun(made, datasets(made), Figures())
    rows = run.passes.training.mine
    for number, stages in enumerate(run.model.bucket_stages):
        starts = [at for at, due in enumerate(run.passes.due) if number in due]
        last = [at for at, action in enumerate(rows) if action.kind == "B" and action.stage in stages]
        assert starts == last[-1:]
    tied = run.model.leaves["table"]
    assert [s for b, s in zip(run.model.reducer.buckets, run.model.bucket_stages, strict=True) if s == ()] == [()]
    assert any(member is tied for b in run.model.reducer.buckets for member in b.members)


def receives_are_posted_an_action_ahead() -> None:
    """The values that the next action needs travel while this one computes."""
    made = program(rt.Mesh(pp=4, dp=1, microbatch=rt.Time(4)), coordinates=(0, 1, 2, 3), order="BF")
    run = TrainingRun(made, datasets(made), Figures())
    passes, seen, begin = run.passes, [], messages.begin_receive
    forward, backward = passes._forward, passes._backward
    passes._forward = lambda now, at, action: (seen.append(at), forward(now, at, action))
    passes._backward = lambda now, at, action: (seen.append(at), backward(now, at, action))
    messages.begin_receive = lambda tensor, source, tag: (seen.append((source, tag)), begin(tensor, source, tag))[1]
    passes.step(next(run.loader.epoch(1)))
    messages.begin_receive = begin
    posts = [message for row in passes.training.posts for message in row if message.taker >= 1]
    assert len(posts) >= 3
    for message in posts:
        assert seen.index((message.peer, message.tag)) < seen.index(message.taker - 1)


def weights_start_another_run() -> None:
    """Loaded by the ranks that hold them, whatever the stages."""
    folder = Path(tempfile.gettempdir())  # of these ranks alone
    made = program(rt.Mesh(pp=2, dp=2, microbatch=rt.Time(2)), coordinates=(0, 1, 1, 0), order="FB")
    run = TrainingRun(made, datasets(made), Figures())
    run.train()
    run.save(folder / "w")
    torch.distributed.barrier()
    init = {"init": rt.Safetensors("w"), "base": folder}
    found = trained(rt.Mesh(pp=4, dp=1, microbatch=rt.Time(2)), coordinates=(0, 1, 2, 3), order="FB", **init)
    same(found, trained(rt.Mesh(dp=4, microbatch=rt.Time(1)), **init), "from weights")


@pytest.mark.parametrize(
    "what",
    [
        "placements", "sharded", "buckets_start_in_the_last_backward", "receives_are_posted_an_action_ahead",
        "weights_start_another_run",
    ],
)  # fmt: skip
def test_on_four_ranks(what: str) -> None:
    on_ranks(__file__, what, 4, ["torch.distributed.pipelining._backward"])
