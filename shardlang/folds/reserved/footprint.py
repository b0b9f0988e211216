"""A plan -> the memory of a device that a rank takes: of tensors, of torch's caching allocator for
them, of NCCL, and of all.

The order in which memory comes and goes is that of the peak (peak/step.py), up to its moment. It is
replayed in the allocator's blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar

from shardlang.folds.peak.ledger import MEANWHILE
from shardlang.folds.peak.step import steps_of_memory
from shardlang.folds.reserved.allocator import Allocator, AllocatorBlock
from shardlang.folds.reserved.communicators import communicators
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Footprint:
    """Bytes at most. allocated: of the blocks of tensors; reserved: of the allocator's segments;
    device: with what contexts and libraries take, and NCCL, which takes `nccl` for so many
    `groups` of ranks. coordinate: of the rank, along the axis of the stages. emptied:
    whether the allocator gives unused segments back, since the device is full; fits: whether all
    has room. ops: all that comes and goes up to the moment of most tensors."""

    allocated: int
    reserved: int
    device: int
    groups: int
    nccl: int
    coordinate: int
    emptied: bool
    fits: bool
    ops: Sequence[tuple[str, object, int]]

    @cached_property
    def largest(self) -> tuple[tuple[str, int, int], ...]:
        """The tensors at the moment of most: (what they are, bytes of each, how many), the most
        together first."""
        return _largest(self.ops)


def footprint(
    plan: Plan, memory: int, fixed: int, expandable: bool = False, group: int = 0, node: int = 0, at: int = 0
) -> Footprint:  # fmt: skip
    """That of a coordinate along the axis of the stages, on a device with so much memory, of which
    contexts and libraries take `fixed`; as the allocator has it with `expandable` segments or
    without. group: what NCCL takes for a group of ranks (0: as was seen); node: the ranks of a node
    (0: all are of one)."""
    taken, groups = beside_tensors(plan, fixed, group, node)[at], len(communicators(plan)[at])
    allocator = Allocator(max(1, memory - taken), expandable)
    ops = replayed([*steps_of_memory(plan, at)], allocator)
    reserved = allocator.most_reserved
    return Footprint(
        allocator.most_allocated, reserved, reserved + taken, groups=groups, nccl=taken - fixed, coordinate=at,
        emptied=allocator.emptied > 0,
        fits=taken <= memory and not allocator.over, ops=ops,
    )  # fmt: skip


def beside_tensors(plan: Plan, fixed: int, group: int = 0, node: int = 0) -> list[int]:
    """The bytes that contexts and libraries (`fixed`) and NCCL take of a device, for each
    coordinate along the axis of the stages."""
    return [fixed + sum(each.bytes(group, node or plan.ranks) for each in mine) for mine in communicators(plan)]


def replayed(
    ops: Sequence[tuple[str, object, int]], allocator: Allocator
) -> Sequence[tuple[str, object, int]]:  # fmt: skip
    """Takes and gives as a rank does: (what, whose, bytes, below 0 where it goes). Those up to the
    moment of most tensors."""
    there: dict[tuple[str, object], dict[int, list[AllocatorBlock]]] = {}
    most = moment = 0
    for at, (what, whose, size) in enumerate(ops):
        if not size:
            continue
        if size < 0:
            for block in gone(there.get((what, whose), {}), -size):
                allocator.give(block)
            continue
        if what == MEANWHILE:
            high = allocator.passing(size)
        else:
            there.setdefault((what, whose), {}).setdefault(size, []).append(allocator.take(size))
            high = allocator.allocated
        if high > most:
            most, moment = high, at
    return ops[: moment + 1]


def _largest(ops: Sequence[tuple[str, object, int]]) -> tuple[tuple[str, int, int], ...]:
    """The tensors that are there after these, by what they are and bytes, the most first."""
    there: dict[tuple[str, object], dict[int, list[int]]] = {}
    for what, whose, size in ops[:-1]:
        sizes = there.setdefault((what, whose), {}) if what != MEANWHILE else {}
        if size < 0:
            for _ in gone(sizes, -size):
                pass
        else:
            sizes.setdefault(size, []).append(size)
    found = Counter((what, size) for (what, _), sizes in there.items() for each in sizes.values() for size in each)
    found.update([(ops[-1][0] or "temporaries", ops[-1][2])] if ops else [])
    rows = [(what, size, count) for (what, size), count in found.items() if size]
    return tuple(sorted(rows, key=lambda row: (-row[1] * row[2], row)))


def gone(sizes: dict[int, list[T]], size: int) -> Iterator[T]:
    """Those that go: the latest of a size; where there is none, as many of the largest as make
    it."""
    if sizes.get(size):
        yield sizes[size].pop()
        return
    for each in sorted(sizes, reverse=True):
        while each <= size and sizes[each]:
            yield sizes[each].pop()
            size -= each
