"""A model of four pipeline stages, written as the emitter writes them, and as one function; and schedules for it.

Stage 0 sends a value with gradient, one that skips to the last stage, and whole numbers; stages 0 and 3 share a
parameter; stage 2 has what depends on nothing it receives, stage 1 a metric.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from shardlang import runtime as rt
from shardlang.facts.actions import Action
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.stages import needed, sent

BATCH, WIDTH = 16, 6
SHAPES = {
    "table": ((WIDTH, 5), (0, 3)),
    "first.weight": ((5, 8), (0,)),
    "first.bias": ((8,), (0,)),
    "blocks[1].weight": ((8, 8), (1,)),
    "scale": ((), (1,)),
    "blocks[2].weight": ((8, 8), (2,)),
    "beside": ((WIDTH, 8), (2,)),
    "last.weight": ((8, 5), (3,)),
    "unused": ((7,), (1,)),
}


def model(mesh: rt.Mesh) -> SimpleNamespace:
    """The functions of the stages on `mesh`, whose batch axes are dp and microbatch."""
    batch = ("dp", "microbatch")

    def first(p, x):
        embedded = x @ p.table
        h = torch.relu(embedded @ p.first.weight + p.first.bias)
        each = BATCH // mesh[batch].size
        h = rt.dropout(h, 0.25, rt.random.key("h"), (BATCH, 8), (mesh[batch].index * each, 0))
        return h, embedded @ p.table.T, (x[:, 0] > 0.5).long()

    def second(p, h, skip, kind):
        h = torch.tanh(h @ p.blocks[1].weight) * p.scale
        return h, skip, kind, {"half": h.detach().sum() / BATCH}

    def third(p, h, skip, kind, x):
        return torch.tanh(h @ p.blocks[2].weight) + h, skip, kind, torch.relu(x @ p.beside)

    def fourth(p, h, skip, kind, beside, label, loss_count):
        y = (h + beside) @ p.last.weight @ p.table.T + skip
        kept = (label > 4).to(y.dtype) * (kind + 1)
        loss = (y.square().sum(1) * kept).sum() / loss_count
        return loss, {"mean": y.detach().sum() / BATCH}, {"total": loss}

    def tally(y, rows):
        return rt.tally(y.square().sum(1), 0, mesh[batch].index * (BATCH // mesh[batch].size), rows)

    def first_evaluated(p, x, rows):
        h = torch.relu(x @ p.table @ p.first.weight + p.first.bias)
        return h, x @ p.table @ p.table.T

    def second_evaluated(p, h, skip, rows):
        h = torch.tanh(h @ p.blocks[1].weight) * p.scale
        return h, skip, {"half:1": tally(h, rows)}

    def third_evaluated(p, h, skip, x, rows):
        return torch.tanh(h @ p.blocks[2].weight) + h, skip, torch.relu(x @ p.beside)

    def fourth_evaluated(p, h, skip, beside, label, rows):
        return {"loss:1": tally((h + beside) @ p.last.weight @ p.table.T + skip, rows)}

    def before_microbatch(x, label):
        return {"loss_count": (label > 4).double().sum()}

    def before_step(loss_count):
        return {"loss_count": rt.all_reduce(loss_count, mesh.dp)}

    def conclude(p, total):
        return {"root": rt.all_reduce(total, mesh.dp).sqrt()}

    return SimpleNamespace(**{name: value for name, value in locals().items() if isinstance(value, Callable)})


def whole(m: SimpleNamespace) -> dict:
    """The model as one function."""

    def forward(p, x, label, loss_count):
        sent = m.first(p, x)
        *sent, half = m.second(p, *sent)
        sent = m.third(p, *sent, x)
        loss, mean, sums = m.fourth(p, *sent, label, loss_count)
        return loss, {**half, **mean}, sums

    @torch.no_grad()
    def evaluate(p, x, label, rows):
        sent = m.first_evaluated(p, x, rows)
        *sent, half = m.second_evaluated(p, *sent, rows)
        return {**half, **m.fourth_evaluated(p, *m.third_evaluated(p, *sent, x, rows), label, rows)}

    return {"forward": forward, "evaluate": evaluate, "before_microbatch": m.before_microbatch,
            "before_step": m.before_step, "conclude": m.conclude}  # fmt: skip


def stages(m: SimpleNamespace) -> list[rt.Stage]:
    """The model as stages."""
    cut = {0: ("dp", "microbatch")}
    h = rt.Received("f32", (BATCH, 8), cut, gradient=True)
    skip = rt.Received("f32", (BATCH, WIDTH), cut, gradient=True)
    kind = rt.Received("i64", (BATCH,), cut, evaluate=False)
    beside = rt.Received("f32", (BATCH, 8), cut, gradient=True)

    def before_microbatch(label):
        return m.before_microbatch(None, label)

    used = [[path for path, (_, own) in SHAPES.items() if stage in own] for stage in range(4)]
    used[2].append("counts")
    return [
        rt.Stage(m.first, used[0], fields=["x"], evaluate=torch.no_grad()(m.first_evaluated)),
        rt.Stage(m.second, used[1], [h, skip, kind], evaluate=torch.no_grad()(m.second_evaluated)),
        rt.Stage(m.third, used[2], [h, skip, kind], ["x"], evaluate=torch.no_grad()(m.third_evaluated)),
        rt.Stage(m.fourth, used[3], [h, skip, kind, beside], ["label"], evaluate=torch.no_grad()(m.fourth_evaluated),
                 before_microbatch=before_microbatch, before_step=m.before_step, conclude=m.conclude),
    ]  # fmt: skip


def program(mesh: rt.Mesh, *, coordinates=None, order="", zero=0, **settings) -> rt.Program:
    """Trained on `mesh`: in stages at `coordinates`, in the order `order` of actions (see `schedule`), or as one."""
    m, batch = model(mesh), ("dp", "microbatch")
    zeroed = {"zero": (zero, "dp")}
    fields = [
        rt.Field("x", "f32", (BATCH, WIDTH), cut={0: batch}),
        rt.Field("label", "i64", (BATCH,), cut={0: batch}, bound=10),
    ]
    parameters = [
        rt.Parameter(path, shape, init=("normal", 0.5), reduce="dp", **zeroed) for path, (shape, _) in SHAPES.items()
    ]
    if coordinates is None:
        functions = whole(m)
    else:
        table = schedule(stages(m), coordinates, mesh.microbatch.size, order)
        functions = {"stages": stages(m), "pipeline": rt.Schedule("pp", coordinates, table)}
    return rt.Program(
        name="test.shard", strategy="", ranks=world.size, mesh=mesh, seed=3, precision="f64",
        parameters=parameters, states=[rt.State("counts", (4,), "ones")],
        data=rt.Source("random", batch=BATCH, fields=fields, batches=3, seed=1),
        eval=rt.Source("random", batch=BATCH, fields=fields, batches=2, seed=2),
        optimizers=[rt.Optimizer("adamw", lr=0.01)],
        loss_pending=batch, metrics_pending={"half": batch, "mean": batch, "root": ()},
        finish=lambda totals: {"loss": totals["loss:1"][0] / totals["loss:1"][1], "half": totals["half:1"][0]},
        eval_pending={"loss:1": batch, "half:1": batch},
        epochs=2, bucket_bytes=300, clip=0.5, **functions, **settings,
    )  # fmt: skip


def schedule(made, coordinates, parts: int, order: str) -> list[str]:
    """Actions per coordinate, each at its first chance; of several that could be, the first in `order`.

    order: "FB" does all forwards first, "BF" backwards as soon as they can be, "IFW" splits backward.
    """
    table: list[list[Action]] = [[] for _ in range(max(coordinates) + 1)]
    left = [Action(s, kind, m) for s in range(len(made)) for kind in order for m in range(parts)]
    while left:
        done = {action for row in table for action in row}
        messages = {sent(action, made) for action in done}
        chosen = {}
        for action in sorted(left, key=lambda a: (order.index(a.kind), a.microbatch, -a.stage)):
            before = {"B": "F", "I": "F", "W": "I"}.get(action.kind)
            ready = before is None or Action(action.stage, before, action.microbatch) in done
            message = needed(action, made)
            if ready and (message is None or message in messages):
                chosen.setdefault(coordinates[action.stage], action)
        for at, action in chosen.items():
            table[at].append(action)
            left.remove(action)
    return [" ".join(f"{a.stage}{a.kind}{a.microbatch}" for a in row) for row in table]
