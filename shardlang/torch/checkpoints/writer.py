"""A state that torch.distributed.checkpoint saves -> a checkpoint of ours, written by all ranks.

The index says who wrote which part of each tensor, so the parts of a tensor must be a grid of rows
and columns, as those of every DTensor are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner, StorageWriter
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from shardlang.checkpoints import folders
from shardlang.checkpoints.index import Index, Part, SavedLayout, index_of, layout_of
from shardlang.checkpoints.rank_files import Block, file_name, write
from shardlang.errors import RunError
from shardlang.runtime.state.checkpoints import NAMES, bytes_of

# Facts of a run that another checkpoint of it has as well.
_FACTS = ("batch", "seed", "data", "eval", "optimizers", "updates", "skipped", "loss_scale", "best")


@dataclass(frozen=True)
class _Place:
    """Where a rank writes: its number and the folder."""

    rank: int
    draft: str


class CheckpointWriter(StorageWriter):
    """Writes `dcp.save(state, storage_writer=CheckpointWriter("checkpoints", 100))` as
    `checkpoints/step-100`. The state has tensors under our names (`blocks[2].fc1.weight`,
    `blocks[2].fc1.weight:mean`). like: a checkpoint of the same run, whose batch, seed, data and
    optimizers the new one has; without it `shardc run --resume` asks for `--resume-anyway`.
    overwrite: whether checkpoints of later steps are removed, once this one is whole.

    RunError SH508 where something is no such tensor, SH512 where something else is in the way, or
    checkpoints of later steps are."""

    def __init__(
        self, folder: str | os.PathLike[str], step: int, *, like: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> None:  # fmt: skip
        if type(step) is not int or step < 0:
            raise ValueError(f"the step is {step!r}, and must be a whole number from 0")
        self.folder, self.step, self.overwrite = Path(folder), step, overwrite
        facts = {} if like is None else Index(Path(like)).facts
        self._facts = {name: facts[name] for name in _FACTS if name in facts}
        self._layouts: dict[str, SavedLayout] = {}

    @property
    def checkpoint_id(self) -> Path:
        return self.folder / f"step-{self.step}"

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None and Path(checkpoint_id) != self.checkpoint_id:
            raise ValueError(f"this writes `{self.checkpoint_id}`, not `{os.fspath(checkpoint_id)}`")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError("a checkpoint is written by ranks that agree: use_collectives must stay True")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            name = item.index.fqn
            if item.tensor_data is None or item.tensor_data.properties.dtype not in NAMES:
                what = "no tensor" if item.tensor_data is None else f"of {item.tensor_data.properties.dtype}"
                help = f"leave it out, or make it one of {', '.join(each.lower() for each in NAMES.values())}"
                raise RunError("SH508", f"`{name}` is {what}, which no checkpoint holds", help=help)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        items: dict[str, list[tuple[int, WriteItem]]] = {}
        for rank, plan in enumerate(plans):
            for item in plan.items:
                items.setdefault(item.index.fqn, []).append((rank, item))
        self._layouts = {name: _layout(name, mine) for name, mine in sorted(items.items())}
        draft = folders.draft_of(self.checkpoint_id)
        folders.require_own(self.checkpoint_id)
        later = self._later()
        if later and not self.overwrite:
            many = (
                f"{len(later)} checkpoints of later steps are" if len(later) > 1 else "a checkpoint of a later step is"
            )
            fact = f"{many} here, the newest after step {later[0][0]}: `--resume` would go on from that"
            help = "write to another folder; `CheckpointWriter(.., overwrite=True)` removes later ones"
            raise RunError("SH512", fact, file=self.folder, help=help)
        for _, path in later:
            folders.require_own(path)
        folders.begin(draft, self.step)
        return [replace(plan, storage_data=_Place(rank, str(draft))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        place: _Place = plan.storage_data
        mine = {item.index.fqn: item for item in plan.items if _holds(item)}

        def numbers(block: Block) -> np.ndarray:
            found = planner.resolve_data(mine[block.name])
            assert isinstance(found, Tensor)
            return bytes_of(found)

        draft = Path(place.draft)
        with folders.writing(draft / file_name(place.rank)):
            facts = write(draft, place.rank, map(_block, mine.values()), numbers) if mine else None
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, facts) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        draft = folders.draft_of(self.checkpoint_id)
        files = [mine[0].storage_data if mine else None for mine in results]
        with folders.writing(draft):
            folders.put(draft, self.checkpoint_id, index_of(self.step, self._facts, files, self._layouts))
            folders.drop_all([path for _, path in self._later()] if self.overwrite else [])

    def _later(self) -> list[tuple[int, Path]]:
        """The checkpoints of later steps, the newest first."""
        return sorted(
            ((step, path) for step, path in folders.kept(self.folder).items() if step > self.step), reverse=True
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return folders.is_name(Path(checkpoint_id).name)


def _holds(item: WriteItem) -> bool:
    assert item.tensor_data is not None
    return 0 not in item.tensor_data.chunk.sizes


def _block(item: WriteItem) -> Block:
    data = item.tensor_data
    assert data is not None
    return Block(item.index.fqn, NAMES[data.properties.dtype], tuple(data.chunk.offsets), tuple(data.chunk.sizes))


def _layout(name: str, items: Sequence[tuple[int, WriteItem]]) -> SavedLayout:
    """How a tensor is cut, by its parts and their ranks. RunError where they are no grid."""
    data = items[0][1].tensor_data
    assert data is not None
    parts = [Part(rank, block.offsets, block.lengths) for rank, block in ((rank, _block(item)) for rank, item in items)]
    found = layout_of(NAMES[data.properties.dtype], tuple(data.size), parts)
    if found is None or len(set(found.ranks)) != len(found.ranks):
        fact = f"the parts of `{name}` are no grid of one part a rank"
        raise RunError("SH508", fact, help="save it as a DTensor, or whole")
    return found
