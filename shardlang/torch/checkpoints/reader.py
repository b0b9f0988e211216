"""A checkpoint of ours, where it lies -> what torch.distributed.checkpoint loads: its metadata, and
the blocks that a rank asks for.

Under their names a tensor may be joined of several of ours, and turned."""

from __future__ import annotations

import os
from operator import add
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata, StorageReader
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

from shardlang.checkpoints.index import INDEX, Index
from shardlang.checkpoints.optimizers import of_weights
from shardlang.checkpoints.parts import Parts
from shardlang.checkpoints.weight_files import Weights
from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.runtime.dcp.written import described_tensor
from shardlang.runtime.state.checkpoints import tensor_of
from shardlang.weights.backwards import backwards, their_names
from shardlang.weights.maps import name_map
from shardlang.weights.theirs import TheirWeights

Key = Literal["ours", "theirs"]


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

    def read_metadata(self) -> Metadata:  # with keywords torch would try twice
        self._parts = Parts(Index(self.checkpoint_id))
        self._weights: Weights = self._parts if self.names is None else self._theirs(self._parts, self.names)
        return Metadata({name: described_tensor(saved) for name, saved in self._weights.tensors.items()})

    def _theirs(self, parts: Parts, map: str) -> TheirWeights:
        """The parameters and states under the names of a map."""
        sink, ours = Sink(), of_weights(parts.index)
        names = name_map(map, sink)
        if names is not None:
            way = backwards(names, ours, dict.fromkeys(their_names(names, ours)), sink)
        if names is None or sink.failed:
            first = next(each for each in sink.found)
            raise RunError(first.code, first.message, file=Path(map), help="; ".join(first.help))
        filled = {full: way.filled[name] for name in way.filled for full in (name, names.prefix + name)}
        return TheirWeights(parts, filled)

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
                target.copy_(self._read(item))
                planner.commit_tensor(item, target)
        finally:
            self._parts.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, item: ReadItem) -> Tensor:
        chunk = item.storage_index.offset
        assert chunk is not None
        first, name = tuple(map(add, chunk, item.storage_offsets)), item.storage_index.fqn
        return tensor_of(self._weights.read(name, first, tuple(item.lengths)), self._weights.tensors[name].dtype)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return (Path(checkpoint_id) / INDEX).is_file()
