"""The training loop: each figure is counted once over ranks, evaluations see the whole set, masks are their step's."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch

from shardlang import runtime as rt
from shardlang.interpret.meaning import draws
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.step.totals import Totals
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.runtime.forked import on_ranks

MESH = rt.Mesh(a=2, b=2)


def totals_on_ranks() -> None:
    """A number identical over an axis is counted once there, whatever else is pending over that axis."""
    pending = {"parts": ("a", "b"), "over_b": ("b",), "same": (), "over_a": ("a",)}
    values = {
        "parts": torch.tensor(1.0 + world.rank),
        "over_b": torch.tensor(10.0 * (1 + MESH.b.index)),
        "same": torch.tensor(7.0),
        "over_a": torch.tensor(100.0 * (1 + MESH.a.index)),
    }
    assert Totals(MESH, pending).start(values).wait() == {"parts": 10.0, "over_b": 30.0, "same": 7.0, "over_a": 300.0}
    pairs = {name: torch.stack((value, value + 1)) for name, value in values.items()}
    assert Totals(MESH, pending, (2,)).start(pairs).wait() == {
        "parts": [10.0, 14.0],
        "over_b": [30.0, 32.0],
        "same": [7.0, 8.0],
        "over_a": [300.0, 302.0],
    }


def test_each_figure_is_counted_once() -> None:
    on_ranks(__file__, "totals_on_ranks", 4)


def held_back_on_ranks() -> None:
    """Ranks whose clocks differ hold back the same numbers of batches, and each batch keeps its own sum."""
    totals = Totals(MESH, {"loss": ("a", "b")}, pause=1.0)
    begun, waiting = [], []
    for batch in range(40):
        time.sleep(0.001 * world.rank)
        number = torch.tensor(float(batch * 10 + world.rank))
        waiting.append(totals.start({"loss": number}))
        number.zero_()  # as an optimizer changes a parameter that is a figure
        begun.append(totals.held == 0)
        if batch == 0:
            assert waiting[0].wait() == {"loss": 6.0}
    assert begun[0] and not all(begun)
    assert [pending.wait()["loss"] for pending in waiting] == [40.0 * batch + 6.0 for batch in range(40)]


def test_figures_of_short_steps_are_summed_together() -> None:
    on_ranks(__file__, "held_back_on_ranks", 4)


def _program(folder: Path, forward, evaluate=None, finish=None, **settings) -> rt.Program:
    np.savez(folder / "a.npz", x=np.arange(10.0))
    source = rt.Source("numpy", batch=4, path="a.npz", shuffle=False, fields=[rt.Field("x", "f32", (4,))])
    return rt.Program(
        name="t.shard", strategy="", ranks=1, mesh=rt.Mesh(), parameters=[rt.Parameter("w", (1,), init="ones")],
        data=source, eval=source if evaluate else None, optimizers=[rt.Optimizer("sgd", lr=0.0)],
        forward=forward, evaluate=evaluate, finish=finish, base=folder, seed=3, **settings,
    )  # fmt: skip


def _run(program: rt.Program, metrics: Path | None = None) -> None:
    TrainingRun(program, datasets(program), Log(None, metrics)).train()


def test_an_evaluation_is_over_the_whole_set_without_padding(tmp_path: Path) -> None:
    def evaluate(p, x, rows):
        return {"loss:1": rt.tally(x * p.w, 0, 0, rows)}

    def finish(totals):
        return {"loss": totals["loss:1"][0] / totals["loss:1"][1], "count": totals["loss:1"][1]}

    made = _program(
        tmp_path, lambda p, x: ((x * p.w).sum(), {}), evaluate, finish, eval_pending={"loss:1": ()}, epochs=2
    )
    _run(made, tmp_path / "m.jsonl")
    records = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [r for r in records if "eval.loss" in r] == [
        {"epoch": epoch, "eval.loss": 4.5, "eval.count": 10.0} for epoch in (1, 2)
    ]


def test_masks_are_those_of_their_step_and_call(tmp_path: Path) -> None:
    """Steps count from 1, over epochs; each draws as the language's definition says."""
    seen: list[list[torch.Tensor]] = []

    def forward(p, x):
        ones = torch.ones(4, 8)
        seen.append([rt.dropout(ones, 0.5, rt.random.key("net.drop", call)) for call in (0, 1)])
        return (x * p.w).sum(), {}

    _run(_program(tmp_path, forward, steps=3))
    for step, masks in enumerate(seen, 1):
        for call, mask in enumerate(masks):
            kept = draws.kept(draws.key_of(3, "net.drop", call, step), 0.5, (4, 8))
            assert torch.equal(mask, kept * 2.0), (step, call)
    assert len(seen) == 3 and not torch.equal(seen[0][0], seen[1][0])


def test_a_gradient_is_of_its_own_step(tmp_path: Path) -> None:
    """x is 0..3 and 4..7: gradients 6 and 22, which do not pile up; the loss shown is that before each update."""
    made = _program(tmp_path, lambda p, x: ((x * p.w).sum(), {}), steps=3)
    made.optimizers = [rt.Optimizer("sgd", lr=0.01)]
    _run(made, tmp_path / "m.jsonl")
    losses = [json.loads(line)["loss"] for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(losses, [6 * 1.0, 22 * 0.94, 6 * 0.72], rtol=1e-6)


def test_no_step_waits_for_the_figures_of_the_one_before(tmp_path: Path) -> None:
    """Also where an epoch ends: on a device the next step is under way before the last one's loss is asked for."""
    seen: list[tuple[str, int]] = []

    class Told(Log):
        def step(self, step: int, *given, **named) -> None:
            seen.append(("told", step))

    def forward(p, x):
        seen.append(("begun", sum(what == "begun" for what, _ in seen) + 1))
        return (x * p.w).sum(), {}

    program = _program(tmp_path, forward, epochs=3)  # of two steps
    TrainingRun(program, datasets(program), Told(None, None)).train()
    assert {step for what, step in seen if what == "told"} == set(range(1, 7))
    assert all(seen.index(("told", step)) > seen.index(("begun", step + 1)) for step in range(1, 6))
