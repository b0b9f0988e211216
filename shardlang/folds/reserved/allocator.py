"""Sizes that come and go -> the bytes that torch's caching allocator takes from a device.

A model of c10/cuda/CUDACachingAllocator.cpp of torch 2; the functions named here are its. One
stream asks for all; options of PYTORCH_CUDA_ALLOC_CONF are the defaults, but for
expandable_segments."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from shardlang.frozen.records import dataclass

# kMinBlockSize: all sizes are multiples of it. kSmallSize: the most that small blocks have.
# kSmallBuffer: a segment of small blocks. kMinLargeAlloc: from here on a segment has one request's
# size, rounded to kRoundLarge; below, kLargeBuffer.
BLOCK: Final = 512
SMALL: Final = 1 << 20
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
OWN_SEGMENT: Final = 10 << 20
ROUND: Final = 2 << 20


def rounded(size: int) -> int:
    """The bytes of the block that a request takes (round_size)."""
    return max(BLOCK, -(-size // BLOCK) * BLOCK)


def segment_size(size: int) -> int:
    """The bytes of the segment that is made for a block (get_allocation_size)."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUND) * ROUND


@dataclass(slots=True, eq=False)
class AllocatorBlock:
    """A part of a segment. at: its address; before, after: its neighbours in the segment."""

    at: int
    size: int
    small: bool
    free: bool = False
    before: AllocatorBlock | None = None
    after: AllocatorBlock | None = None


class Allocator:
    """The allocator of one device. limit: bytes that it may take (0: any number). expandable: it
    has one growing segment for small blocks and one for others (expandable_segments).

    allocated, reserved: bytes of blocks that are in use, and of segments; most_allocated,
    most_reserved: at one time. emptied: how often whole free segments were given back, since the
    limit was reached (release_cached_blocks). over: whether that was not enough."""

    def __init__(self, limit: int = 0, expandable: bool = False) -> None:
        self.limit, self.expandable = limit, expandable
        self.allocated = self.reserved = self.most_allocated = self.most_reserved = self.emptied = 0
        self.over = False
        # By pool (small or not): free blocks, the smallest first, then by address (BlockPool).
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, AllocatorBlock] = {}
        self._next = 0
        self._tail: dict[bool, AllocatorBlock] = {}  # the last block of a growing segment

    def take(self, request: int) -> AllocatorBlock:
        """The block for so many bytes (malloc)."""
        size = rounded(request)
        small = size <= SMALL
        block = self._found(size, small) or self._made(size, small)
        if self._splits(block.size - size, small):
            self._split(block, size)
        block.free = False
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def give(self, block: AllocatorBlock) -> None:
        """The block is free again, and one with its free neighbours (free_block)."""
        self.allocated -= block.size
        block.free = True
        for other in (block.before, block.after):  # try_merge_blocks
            if other is not None and other.free:
                self._withdraw(other)
                block = self._joined(block, other)
        self._offer(block)

    def passing(self, request: int) -> int:
        """The bytes in use while so many are taken for a moment. A free block that is large enough
        is afterwards as it was."""
        size = rounded(request)
        small = size <= SMALL
        pool = self._free[small]
        at = bisect_left(pool, (size, -1))
        if at == len(pool):
            block = self.take(request)
            high = self.allocated
            self.give(block)
            return high
        high = self.allocated + (size if self._splits(pool[at][0] - size, small) else pool[at][0])
        self.most_allocated = max(self.most_allocated, high)
        return high

    # --- free blocks

    def _splits(self, remaining: int, small: bool) -> bool:
        """Whether what a request leaves of a block becomes one of its own (should_split)."""
        return remaining >= BLOCK if small or self.expandable else remaining > SMALL

    def _found(self, size: int, small: bool) -> AllocatorBlock | None:
        """The smallest free block that is large enough, at the lowest address (get_free_block)."""
        pool = self._free[small]
        at = bisect_left(pool, (size, -1))
        if at == len(pool):
            return None
        return self._blocks[pool.pop(at)[1]]

    def _offer(self, block: AllocatorBlock) -> None:
        insort(self._free[block.small], (block.size, block.at))

    def _withdraw(self, block: AllocatorBlock) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.at))]

    def _split(self, block: AllocatorBlock, size: int) -> None:
        rest = AllocatorBlock(block.at + size, block.size - size, block.small, True, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._blocks[rest.at] = rest
        if self._tail.get(block.small) is block:
            self._tail[block.small] = rest
        self._offer(rest)

    def _joined(self, one: AllocatorBlock, other: AllocatorBlock) -> AllocatorBlock:
        first, last = (one, other) if one.at < other.at else (other, one)
        first.size, first.after = first.size + last.size, last.after
        if last.after is not None:
            last.after.before = first
        first.free = True
        del self._blocks[last.at]
        if self._tail.get(last.small) is last:
            self._tail[last.small] = first
        return first

    # --- segments

    def _made(self, size: int, small: bool) -> AllocatorBlock:
        """A new segment (alloc_block), or more of the growing one
        (try_allocate_expandable_block)."""
        more = self._lacking(size, small)
        if self.limit and self.reserved + more > self.limit:
            self._empty()
            more = self._lacking(size, small)
            self.over |= self.reserved + more > self.limit
        self.reserved += more
        self.most_reserved = max(self.most_reserved, self.reserved)
        if not self.expandable:
            return self._block(self._next, more, small)
        tail = self._tail.get(small)
        if tail is not None and tail.free:
            self._withdraw(tail)
            tail.size += more
            return tail
        # Addresses of the two growing segments never meet.
        at = (tail.at + tail.size) if tail is not None else (1 << 60) * small
        block = self._block(at, more, small)
        block.before = tail
        if tail is not None:
            tail.after = block
        self._tail[small] = block
        return block

    def _block(self, at: int, size: int, small: bool) -> AllocatorBlock:
        self._blocks[at] = block = AllocatorBlock(at, size, small)
        if not self.expandable:
            self._next += size
        return block

    def _lacking(self, size: int, small: bool) -> int:
        """The bytes of a new segment; pages that the growing one lacks beyond its free end."""
        if not self.expandable:
            return segment_size(size)
        tail, page = self._tail.get(small), SMALL_SEGMENT if small else LARGE_SEGMENT
        return -(-(size - (tail.size if tail is not None and tail.free else 0)) // page) * page

    def _empty(self) -> None:
        """Gives segments back that are wholly free (release_cached_blocks); of a growing one its
        free end, in whole pages."""
        self.emptied += 1
        for pool in self._free.values():
            for _, at in list(pool):
                block = self._blocks[at]
                if self.expandable:
                    self._shorten(block)
                elif block.before is None and block.after is None:
                    self._withdraw(block)
                    del self._blocks[at]
                    self.reserved -= block.size

    def _shorten(self, block: AllocatorBlock) -> None:
        page = SMALL_SEGMENT if block.small else LARGE_SEGMENT
        size = block.size // page * page
        if self._tail.get(block.small) is not block or not size:
            return
        self._withdraw(block)
        self.reserved -= size
        block.size -= size
        if block.size:
            self._offer(block)
            return
        del self._blocks[block.at]
        if block.before is None:
            del self._tail[block.small]
        else:
            self._tail[block.small] = block.before
            block.before.after = None
