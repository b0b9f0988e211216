"""A checkpoint of ours -> a folder of torch.distributed.checkpoint, written by its own writer, with
some rows in memory at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from shardlang.checkpoints.index import ITEM_BYTES, Index
from shardlang.checkpoints.parts import Parts
from shardlang.runtime.state.checkpoints import TYPES, tensor_of

# Bytes of a chunk, about.
_CHUNK = 2**28


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
        items = [item for name in self.parts.index.tensors for item in self._items(name)]
        self.plan = SavePlan(items, planner_data={name: (name,) for name in self.parts.index.tensors})
        return self.plan

    def _items(self, name: str) -> list[WriteItem]:
        layout = self.parts.index.tensors[name]
        shape = layout.shape
        rows = shape[0] if shape else 1
        step = max(1, _CHUNK // max(1, ITEM_BYTES[layout.dtype] * math.prod(shape[1:])))
        items = []
        for first in range(0, max(rows, 1), step):
            offsets = (first, *(0 for _ in shape[1:])) if shape else ()
            sizes = (min(step, rows - first), *shape[1:]) if shape else ()
            chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            data = TensorWriteData(chunk, TensorProperties(TYPES[layout.dtype]), torch.Size(shape))
            items.append(WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data))
        return items

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        data, name = write_item.tensor_data, write_item.index.fqn
        assert data is not None
        found = self.parts.read(name, data.chunk.offsets, data.chunk.sizes)
        self.told(found.nbytes)
        return tensor_of(found, self.parts.index.tensors[name].dtype)


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
