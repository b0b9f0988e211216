"""Claim: each collective of the runtime is a call that torch's NCCL groups accept, and gives what it should.

Each call is made once with each type on groups of one rank, so one GPU is enough: on the group of all ranks and on one
that the runtime makes itself. Messages between stages need two ranks and are left out.

    python -m benchmarks.gpu.nccl_api [--device cpu]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from timing import verdict
from torch import Tensor

from benchmarks.gpu.place import place
from shardlang.runtime.comm import blocks, primitives
from shardlang.runtime.comm.mesh import Group, RankMesh, world
from shardlang.runtime.comm.row_exchange import exchanged_embedding
from shardlang.runtime.device import kind_of

TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)
# On one rank each gives back what it is given; some with a dim of the members before the others.
CALLS: Mapping[str, Callable[[Tensor, Group], Tensor]] = {
    "sum": lambda x, group: primitives.begin_reduce(x.clone(), group).wait(),
    "maximum": lambda x, group: primitives.begin_reduce(x.clone(), group, "max").wait(),
    "minimum": lambda x, group: primitives.begin_reduce(x.clone(), group, "min").wait(),
    "reduce-scatter": lambda x, group: primitives.begin_reduce_scatter(x.unsqueeze(0), group).wait(),
    "all-gather": lambda x, group: primitives.begin_all_gather(x, group).wait()[0],
    "sum of a block": lambda x, group: blocks.reduced(x, group),
    "gather along a dim": lambda x, group: blocks.gathered(x, 1, group),
    "scatter along a dim": lambda x, group: blocks.scattered(x, 1, group),
    "all-to-all": lambda x, group: blocks.exchange(x, 0, 1, group),
    "permutation": lambda x, group: blocks.permuted(x, group, (0,)),
    "rows": lambda x, group: exchanged_embedding(torch.arange(len(x), device=x.device), x, len(x), group),
}


class Alone(Group):
    """The group of this rank alone, with a process group, which the runtime does without."""

    def __init__(self, handle: Any) -> None:
        super().__init__(RankMesh(rank=1), ("rank",))
        self._handle = handle

    def handle(self, x: Tensor) -> Any:
        return self._handle


def wrong() -> dict[str, int]:
    """How many calls gave something else than they should, by group."""
    kind, store = kind_of(world.device), dist.HashStore()
    bound = kind.take(world.device)
    dist.init_process_group(kind.backend, store=dist.PrefixStore("all", store), rank=0, world_size=1, **bound)
    own = kind.group(dist.PrefixStore("own", store), [0], 0, "own")
    found = {}
    for name, handle in {"of all ranks": kind.everyone(), "of its own": own}.items():
        given = [torch.arange(12, device=world.device).view(3, 4).to(dtype) for dtype in TYPES]
        group = Alone(handle)
        found[name] = sum(not torch.equal(call(x, group), x) for call in CALLS.values() for x in given)
    kind.leave(own)
    dist.destroy_process_group()
    return found


def main() -> int:
    ((found),) = place().forked(wrong)
    count = len(CALLS) * len(TYPES)
    held = [verdict(f"wrong of {count} calls on a group {name}", [number], 0.0) for name, number in found.items()]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
