"""Seconds of collectives among the first 2, 4, 8 .. ranks of this machine, by the runtime's own
functions, over the bytes that each rank sends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from shardlang.runtime.calibrate.clock import Clock, Points, microseconds
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group, RankMesh, everyone, world

# Bytes of the whole value: 4 KB to 1 GB, on the CPU to 64 MB.
BYTES = {"cpu": tuple(4096 * 4**i for i in range(8)), "accelerator": tuple(4096 * 4**i for i in range(10))}
_MOST_SECONDS = 0.02
# A sum, and products of so many rows and columns beside it.
_BESIDE_BYTES, _BESIDE_SIZE = {"cpu": 4_194_304, "accelerator": 67_108_864}, 256


def collectives(clock: Clock) -> list[dict[str, Any]]:
    """Rows of a profile. All ranks call it."""
    found = []
    for members in _counts(world.size):
        group = RankMesh(outer=world.size // members, inner=members)["inner"]
        for kind, (begin, share) in _KINDS.items():
            points = _points(clock, group, begin, share)
            found.append({"kind": kind, "members": members, "a_node": members, "points": microseconds(points)})
    if world.size > 1:
        points = [(float(size), _seconds(clock, partial(_handed, _buffer(clock, size)))) for size in BYTES[clock.kind]]
        found.append({"kind": "send", "members": 2, "a_node": 2, "points": microseconds(points)})
    return found


def beside(clock: Clock) -> float:
    """How much slower products are beside a sum over all ranks, which takes as long as they do."""
    group, x = everyone(), _buffer(clock, _BESIDE_BYTES[clock.kind])
    left = torch.rand(_BESIDE_SIZE, _BESIDE_SIZE, device=clock.device)

    def products(count: int) -> None:
        for _ in range(count):
            left @ left

    def both(count: int) -> None:
        begun = primitives.begin_reduce(x, group, own=True)
        products(count)
        begun.wait()

    sums, one = _seconds(clock, partial(_reduced, x, group)), _seconds(clock, partial(products, 1))
    rounds = torch.tensor([sums / one], dtype=torch.float64)
    count = max(1, round(float(primitives.all_gather(rounds, group).max())))
    alone, together = _seconds(clock, partial(products, count)), _seconds(clock, partial(both, count))
    return max(1.0, 1 + (together - alone) / min(alone, sums))


def _counts(ranks: int) -> list[int]:
    """2, 4, 8 .. of the ranks, and all of them, where the ranks are so many groups."""
    doubled = [2**i for i in range(1, ranks.bit_length()) if ranks % 2**i == 0]
    return sorted({*doubled, *([ranks] if ranks > 1 else [])})


def _buffer(clock: Clock, size: int) -> torch.Tensor:
    return torch.zeros(size // 4, device=clock.device)


Begin = Callable[[torch.Tensor, Group], Any]


def _points(clock: Clock, group: Group, begin: Begin, share: float) -> Points:
    """Over the bytes that a ring sends: `share` of (n - 1) / n of the whole."""
    found = []
    for size in BYTES[clock.kind]:
        whole = _buffer(clock, size - size % (4 * group.size))
        sent = share * (group.size - 1) / group.size * whole.numel() * 4
        found.append((sent, _seconds(clock, partial(begin, whole, group))))
    return found


def _seconds(clock: Clock, call: Callable[[], object]) -> float:
    """Seconds of what all ranks do: they agree on how often."""
    primitives.meet()
    call()
    mine = torch.tensor([clock.turn(call, 1), -clock.turns], dtype=torch.float64)
    longest, turns = primitives.all_gather(mine, everyone()).amax(0).tolist()
    return clock.together(call, max(1, min(50, round(_MOST_SECONDS / 7 / max(longest, 1e-6)))), -int(turns))


def _reduced(x: torch.Tensor, group: Group) -> object:
    return primitives.begin_reduce(x, group, own=True).wait()


def _exchanged(x: torch.Tensor, group: Group) -> object:
    return group.handle(x).alltoall_base(torch.empty_like(x), x, [], []).wait()


# How each begins, and the bytes that it sends as a part of (n - 1) / n of the whole.
_KINDS: dict[str, tuple[Begin, float]] = {
    "all_reduce": (_reduced, 2.0), "all_to_all": (_exchanged, 1.0),
    "reduce_scatter": (lambda x, group: primitives.begin_reduce_scatter(x.view(group.size, -1), group).wait(), 1.0),
    "all_gather": (lambda x, group: primitives.all_gather(x[: x.numel() // group.size], group), 1.0),
}  # fmt: skip


def _handed(x: torch.Tensor) -> object:
    """Every even rank sends to the one after it, which waits."""
    other = world.rank ^ 1
    if other >= world.size:
        return None
    return dist.send(x, other) if world.rank < other else dist.recv(x, other)
