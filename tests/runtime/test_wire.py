"""Sums of every size, each in its way: one round, two rounds, the ring. All ranks get the same bits."""

from __future__ import annotations

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from tests.runtime.forked import on_ranks

# Elements on 4 ranks: below and above each limit of wire.py, and none that divides.
SIZES = (1, 1_001, 30_001, 100_003, 524_287, 524_289)


def summed(size: int, dtype: torch.dtype, own: bool) -> None:
    group = rt.Mesh(dp=world.size).dp
    parts = [torch.rand(size, dtype=dtype, generator=torch.Generator().manual_seed(r)) for r in range(world.size)]
    given = parts[world.rank].clone()
    total = primitives.begin_reduce(given, group, own=own).wait()
    expected = torch.stack(parts).double().sum(0)
    torch.testing.assert_close(total.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0.0)
    assert own or torch.equal(given, parts[world.rank])
    everywhere = primitives.all_gather(total.view(torch.uint8), group)
    assert all(torch.equal(other, everywhere[0]) for other in everywhere)


def sums() -> None:
    for size in SIZES:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for own in (False, True):
                summed(size, dtype, own)


@pytest.mark.parametrize("ranks", [2, 4])
def test_sums(ranks: int) -> None:
    on_ranks(__file__, "sums", ranks)
