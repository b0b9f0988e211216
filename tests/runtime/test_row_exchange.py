"""Rows exchanged on real ranks: values and gradients are those of a lookup in the whole table on one device."""

from __future__ import annotations

import pytest
import torch

from shardlang.runtime.comm.blocks import chunk_sizes
from shardlang.runtime.comm.mesh import Group, RankMesh
from shardlang.runtime.comm.row_exchange import exchanged_embedding
from tests.runtime.forked import on_ranks

WIDTH = 3
# Rows of the table, and the sizes of its parts where they are not torch.chunk's.
TABLES = ((8, None), (7, None), (5, None), (12, (3, 0, 8, 1)), (1, None))


def drawn(seed: int, rows: int, count: int) -> torch.Tensor:
    """Ids of all ranks: some many times, some never, and in a third of the cases all of one member's rows."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, max(1, rows // 3) if seed % 3 == 0 else rows, (4, count, 2), generator=draw)


def one_case(seed: int, rows: int, sizes: tuple[int, ...] | None, group: Group, sparse: bool) -> None:
    parts = sizes or chunk_sizes(rows, group.size)
    start, length = sum(parts[: group.index]), parts[group.index]
    draw = torch.Generator().manual_seed(100 + seed)
    whole = torch.randn(rows, WIDTH, generator=draw, dtype=torch.float64, requires_grad=True)
    ids = drawn(seed, rows, seed % 4)[: group.size]  # of no example, too
    weight = torch.randn(*ids.shape, WIDTH, generator=draw, dtype=torch.float64)
    (whole[ids] * weight).sum().backward()

    mine = whole.detach()[start : start + length].clone().requires_grad_()
    here = ids[group.index]
    found = exchanged_embedding(here, mine, rows, group, sizes, sparse)
    assert torch.equal(found, whole.detach()[here])
    with torch.no_grad():
        assert torch.equal(exchanged_embedding(here, mine, rows, group, sizes), found)
    (found * weight[group.index]).sum().backward()
    assert mine.grad.is_sparse == sparse
    torch.testing.assert_close(mine.grad.to_dense(), whole.grad[start : start + length], rtol=1e-12, atol=1e-12)


def exchanges_of_four() -> None:
    mesh = RankMesh(dp=2, cp=2)
    for axes in (("dp", "cp"), ("cp", "dp")):  # members by rank, and not
        for rows, sizes in TABLES:
            for seed in range(12):
                one_case(seed, rows, sizes, mesh[axes], sparse=bool(seed % 2))


def exchanges_of_two() -> None:
    """Within pairs of ranks, which look up different things."""
    mesh = RankMesh(mp=2, dp=2)
    for seed in range(12):
        one_case(seed + 20 * mesh.mp.index, 6, None, mesh.dp, sparse=True)


@pytest.mark.parametrize("function", ["exchanges_of_four", "exchanges_of_two"])
def test_ranks_have_one_devices_rows_and_gradients(function: str) -> None:
    on_ranks(__file__, function, 4)
