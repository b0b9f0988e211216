"""`shardc calibrate`: measures this machine, and writes its `device`, `cluster` and profile."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlang import driver
from shardlang.cli import output
from shardlang.cli.files import claimed, replace, write_files
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.disk.overwrite_guard import MACHINE, PROFILE
from shardlang.disk.scratch import scratch
from shardlang.launch.started import require_alone
from shardlang.sources.source import Source

if TYPE_CHECKING:
    from shardlang.cost.work import Workload
    from shardlang.plan.plan import Plan

# Small programs, by name: almost all of their step is the cost of launching operators, and of the
# step itself, and of meeting where there are several ranks. `LAYERS` and `RANKS` are numbers.
_TOKENS = """
use std.gpt2: GPT2

dim batch = 2 * RANKS, seq = 8, vocab = 16 * RANKS

strategy s {
  mesh dp = auto
  split batch over dp
}

strategy t {
  mesh tp = auto
  split heads, ffn, vocab over tp
}

train {
  model = GPT2(vocab = vocab, d = 16 * RANKS, heads = 2 * RANKS, layers = LAYERS, max_len = 8, dropout = 0.0)
  data = random(tokens: i64[batch, seq] < vocab, label: i64[batch, seq] < vocab, batches = 30, seed = 1)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 1e-4)
  epochs = 1
}
"""
_VECTORS = """
use std.nn: Linear

dim batch = 16 * RANKS, d = 16

model Net {
  layer parts[LAYERS] = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    return x |> parts |> relu
  }
}

strategy s {
  mesh dp = auto
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 30, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 1e-3, momentum = 0.9)
  epochs = 1
}
"""
_PROGRAMS = (("tokens", _TOKENS, "st"), ("vectors", _VECTORS, "s"))


@click.command(
    "calibrate",
    epilog="Examples: shardc calibrate -o machine.shard; shardc calibrate --device cuda --ranks 8 -o node.shard; "
    "then shardc plan model.shard --ranks 8 --cluster node.shard",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="By default CUDA if there is a GPU per rank.")
@click.option("--ranks", type=click.IntRange(1, 1024), default=1, metavar="N", help="How many ranks measure at once.")
@click.option(
    "-o", "--output", "to", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE",
    help="The program to write, machine.shard; its profile is written beside it.",
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, device: str | None, ranks: int, to: Path) -> None:
    """Measure this machine, which should do nothing else meanwhile."""
    if to.suffix != ".shard":
        raise click.BadParameter(f"`{to}` must end in `.shard`: it is a program", ctx, param_hint="-o")
    profile = to.with_name(f"{to.stem}.profile.json")
    for path, kind in ((to, MACHINE), (profile, PROFILE)):
        claimed(path, kind)
    with output.ending(3):
        require_alone("`shardc calibrate`")
        with scratch("calibrate") as folder:
            found, small = _measured(folder.path, device, ranks)
    from shardlang.cost.calibrated import machine_of, profile_of

    name = re.sub(r"\W+", "_", str(found["model"]).lower()).strip("_")
    name = name if name.isidentifier() else f"device_{name}"
    texts = profile_of(found, name, small), machine_of(found, name, profile.name, ranks)
    for path, text in zip((profile, to), texts, strict=True):
        replace(path, text)
    output.tell(f"wrote {to} and {profile}; to plan for it: shardc plan FILE --ranks {ranks} --cluster {to}")


def _measured(folder: Path, device: str | None, ranks: int) -> tuple[dict[str, Any], dict[str, Workload]]:
    """The measurements of all ranks, and the work of the small programs."""
    from shardlang.cost.calibrated import calls_of
    from shardlang.cost.planned import work
    from shardlang.ops.declaration import REGISTRY

    alone, together = _small(1), _small(ranks)
    plans = {**alone, **together}
    for name, plan in plans.items():
        _write(plan, folder / name)
    gc.enable()
    from shardlang.runtime.calibrate.machine import measure

    mains, others = ([folder / name / "main.py" for name in some] for some in (alone, together))
    found = measure(mains, others, ranks, device, calls_of(REGISTRY.values()), folder)
    return found, {name: work(plan) for name, plan in plans.items()}


def _small(ranks: int) -> dict[str, Plan]:
    """Small programs for so many ranks, under each of their strategies."""
    return {
        f"{name}{layers}{strategy}{ranks}": _planned(text.replace("LAYERS", str(layers)), strategy, ranks)
        for name, text, strategies in _PROGRAMS
        for layers in (1, 3)
        for strategy in (strategies if ranks > 1 else "s")
    }


def _planned(text: str, strategy: str, ranks: int) -> Plan:
    sink = Sink()
    program = driver.check_source(Source("calibrate.shard", text.replace("RANKS", str(ranks))), sink)
    plan = driver.plan_program(program, strategy if ranks > 1 else None, ranks, sink) if program is not None else None
    if plan is None:
        raise InternalError(f"calibrate's own program has mistakes: {[d.message for d in sink.found]}")
    return plan


def _write(plan: Plan, folder: Path) -> None:
    files = driver.emit_plan(plan, Sink())
    if files is None:
        raise InternalError("calibrate's own program cannot be emitted")
    write_files(folder, files)
