"""A checkpoint of ours -> a folder of torch.distributed.checkpoint, written by its own writer, with
some rows in memory at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from shardlang.checkpoints.index import ITEM_BYTES, Index, Saved
from shardlang.checkpoints.parts import Parts, by_rows
from shardlang.runtime.state.checkpoints import TYPES, tensor_of

# Bytes of a chunk, about.
_CHUNK = 2**28


def described_tensor(saved: Saved) -> TensorStorageMetadata:
    """A whole tensor as metadata of torch's have it, in chunks of some rows."""
    chunks = [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(lengths))
        for offsets, lengths in by_rows(saved.shape, _CHUNK // ITEM_BYTES[saved.dtype])
    ]
    return TensorStorageMetadata(TensorProperties(TYPES[saved.dtype]), torch.Size(saved.shape), chunks)


class _DcpWriter(dcp.FileSystemWriter):
    """torch's writer, which would put the name of the folder into the metadata."""

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta()


class _Planner(dcp.DefaultSavePlanner):
    """Plans all tensors of a checkpoint, and reads each chunk when it is to be written."""

    def __init__(self, index: Index, told: Callable[[int], None]) -> None:
        super().__init__()
        self.parts, self.told = Parts(index), told

    def create_local_plan(self) -> SavePlan:
        items = []
        for name, saved in self.parts.tensors.items():
            described = described_tensor(saved)
            for chunk in described.chunks:
                data = TensorWriteData(chunk, described.properties, described.size)
                items.append(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items, planner_data={name: (name,) for name in self.parts.tensors})
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        data, name = write_item.tensor_data, write_item.index.fqn
        assert data is not None
        found = self.parts.read(name, data.chunk.offsets, data.chunk.sizes)
        self.told(found.nbytes)
        return tensor_of(found, self.parts.tensors[name].dtype)


def write(index: Index, folder: Path, told: Callable[[int], None] = lambda _: None) -> None:
    """Writes all tensors of a checkpoint to a folder that is there, as torch would. told: is given
    the bytes of each chunk. OSError; Damaged where a byte is not what was written."""
    planner = _Planner(index, told)
    state: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state, storage_writer=_DcpWriter(folder), planner=planner, no_dist=True)
    except dcp.api.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None
    finally:
        planner.parts.close()
