"""How many kernels a device is given: a number that follows the operators, not their size or the ranks."""

from __future__ import annotations

import pytest
import torch

from shardlang.runtime.functions.lookups import dropout
from shardlang.runtime.state.zero import packed
from tests.device.pretended import DEVICE, Running, counts


@pytest.mark.parametrize("shape", [(3, 5), (700, 300)])
@pytest.mark.parametrize("part", [False, True])
def test_dropout(shape: tuple[int, int], part: bool) -> None:
    """At most 25, also where a rank has a part of the last dim, and the numbers of the CPU."""
    whole, offsets = ((shape[0], 2 * shape[1]), (0, shape[1])) if part else (shape, (0, 0))
    x = torch.ones(shape)
    counts.kernels.clear()
    with Running():
        there = dropout(x.to(DEVICE), 0.3, 7, whole, offsets)
        assert torch.equal(there.cpu(), dropout(x, 0.3, 7, whole, offsets))
    assert 10 < counts.kernels.total() - counts.kernels["_to_copy"] <= 25, counts.kernels


@pytest.mark.parametrize("ranks", [2, 64])
def test_a_bucket_of_zero(ranks: int) -> None:
    """One kernel packs the gradients of any number of parameters for any number of ranks."""

    class Members:
        size, order = ranks, None

    counts.kernels.clear()
    with Running():
        packed([torch.ones(9, 4).to(DEVICE), torch.ones(5).to(DEVICE), torch.ones(()).to(DEVICE)], Members())  # type: ignore[arg-type]
    assert counts.kernels.total() - counts.kernels["_to_copy"] == 1, counts.kernels
