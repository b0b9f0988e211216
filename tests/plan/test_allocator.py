"""The model of torch's caching allocator: each rule of c10/cuda/CUDACachingAllocator.cpp by a sequence whose result
follows from it; then that a plan's sequence is the one of its peak.
"""

from __future__ import annotations

import random

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import taken
from shardlang.folds.peak.ledger import MEANWHILE
from shardlang.folds.peak.step import step_peaks, steps_of_memory
from shardlang.folds.reserved.allocator import Allocator, AllocatorBlock, rounded, segment_size
from shardlang.folds.reserved.footprint import footprint, gone, replayed
from shardlang.plan.plan import Plan
from tests.emit.sources import planned, tried
from tests.plan.small_llama import llama

MB = 1 << 20


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (MB + 1, MB + 512)])
def test_sizes_are_multiples_of_512_bytes(size: int, block: int) -> None:
    """`round_size`: kMinBlockSize = 512."""
    assert rounded(size) == block
    allocator = Allocator()
    allocator.take(size)
    assert allocator.allocated == block


@pytest.mark.parametrize(("size", "segment"), [
    (512, 2 * MB), (MB, 2 * MB),  # up to kSmallSize a kSmallBuffer
    (MB + 512, 20 * MB), (10 * MB - 512, 20 * MB),  # below kMinLargeAlloc a kLargeBuffer
    (10 * MB, 10 * MB), (10 * MB + 512, 12 * MB), (33 * MB, 34 * MB),  # else rounded up to kRoundLarge
])  # fmt: skip
def test_segments_are_of_three_kinds(size: int, segment: int) -> None:
    """`get_allocation_size`."""
    allocator = Allocator()
    allocator.take(size)
    assert segment_size(size) == segment == allocator.reserved


def test_small_and_large_blocks_never_share_a_segment() -> None:
    """`get_pool`: sizes up to kSmallSize have a pool of their own."""
    allocator = Allocator()
    allocator.take(2 * MB)  # leaves 18 MB of a large segment
    allocator.take(MB)
    assert allocator.reserved == 22 * MB
    allocator.take(MB)  # the other half of the small one
    assert allocator.reserved == 22 * MB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    """`get_free_block` takes the lower bound by size, then address."""
    allocator = Allocator()
    blocks = [allocator.take(size * MB) for size in (40, 20, 30)]
    for block in blocks:
        allocator.give(block)
    assert allocator.take(19 * MB).at == blocks[1].at
    assert allocator.take(25 * MB).at == blocks[2].at
    assert allocator.reserved == 90 * MB


def test_large_blocks_are_split_only_where_more_than_1_mb_is_left() -> None:
    """`should_split`: of large blocks the rest must be over kSmallSize; what is not split counts as allocated."""
    allocator = Allocator()
    allocator.give(allocator.take(20 * MB))
    block = allocator.take(19 * MB)
    assert (block.size, allocator.allocated) == (20 * MB, 20 * MB)
    allocator.give(block)
    block = allocator.take(19 * MB - 512)
    assert (block.size, allocator.allocated) == (19 * MB - 512, 19 * MB - 512)
    allocator.take(MB + 512)
    assert allocator.reserved == 20 * MB


def test_small_blocks_are_split_to_512_bytes() -> None:
    """`should_split`: of small blocks kMinBlockSize is enough."""
    allocator = Allocator()
    for _ in range(4096):
        allocator.take(512)
    assert allocator.reserved == 2 * MB
    allocator.take(512)
    assert allocator.reserved == 4 * MB


def test_neighbours_that_are_free_become_one() -> None:
    """`try_merge_blocks`, within a segment alone."""
    allocator = Allocator()
    blocks = [allocator.take(4 * MB) for _ in range(5)]
    assert allocator.reserved == 20 * MB
    for at in (1, 3, 2):
        allocator.give(blocks[at])
    assert allocator.take(12 * MB).at == blocks[1].at
    assert allocator.reserved == 20 * MB
    others = [allocator.take(10 * MB) for _ in range(2)]
    for block in others:
        allocator.give(block)
    allocator.take(20 * MB)
    assert allocator.reserved == 60 * MB


def test_a_hole_that_is_too_small_is_not_used() -> None:
    """Fragmentation: 12 MB are free, and none in one piece."""
    allocator = Allocator()
    blocks = [allocator.take(4 * MB) for _ in range(5)]
    for at in (0, 2, 4):
        allocator.give(blocks[at])
    allocator.take(5 * MB)
    assert (allocator.reserved, allocator.allocated) == (40 * MB, 13 * MB)


def test_where_the_device_is_full_free_segments_are_given_back() -> None:
    """`release_cached_blocks` before an allocation is tried again: whole segments, not parts of them."""
    allocator = Allocator(limit=50 * MB)
    first = allocator.take(30 * MB)
    allocator.give(first)
    allocator.take(40 * MB)
    assert (allocator.reserved, allocator.emptied, allocator.over) == (40 * MB, 1, False)
    allocator = Allocator(limit=50 * MB)
    parts = [allocator.take(4 * MB), allocator.take(4 * MB)]
    allocator.give(parts[0])
    allocator.take(40 * MB)  # a part of the 20 MB is in use, so all of them stay
    assert (allocator.reserved, allocator.emptied, allocator.over) == (60 * MB, 1, True)


def test_expandable_segments_grow_in_pages() -> None:
    """`try_allocate_expandable_block`: 2 MB for small blocks, 20 MB for others; the free end is part of the next block,
    and freed memory of any size becomes one.
    """
    allocator = Allocator(expandable=True)
    blocks = [allocator.take(size * MB) for size in (15, 15, 15)]
    assert allocator.reserved == 60 * MB
    for block in blocks:
        allocator.give(block)
    allocator.take(60 * MB)
    assert allocator.reserved == 60 * MB
    allocator.take(512)
    assert allocator.reserved == 62 * MB
    without = Allocator()
    for block in [without.take(size * MB) for size in (15, 15, 15)]:
        without.give(block)
    without.take(60 * MB)
    assert without.reserved == 108 * MB


def test_a_free_end_that_is_given_back_is_asked_for_again() -> None:
    """`release_cached_blocks`, then `alloc_block` once more: the end of the growing segment may be gone by then."""

    def with_small() -> Allocator:
        """Of 60 MB, 4 are in free small blocks."""
        allocator = Allocator(limit=60 * MB, expandable=True)
        for block in [allocator.take(MB) for _ in range(3)]:
            allocator.give(block)
        assert allocator.reserved == 4 * MB
        return allocator

    allocator = with_small()
    allocator.give(allocator.take(30 * MB))
    block = allocator.take(50 * MB)
    assert (block.size, allocator.reserved, allocator.emptied, allocator.over) == (50 * MB, 60 * MB, 1, False)
    allocator = with_small()
    kept, end = allocator.take(15 * MB), allocator.take(25 * MB)
    allocator.give(end)
    block = allocator.take(44 * MB)  # beside what is left of the first page
    assert kept.after is block and (block.at, block.size) == (kept.size, 44 * MB)
    assert (allocator.reserved, allocator.emptied, allocator.over) == (60 * MB, 1, False)


@pytest.mark.parametrize("limit", [0, 64 * MB, 640 * MB])
@pytest.mark.parametrize("expandable", [False, True])
def test_random_sequences_keep_the_books(expandable: bool, limit: int) -> None:
    """Blocks of a segment neither overlap nor leave gaps, no two free ones are neighbours, and sums agree."""
    rng = random.Random(7)
    allocator, there = Allocator(limit, expandable), list[AllocatorBlock]()
    for _ in range(3000):
        if there and rng.random() < 0.48:
            allocator.give(there.pop(rng.randrange(len(there))))
        else:
            there.append(allocator.take(int(2 ** rng.uniform(0, 26))))
        assert allocator.allocated == sum(block.size for block in there) <= allocator.reserved
    assert bool(allocator.emptied) == bool(limit)
    blocks = sorted(allocator._blocks.values(), key=lambda block: block.at)
    assert sum(block.size for block in blocks) == allocator.reserved
    for block in blocks:
        if block.after is not None:
            assert block.after.before is block and block.at + block.size == block.after.at
            assert not (block.free and block.after.free)


# --- of plans


@pytest.mark.parametrize("limit", [0, 640 * MB])
@pytest.mark.parametrize("expandable", [False, True])
def test_what_is_there_for_a_moment_is_taken_and_given(expandable: bool, limit: int) -> None:
    rng, pair, blocks = random.Random(11), [Allocator(limit, expandable) for _ in range(2)], [[], []]
    for _ in range(3000):
        size = int(2 ** rng.uniform(8, 27))
        if blocks[0] and rng.random() < 0.5:
            at = rng.randrange(len(blocks[0]))
            for allocator, there in zip(pair, blocks, strict=True):
                allocator.give(there.pop(at))
        elif rng.random() < 0.5:
            block = pair[0].take(size)
            high = pair[0].allocated
            pair[0].give(block)
            assert pair[1].passing(size) == high
        else:
            for allocator, there in zip(pair, blocks, strict=True):
                there.append(allocator.take(size))
        one, other = ({k: v for k, v in vars(each).items() if k not in ("_blocks", "_tail")} for each in pair)
        assert one == other


PLANS = [
    ("mesh dp = 1", 1), ("mesh dp = 4\n  split batch over dp", 4),
    ("mesh dp = 4\n  split batch over dp\n  zero 2 over dp\n  microbatches 2", 4),
    ("mesh dp = 4\n  split batch over dp\n  zero 3 over dp\n  microbatches 2", 4),
    ("mesh dp = 1\n  at blocks[*]: recompute\n  microbatches 4", 1),
    ("mesh pp = 2, dp = 2\n  split batch over dp\n  stages over pp balanced\n  microbatches 4\n  zero 3 over dp", 4),
    ("mesh pp = 2\n  stages over pp balanced\n  microbatches 8", 2),
    ("mesh dp = 1\n  at blocks[*]: place saved on host\n  microbatches 4", 1),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "ranks"), PLANS)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_what_comes_and_goes_is_the_peak(rules: str, ranks: int, precision: str) -> None:
    check_books(planned(llama(rules, precision), ranks, "s"))


def check_books(plan: Plan) -> None:
    """What comes and goes is the peak of each coordinate, to the byte, and nothing goes that is not there, tensor by
    tensor."""
    for at, peak in enumerate(step_peaks(plan)):
        total = most = 0
        there: dict[tuple[str, object], dict[int, list[int]]] = {}
        for what, whose, size in steps_of_memory(plan, at):
            sizes = there.setdefault((what, whose), {})
            if size < 0:
                assert sum(gone(sizes, -size)) == -size, what
            else:
                sizes.setdefault(size, []).append(size)
            total += 0 if what == MEANWHILE else size
            most = max(most, total + (size if what == MEANWHILE else 0))
        assert most == peak.bytes


# The gradient of a sum is that of both parameters.
SHARED = """\
dim batch = 4, d = 256, wide = 64

model Net {
  param one: [d, wide] = normal(0.1)
  param two: [d, wide] = normal(0.1)
  param three: [wide, d] = normal(0.1)

  forward(x: [batch, d]) -> [batch, d] {
    h = x @ (one + two) |> tanh
    return h @ three
  }
}

strategy s {
  mesh dp = 2
  split batch over dp
  zero LEVEL over dp
  microbatches 2
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 2)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_gradient_that_two_parameters_share_goes_once(level: int) -> None:
    check_books(planned(SHARED.replace("LEVEL", str(level)), 2, "s"))


# Three values of two sizes go to the second stage, and their gradients come back.
THREE_SENT = """\
dim batch = 4, d = 8, narrow = 4, wide = 6, hidden = 64

model First {
  param a: [d, narrow] = normal(0.5)
  param b: [d, wide] = normal(0.5)
  param c: [d, narrow] = normal(0.5)

  forward(x: [batch, d]) -> [batch, narrow], [batch, wide], [batch, narrow] {
    return x @ a, x @ b, x @ c
  }
}

model Second {
  param e: [narrow, hidden] = normal(0.5)
  param f: [wide, hidden] = normal(0.5)

  forward(p: [batch, narrow], q: [batch, wide], r: [batch, narrow]) -> [batch, hidden] {
    return tanh((p * r) @ e) + tanh(q @ f)
  }
}

model Net {
  layer first = First()
  layer second = Second()

  forward(x: [batch, d]) -> [batch, hidden] {
    p, q, r = first(x)
    return second(p, q, r)
  }
}

strategy s {
  mesh pp = 2
  stages over pp {
    0: first
    1: second
  }
  microbatches 4
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, hidden], batches = 2)
  loss = mse_loss(model(x), y)
  optimizer = adam(lr = 0.1)
  steps = 2
}
"""


def test_messages_go_one_by_one() -> None:
    check_books(planned(THREE_SENT, 2, "s"))


def on_card(memory: str, rules: str = "mesh dp = 1") -> tuple[Plan | None, Sink]:
    card = f"device card {{\n  memory = {memory}\n  reserved = 1GB\n}}\n\n"
    text = llama(rules).replace("strategy s", f"{card}strategy s")
    return tried(text, 1, "s")


def test_a_plan_has_its_footprint_where_the_device_has_reserved() -> None:
    plan, _ = on_card("80GB")
    assert plan is not None
    found = taken(plan)
    (peak,) = step_peaks(plan)
    assert found is not None and found.fits and not found.emptied
    assert peak.bytes <= found.allocated <= found.reserved == found.device - 10**9
    whole = sum(size * count for _, size, count in found.largest)
    assert 0.9 * peak.bytes <= whole <= found.allocated
    assert taken(planned(llama("mesh dp = 1"), 1, "s")) is None
    wide = footprint(plan, 80 * 10**9, 10**9, True)
    assert wide.reserved % (2 * MB) == 0 and wide.allocated <= found.allocated


def test_what_torch_takes_decides_whether_it_fits() -> None:
    """SH450 with the number; a device of just that size is enough."""
    plan, _ = on_card("80GB")
    found = taken(plan) if plan is not None else None
    assert found is not None
    plan, sink = on_card(f"{found.device / 1000:.3f}kB")
    assert plan is not None and not sink.found
    plan, sink = on_card(f"{(found.device - 2 * MB) / 1000:.3f}kB")
    assert plan is None and [d.code for d in sink.found] == ["SH450"]
    (note,) = sink.found[0].notes
    assert "for that torch takes" in note and "1.00 GB are reserved" in note


def test_nothing_is_replayed_of_nothing() -> None:
    assert [*replayed([], Allocator())] == []
    ops = [("x", None, 600), (MEANWHILE, None, 100)]
    assert [*replayed([*ops, ("x", None, -600)], Allocator())] == ops
