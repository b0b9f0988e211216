"""Claim: what dispatch of the emitted tensor-parallel MLP takes is at most 0.2 of DTensor's `parallelize_module`.

Forward and backward of 8 layers under torch's fake process group, where communication takes no time, and of a size
where computing takes none to speak of: what is left is the time to get from one kernel to the next.

    python benchmarks/dtensor_dispatch.py [turns]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from by_hand.mlp import Whole, by_dtensor
from emitted import emitted
from timing import interleave, ratios, verdict
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardlang.runtime.comm.mesh import world
from shardlang.runtime.step.model import RankModel

MLP = Path(__file__).parent / "programs" / "mlp.shard"
RANKS, BATCH, D, FFN = 4, 4, 16, 64
PASSES = 50


def ours() -> Callable[[], None]:
    sizes = {"batch": str(BATCH), "d": str(D), "ffn": str(FFN)}
    program = emitted(MLP, "tensor_parallel", RANKS, sizes)
    model = RankModel(program)
    x, label = torch.rand(BATCH, D), torch.rand(BATCH, D)
    mine = label[program.block(program.data.fields[1]).slices()].contiguous()
    leaves = list(model.leaves.values())

    def once() -> None:
        loss, _ = program.forward(model.p, x, mine)
        model.backward(loss)
        for leaf in leaves:
            leaf.grad = None

    return once


def dtensor() -> Callable[[], None]:
    net = by_dtensor(Whole(D, FFN))
    x, label = torch.rand(BATCH, D), torch.rand(BATCH, D)

    def once() -> None:
        F.mse_loss(net(x), label).backward()
        net.zero_grad()

    return once


def timed(once: Callable[[], None]) -> Callable[[], float]:
    def run() -> float:
        start = time.process_time()
        for _ in range(PASSES):
            once()
        return (time.process_time() - start) / PASSES

    return run


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    world.size = RANKS
    timings = interleave({"emitted": timed(ours()), "DTensor": timed(dtensor())}, turns)
    for name, timing in timings.items():
        print(f"{name:8} {timing.median * 1e3:.3f} ms a pass")
    held = verdict("emitted MLP / DTensor", ratios(timings, "emitted", "DTensor"), 0.2)
    dist.destroy_process_group()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
