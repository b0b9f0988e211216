"""A plan -> the memory of a device that the fullest rank takes: of tensors, of torch's caching
allocator for them, of NCCL, and of all.

The order in which memory comes and goes is that of the peak (peak/step.py), up to its moment. It is
replayed in the allocator's blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardlang.plan.bytes.peak.ledger import MEANWHILE
from shardlang.plan.bytes.peak.step import step_peaks, steps_of_memory
from shardlang.plan.bytes.reserved.allocator import Allocator, Block
from shardlang.plan.bytes.reserved.communicators import communicators
from shardlang.plan.plan import Plan
from shardlang.records import dataclass


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes at most. allocated: of the blocks of tensors; reserved: of the allocator's segments;
    device: with what contexts and libraries take, and NCCL, which takes `nccl` for so many
    `groups` of ranks. emptied: whether the allocator gives unused
    segments back, since the device is full; fits: whether all has room. largest: at the moment of
    most tensors, (what they are, bytes of each, how many), the most together first."""

    allocated: int
    reserved: int
    device: int
    groups: int
    nccl: int
    emptied: bool
    fits: bool
    largest: tuple[tuple[str, int, int], ...]


def footprint(
    plan: Plan, memory: int, fixed: int, expandable: bool = False, group: int = 0, node: int = 0
) -> Footprint:  # fmt: skip
    """That of the coordinate that holds most, on a device with so much memory, of which contexts
    and libraries take `fixed`; as the allocator has it with `expandable` segments or without.
    group: what NCCL takes for a group of ranks (0: as was seen); node: the ranks of a node (0: all
    are of one)."""
    peaks, groups = step_peaks(plan), communicators(plan)
    took = [sum(each.bytes(group, node or plan.ranks) for each in mine) for mine in groups]
    fullest = max(range(len(peaks)), key=lambda at: peaks[at].bytes + took[at])
    taken = fixed + took[fullest]
    allocator = Allocator(max(1, memory - taken), expandable)
    largest = replayed([*steps_of_memory(plan, fullest)], allocator)
    reserved = allocator.most_reserved
    return Footprint(
        allocator.most_allocated, reserved, reserved + taken, len(groups[fullest]), took[fullest],
        allocator.emptied > 0, not allocator.over, largest,
    )  # fmt: skip


def replayed(ops: Sequence[tuple[str, object, int]], allocator: Allocator) -> tuple[tuple[str, int, int], ...]:
    """Takes and gives as a rank does: (what, whose, bytes, below 0 where it goes). The tensors at
    the moment of most: (what, bytes, how many)."""
    there: dict[tuple[str, object], dict[int, list[Block]]] = {}
    most = moment = 0
    for at, (what, whose, size) in enumerate(ops):
        if not size:
            continue
        sizes = there.setdefault((what, whose), {})
        if size < 0:
            _let_go(sizes, -size, allocator)
            continue
        block = allocator.take(size)
        if allocator.allocated > most:
            most, moment = allocator.allocated, at
        if what == MEANWHILE:
            allocator.give(block)
        else:
            sizes.setdefault(size, []).append(block)
    return _largest(ops[: moment + 1])


def _largest(ops: Sequence[tuple[str, object, int]]) -> tuple[tuple[str, int, int], ...]:
    """The tensors that are there after these, by what they are and bytes, the most first."""
    found = Counter[tuple[str, int]]()
    for what, _, size in ops[:-1]:
        if what != MEANWHILE:
            found[what, abs(size)] += 1 if size > 0 else -1
    found.update([(ops[-1][0] or "temporaries", ops[-1][2])] if ops else [])
    rows = [(what, size, count) for (what, size), count in found.items() if size and count > 0]
    return tuple(sorted(rows, key=lambda row: (-row[1] * row[2], row)))


def _let_go(sizes: dict[int, list[Block]], size: int, allocator: Allocator) -> None:
    """The latest block of a size goes; where there is none, as many of the largest as make it."""
    if sizes.get(size):
        allocator.give(sizes[size].pop())
        return
    for each in sorted(sizes, reverse=True):
        while each <= size and sizes[each]:
            allocator.give(sizes[each].pop())
            size -= each
