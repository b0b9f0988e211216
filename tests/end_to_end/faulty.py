"""Verifies an example with one deliberate fault, in a process of its own, and prints what was found as JSON.

A fault is in the emitted text, in the plan after the text was emitted, in the plan that it is emitted from, or in the
runtime. Run as `python -m tests.end_to_end.faulty NAME`; tests call `verdict`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests import warm
from tests.end_to_end.curves import ROOT


@dataclass(frozen=True)
class Faulty:
    """text: what stands in a file of the emitted program, and what is put for it. plan: a change of the plan, before
    it is emitted or (late) after. runtime: a change of the runtime.
    """

    program: str
    strategy: str
    ranks: int
    text: tuple[str, str] | None = None
    plan: Callable[[Any], Any] | None = None
    late: Callable[[Any], Any] | None = None
    runtime: Callable[[], None] | None = None
    file: str = "main.py"
    dtype: str = "f64"


def unreduced(plan: Any) -> Any:
    """No gradient of `up.weight` is summed."""
    value = next(v.id for v in plan.graph.values if v.path == "up.weight")
    return replace(plan, params={**plan.params, value: replace(plan.params[value], reduce_axes=())})


def sliced(plan: Any) -> Any:
    """The first reduce-scatter becomes a slice."""
    from shardlang.plan.plan import MoveKind

    at = next(c.id for c in plan.conversions if c.move.kind is MoveKind.P_TO_S)
    changed = list(plan.conversions)
    changed[at] = replace(changed[at], move=replace(changed[at].move, kind=MoveKind.I_TO_S))
    return replace(plan, conversions=tuple(changed))


def doubled_gather() -> None:
    """The dual of a reduce-scatter gives twice the gradient."""
    from shardlang.runtime.comm import blocks

    right = blocks.gathered
    blocks.gathered = lambda x, *rest: 2 * right(x, *rest)


def averaged_buckets() -> None:
    """Gradients of parameters are averaged where they are to be summed."""
    from shardlang.runtime.state import buckets

    right = buckets.SumBucket.finish

    def finish(self: Any) -> None:
        right(self)
        for member in self.members:
            member.grad = member.grad / self.group.size

    buckets.SumBucket.finish = finish  # type: ignore[method-assign]


def shifted_draws() -> None:
    """Initial values are drawn with another key."""
    from shardlang.runtime import random
    from shardlang.runtime.state import initial

    initial.random.key = lambda path, call=0, *, step=None: random.seeded_key(1, path, call, step or 0)


QUICK, DIGITS = ("examples/quickstart", "propagated", 8), ("examples/digits", "both", 4)
SHIFTED = ("tests/end_to_end/shifted", "dp", 2)
STAGED = ("tests/emit/programs/staged", "two", 4)
HERE = "if mesh.dp.index == 1 and mesh.microbatch.index == 2:"
LOSS = 'reduction="sum") / 64'
FAULTS = {
    "nothing": Faulty(*DIGITS),
    "a wrong group": Faulty(*DIGITS, text=("rt.reduce_scatter(down_out_pending, 1, mesh.mp)",
                                           "rt.reduce_scatter(down_out_pending, 1, mesh.dp)")),
    "a dropped sum": Faulty(*QUICK, text=("rt.reduce_scatter(h_pending, 1, mesh.b)",
                                          "rt.split(h_pending, 1, mesh.b)")),
    "a scaled gradient": Faulty(*DIGITS, text=("h = torch.relu(up_out)",
                                               "h = torch.relu(up_out); h.register_hook(lambda g: 1.001 * g)")),
    "a wrong normaliser": Faulty(*DIGITS, text=(LOSS, LOSS.replace("64", "32"))),
    "a sum not taken of the loss": Faulty(*DIGITS, text=('loss_pending=("dp",)', "loss_pending=()")),
    "a gradient that is not reduced": Faulty(*DIGITS, text=('cut={0: "mp"}, reduce="dp"', 'cut={0: "mp"}')),
    "another learning rate": Faulty(*DIGITS, text=('"sgd", lr=0.1', '"sgd", lr=0.1001')),
    "nothing, in float32": Faulty(*SHIFTED, dtype="f32"),
    "another eps, in float32": Faulty(*SHIFTED, dtype="f32", text=("eps=1e-08", "eps=1e-07")),
    "another initial value": Faulty(*DIGITS, text=("uniform\", -0.125, 0.125", "uniform\", -0.125, 0.1251")),
    "a step that fails": Faulty(*DIGITS, text=("scores = down_out + p.down.bias", "scores = down_out + p.up.bias")),
    "a wrong value before a step that fails": Faulty(*QUICK, text=(
        "h = rt.reduce_scatter(h_pending, 1, mesh.b)", "h = 2 * rt.reduce_scatter(h_pending, 0, mesh.b)")),
    "a plan that slices": Faulty(*QUICK, plan=sliced),
    "a plan without a reduction": Faulty(*DIGITS, plan=unreduced),
    "a plan that is not what was emitted": Faulty(*DIGITS, late=unreduced),
    "a collective with a wrong dual": Faulty(*QUICK, runtime=doubled_gather),
    "buckets that average": Faulty(*DIGITS, runtime=averaged_buckets),
    "numbers drawn with another key": Faulty(*DIGITS, runtime=shifted_draws),
    "a stage that is wrong on one rank, in one microbatch": Faulty(*STAGED, file="stage1.py", text=(
        "    # m: f64", f"    {HERE}\n        h = h * 1.5\n    # m: f64")),
    "a message that is scaled on its way back": Faulty(*STAGED, file="stage0.py", text=(
        "    return m, h", "    m.register_hook(lambda g: g * 2)\n    return m, h")),
}  # fmt: skip


def verdict(name: str) -> dict[str, Any]:
    """What `main` prints."""
    command = [sys.executable, "-m", "tests.end_to_end.faulty", name]
    done = warm.run(command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(name: str) -> None:
    from shardlang import driver
    from shardlang.cli.verify_text import Check, VerifyRequest, as_json, tell
    from shardlang.diagnostics.diagnostic import Sink
    from shardlang.interpret.meaning.elements import in_type
    from shardlang.interpret.verify.judge import VerifyJob, judge, start
    from shardlang.sources.source import Source

    fault = FAULTS[name]
    file = ROOT / f"{fault.program}.shard"
    sink = Sink()
    program = driver.check_source(Source(file.name, file.read_text()), sink)
    assert program is not None
    plan = driver.plan_program(program, fault.strategy, fault.ranks, sink)
    assert plan is not None
    plan = in_type(fault.plan(plan) if fault.plan else plan, fault.dtype)
    emitted = driver.emit_plan(plan, sink)
    assert emitted is not None
    with tempfile.TemporaryDirectory() as folder:
        for path, text in emitted.items():
            if fault.text is not None and path == fault.file:
                assert fault.text[0] in text, text
                text = text.replace(*fault.text, 1)
            Path(folder, path).write_text(text)
        if fault.runtime is not None:
            fault.runtime()
        job = VerifyJob(fault.late(plan) if fault.late else plan, Path(folder), file.parent, fault.dtype, steps=2)
        check = Check(plan.strategy, job, judge(start(job)))
    wanted = VerifyRequest(file.name, fault.ranks, 2, fault.dtype, True, False)
    said = Sink()
    if check.verdict is not None and check.verdict.difference is not None:
        tell(check, wanted, said)
    print(json.dumps({**as_json([check], wanted), "said": [[d.message, *d.notes] for d in said.found]}))


if __name__ == "__main__":
    main(sys.argv[1])
