"""A checkpoint of ours, where it lies -> what torch.distributed.checkpoint loads: its metadata, and
the blocks that a rank asks for.

Under their names a tensor may be joined of several of ours, and turned; its chunks are then those
of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, StorageReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

from shardlang.checkpoints.index import INDEX, Index, Saved
from shardlang.checkpoints.optimizers import of_weights
from shardlang.checkpoints.parts import Parts
from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.runtime.state.checkpoints import TYPES, tensor_of
from shardlang.weights.backwards import Filling, backwards, their_names
from shardlang.weights.maps import name_map

Key = Literal["ours", "theirs"]


@dataclass(frozen=True)
class _Origin:
    """A tensor of ours that is a tensor to load, or a part of one: from row `first` on, after
    turning it."""

    ours: str
    first: int
    turned: bool

    def block(self, offsets: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A block of the tensor to load, as one of ours."""
        if self.turned:
            offsets, lengths = offsets[::-1], lengths[::-1]
        return (offsets[0] - self.first, *offsets[1:]) if offsets else (), lengths

    def chunk(self, offsets: tuple[int, ...], lengths: tuple[int, ...]) -> ChunkStorageMetadata:
        """A block of ours, as one of the tensor to load."""
        offsets = (offsets[0] + self.first, *offsets[1:]) if offsets else ()
        if self.turned:
            offsets, lengths = offsets[::-1], lengths[::-1]
        return ChunkStorageMetadata(torch.Size(offsets), torch.Size(lengths))


class CheckpointReader(StorageReader):
    """Reads a checkpoint of `shardc run` (`checkpoints/step-100`) by `dcp.load`, under any layout
    and on any number of ranks. key: whether tensors have our names, or theirs by a name map (a
    file, or "std.llama"), with and without its prefix; theirs are parameters and states alone.

    RunError SH508 where the checkpoint is damaged, SH609 where the map is not one-to-one."""

    def __init__(
        self, folder: str | os.PathLike[str], *, key: Key = "ours", names: str | os.PathLike[str] | None = None
    ) -> None:
        if key not in ("ours", "theirs") or (key == "theirs") != (names is not None):
            raise ValueError('key is "ours"; or it is "theirs", with `names` for a name map')
        self.names = None if names is None else os.fspath(names)
        self.reset(folder)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.checkpoint_id = Path(checkpoint_id)
        self._parts: Parts | None = None
        self._origins: Mapping[tuple[str, tuple[int, ...]], _Origin] = {}

    def read_metadata(self) -> Metadata:  # with keywords torch would try twice
        self._parts = Parts(Index(self.checkpoint_id))
        found: dict[str, Any] = {}
        origins = {}
        for name, type, mine in self._tensors(self._parts.index):
            chunks = []
            for origin in mine:
                for part in self._parts.index.tensors[origin.ours].parts():
                    chunk = origin.chunk(part.offsets, part.lengths)
                    chunks.append(chunk)
                    origins[name, tuple(chunk.offsets)] = origin
            found[name] = TensorStorageMetadata(TensorProperties(TYPES[type.dtype]), torch.Size(type.shape), chunks)
        self._origins = origins
        return Metadata(found)

    def _tensors(self, index: Index) -> Iterator[tuple[str, Saved, list[_Origin]]]:
        """Each tensor that can be loaded: its name, its type, and what it is made of."""
        if self.names is None:
            for name, layout in index.tensors.items():
                yield name, layout.type, [_Origin(name, 0, False)]
            return
        sink, ours = Sink(), of_weights(index)
        names = name_map(self.names, sink)
        if names is not None:
            their = their_names(names, ours)
            way = backwards(names, ours, dict.fromkeys(their), sink)
        if names is None or sink.failed:
            first = next(each for each in sink.found)
            raise RunError(first.code, first.message, file=Path(self.names), help="; ".join(first.help))
        for name, filling in way.filled.items():
            for full in dict.fromkeys((name, names.prefix + name)):
                yield full, filling.type, _origins(filling, ours)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._parts is not None
        try:
            for item in plan.items:
                if item.type is LoadItemType.BYTE_IO:
                    raise ValueError(f"`{item.dest_index.fqn}` is no tensor, and a checkpoint holds nothing else")
                target = planner.resolve_tensor(item).detach()
                target.copy_(self._read(self._parts, item))
                planner.commit_tensor(item, target)
        finally:
            self._parts.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, parts: Parts, item: ReadItem) -> Tensor:
        chunk = item.storage_index.offset
        assert chunk is not None
        origin = self._origins[item.storage_index.fqn, tuple(chunk)]
        first = tuple(a + b for a, b in zip(chunk, item.storage_offsets, strict=True))
        offsets, lengths = origin.block(first, tuple(item.lengths))
        found = tensor_of(parts.read(origin.ours, offsets, lengths), parts.index.tensors[origin.ours].dtype)
        return found.permute(*reversed(range(found.dim()))) if origin.turned else found

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return (Path(checkpoint_id) / INDEX).is_file()


def _origins(filling: Filling, ours: Mapping[str, Saved]) -> list[_Origin]:
    """The tensors of ours that fill one of theirs, each with its first row there."""
    found, first = [], 0
    for piece in filling.pieces:
        found.append(_Origin(piece.ours, first, filling.transposed))
        first += (*ours[piece.ours].shape, 0)[0]
    return found
