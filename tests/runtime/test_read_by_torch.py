"""A checkpoint is read back by torch's own reader, under DTensor, on 4 ranks."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from shardlang.checkpoints.index import SavedLayout
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.state.checkpoints import Checkpoints, Piece
from tests.runtime.forked import on_ranks

pytestmark = pytest.mark.slow
# Names, types and shapes; the layouts that 4 ranks write, and the placements that 4 others read.
TENSORS = {
    "blocks[0].w": (torch.float32, "F32", (10, 12), [[3, 2, 5], [12]], (0, 2, 3), (Shard(0), Shard(1))),
    "blocks[0].w:mean": (torch.float32, "F32", (10, 12), [[5, 5], [7, 5]], (3, 1, 0, 2), (Shard(1), Replicate())),
    "table": (torch.bfloat16, "BF16", (9, 4), [[9], [4]], (1,), (Shard(0), Shard(0))),
    "seen": (torch.int64, "I64", (3,), [[1, 2]], (2, 0), (Replicate(), Replicate())),
}


def numbers(name: str) -> torch.Tensor:
    dtype, _, shape, *_ = TENSORS[name]
    return (torch.arange(torch.Size(shape).numel()) * 3 + len(name)).view(shape).to(dtype)


def read() -> None:
    folder = Path(tempfile.gettempdir()) / f"by-torch-{os.getppid()}"
    layouts = {
        name: SavedLayout(kind, shape, lengths, ranks) for name, (_, kind, shape, lengths, ranks, _) in TENSORS.items()
    }
    pieces = [Piece(name, layout.shape, (0,) * len(layout.shape), numbers(name)) for name, layout in layouts.items()]
    kept = Checkpoints(folder, 1, 0)
    kept.write(1, pieces, layouts, {})
    kept.wait()
    primitives.meet()

    mesh = init_device_mesh("cpu", (2, 2))
    state = {
        name: distribute_tensor(torch.zeros_like(numbers(name)), mesh, placements)
        for name, (*_, placements) in TENSORS.items()
    }
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder / "step-1")))
    for name, found in state.items():
        assert torch.equal(found.full_tensor(), numbers(name)), name
    primitives.meet()
    if world.rank == 0:
        shutil.rmtree(folder)


def test_torch_reads_a_checkpoint_under_dtensor() -> None:
    on_ranks(__file__, "read", 4, ["torch.distributed.tensor", "torch.distributed.checkpoint"])
