"""Prints, as JSON, what a step of ZeRO costs the host of one rank, by how many ranks there are: the kernels that it
launches, and the processor's seconds on 512 over those on 8. Its device is torch's `meta`, which computes nothing, with
process groups that send nothing. `python -m tests.device.host_cost [TURNS]`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardlang import runtime as rt
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import KINDS, Cpu
from shardlang.runtime.logs import Log
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.device.pretended import FREE

# The parameters of Llama 8B, in small: 291. Each divides over all ranks; of 512, one has a few elements of a norm.
LAYERS, ROWS, COLUMNS = 32, 512, 16
WEIGHTS = ("q", "k", "v", "out", "gate", "up", "down")
NORMS = ("attention_norm", "mlp_norm")
STEPS, MICROBATCHES, LIMIT = 4, 2, 1.3


def _forward(p: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = x.sum() + p.embed.weight.sum() + p.norm.weight.sum() + p.head.weight.sum()
    for layer in p.layers:
        for name in (*WEIGHTS, *NORMS):
            loss = loss + getattr(layer, name).weight.sum()
    return loss, {}


def program(level: int, ranks: int) -> rt.Program:
    each = {name: (ROWS, COLUMNS) for name in WEIGHTS} | {name: (ROWS,) for name in NORMS}
    shapes = {"embed.weight": (ROWS, COLUMNS)} | {
        f"layers[{n}].{name}.weight": shape for n in range(LAYERS) for name, shape in each.items()
    }
    shapes |= {"norm.weight": (ROWS,), "head.weight": (ROWS, COLUMNS)}
    order = ("embed", f"layers[0..{LAYERS}]", "norm, head")
    return rt.Program(
        name="test.shard", strategy="", ranks=ranks, mesh=rt.Mesh(dp=ranks, microbatch=rt.Time(MICROBATCHES)), seed=1,
        parameters=[rt.Parameter(path, s, "zeros", reduce="dp", zero=(level, "dp")) for path, s in shapes.items()],
        data=rt.Source(
            "random", batch=1024, batches=STEPS, seed=1,
            fields=[rt.Field("x", "f32", (1024, 1), {0: ("microbatch", "dp")})],
        ),
        optimizers=[rt.Optimizer("adamw", lr=0.01)], forward=_forward, gathers=rt.Order(order, order),
        loss_pending=("dp", "microbatch"), epochs=1, bucket_bytes=1_000_000,
    )  # fmt: skip


class _Done:
    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Nobody:
    """A process group whose other members are not there."""

    def rank(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Callable[..., _Done]:
        return lambda *given: _Done()


class Nowhere(Cpu):
    name, tags = "meta", False

    def group(self, *given: Any) -> Any:
        return Nobody()

    def everyone(self) -> Any:
        return Nobody()


class _Counting(TorchDispatchMode):
    kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels += not func.is_view and func.overloadpacket.__name__ not in FREE
        return func(*args, **(kwargs or {}))


def _of(level: int, ranks: int) -> tuple[float, int]:
    """The least seconds of a step, and its kernels."""
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    KINDS["meta"] = Nowhere()
    world.size, world.device = ranks, torch.device("meta")
    made = program(level, ranks)
    run, seconds = TrainingRun(made, datasets(made), Log(None, None)), []
    for step, batch in enumerate(run.loader.epoch(1), 1):
        begun = time.process_time()
        with _Counting() if step == STEPS else contextlib.nullcontext() as counting:
            run.passes.step(batch)
            run.model.update(step, 100)
        seconds.append(time.process_time() - begun)
    assert counting is not None
    return min(seconds[:-1]), counting.kernels


def in_child(level: int, ranks: int) -> tuple[float, int]:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, json.dumps(_of(level, ranks)).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    return found[0], found[1]


def main(turns: int) -> int:
    """1 where it costs more on 512 ranks than LIMIT times what it does on 8."""
    most = 0.0
    for level in (1, 2, 3):
        each = [{ranks: in_child(level, ranks) for ranks in (8, 64, 512)} for _ in range(turns)]
        seconds = {ranks: min(turn[ranks][0] for turn in each) for ranks in each[0]}
        kernels = {str(ranks): count for ranks, (_, count) in each[0].items()}
        ratio = seconds[512] / seconds[8]
        most = max(most, ratio)
        print(json.dumps({"zero": level, "kernels": kernels, "ratio": round(ratio, 3)}), flush=True)
    return 0 if most <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
