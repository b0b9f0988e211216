"""Checkpoints: all that a run needs to go on, written in parts by the ranks and read back under any
layout.

A checkpoint is a folder `step-N`: a file of each rank (checkpoints/rank_files.py) and `index.json`,
which says who wrote which part of each tensor (checkpoints/index.py). Its folder bears another name
until it is complete (checkpoints/folders.py). Nothing is pickled: torch.distributed.checkpoint
pickles its metadata, so its folders are another form (runtime/dcp/)."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardlang.checkpoints import folders
from shardlang.checkpoints.index import INDEX, OF_ANOTHER, FileFacts, Index, Part, SavedLayout, index_of
from shardlang.checkpoints.looked_at import look
from shardlang.checkpoints.parts import Parts, shared
from shardlang.checkpoints.rank_files import Block, write
from shardlang.errors import RunError
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.primitives import exchanged
from shardlang.runtime.device import kind_of
from shardlang.runtime.finite import broken, shown
from shardlang.runtime.program import DTYPES
from shardlang.runtime.state import mapped

# A type, by safetensors' name.
TYPES = {name.upper(): dtype for name, dtype in DTYPES.items()}
NAMES = {dtype: name for name, dtype in TYPES.items()}
# Seconds between two looks at who has written his file.
_PACE = 0.005


def tensor_of(numbers: np.ndarray, dtype: str) -> Tensor:
    """Numbers as they are stored, as a tensor of a type. An empty array may have strides in numpy
    with which torch has no bytes."""
    if not numbers.size:
        return torch.empty(numbers.shape, dtype=TYPES[dtype])
    return torch.from_numpy(numbers).view(TYPES[dtype])


def bytes_of(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, in order; in the host's memory."""
    return np.asarray(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


@dataclass(frozen=True)
class Piece:
    """This rank's block of a whole tensor: `local` at `offsets` of `shape`."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: Tensor

    def part(self, part: Part) -> Tensor:
        """The numbers of a part that lies within."""
        return self.local[shared(part, self.offsets, self.local.shape)[1]]


class Checkpoints:
    """The folder of a run's checkpoints. keep: how many are left there, the latest; 0: all. best:
    the step of one that stays besides. told: called on rank 0 with step and folder of one that is
    whole.

    They are written by a thread, one at a time, from a copy in the host's memory. Tensors
    in mapped files may be larger than that; where there are any, training goes on once all is
    written."""

    def __init__(self, folder: Path, every: int, keep: int) -> None:
        self.folder, self.every, self.keep = folder, every, keep
        self.best: int | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last: Path | None = None  # of those that are whole
        self._copies: dict[str, Tensor] = {}
        self.told: Callable[[int, Path], None] = lambda step, folder: None

    def due(self, step: int, total: int) -> bool:
        return step % self.every == 0 or step == total

    def require_fresh(self) -> None:
        """Before a run that begins anew. RunError where there are checkpoints of an earlier run:
        `--resume` would find them among its own."""
        found = folders.kept(self.folder)
        if found:
            many = f"{len(found)} checkpoints" if len(found) > 1 else "a checkpoint"
            fact = (
                f"{many} of an earlier run {'are' if len(found) > 1 else 'is'} here, the newest after step {max(found)}"
            )
            help = "--resume goes on from there; --overwrite removes what is here and begins anew; or name another "
            raise RunError("SH512", fact, file=self.folder, help=f"{help}folder: `to` of `checkpoint`")

    def clear(self) -> int:
        """Removes the checkpoints of an earlier run, on rank 0: how many. RunError, and all stay,
        where one is not ours to remove. The newest goes last: a run that is killed before leaves
        it. One whose index is damaged stays."""
        found = folders.kept(self.folder) if world.rank == 0 else {}
        mine = [found[step] for step in sorted(found) if not folders.is_damaged(found[step])]
        folders.drop_all(mine)
        return len(mine)

    def put_aside(self, after: int, note: Callable[[str], None]) -> None:
        """Moves aside, on rank 0, the checkpoints of steps after one, which the run does not go on
        from and will come to. RunError where one cannot be moved."""
        found = folders.kept(self.folder) if world.rank == 0 else {}
        for step in sorted(found):
            if step > after:
                note(f"{found[step]} is damaged, and was moved to {folders.put_aside(found[step])}")

    def require_way(self, total: int, after: int, every: int | None = None) -> None:
        """Before training. RunError if anything of the user's has the name of a checkpoint that
        will come after a step. every: an evaluation after every so many steps may keep one too."""

        def due(step: int) -> bool:
            return step > after and (self.due(step, total) or (every is not None and step % every == 0))

        if world.rank == 0:
            folders.require_way(self.folder, due)

    def latest(self) -> Path | None:
        """The checkpoint of the greatest step, whole or not."""
        found = self._all()
        return found[max(found)] if found else None

    def offered(self) -> list[Path]:
        """The checkpoints that rank 0 sees, the newest first; all ranks call it. RunError if
        another sees some where rank 0 sees none."""
        told = exchanged([place(), sorted(self._all())])
        (first, steps), others = told[0], [(where, found[-1]) for where, found in told if found]
        if not steps and others:
            where, step = others[0]
            raise _apart(f"{where} sees step-{step}, and {first} sees no checkpoint", self.folder)
        return [self.folder / f"step-{step}" for step in reversed(steps)]

    def _all(self) -> dict[int, Path]:
        found = folders.steps(self.folder).items()
        return {step: path for step, path in found if (path / INDEX).is_file() or folders.is_damaged(path)}

    def write(
        self, step: int, pieces: Sequence[Piece], tensors: Mapping[str, SavedLayout], facts: Mapping[str, Any]
    ) -> None:
        """All ranks call it. It returns once nothing of the pieces is needed any more; `wait` waits
        until this rank has written its file, and rank 0 until all have, and the folder has its
        name."""
        self.wait()
        whole = self.folder / f"step-{step}"
        draft = folders.draft_of(whole)
        if world.rank == 0:
            folders.begin(draft, step)
        primitives.meet()
        mine, done = _mine(pieces, tensors), _Done(whole, facts.get("optimizers", ()))

        def index(files: Sequence[Any]) -> str:
            return index_of(step, facts, files, tensors)

        if any(map(mapped.is_mapped, mine.values())):
            self._write(step, whole, mine, done, index, self.best)
            return
        copied = {block: self._copy_of(block.name, numbers) for block, numbers in mine.items()}
        kind_of(world.device).bring(list(mine.values()), list(copied.values()))
        self._thread = threading.Thread(
            target=self._kept, args=(step, whole, copied, done, index, self.best), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _copy_of(self, name: str, numbers: Tensor) -> Tensor:
        """The memory that the copies of a block have, the same each time."""
        if name not in self._copies:
            self._copies[name] = kind_of(numbers.device).host_memory(numbers)
        return self._copies[name]

    def _kept(self, *given: Any) -> None:
        """Writes, and keeps the error that it meets."""
        try:
            self._write(*given)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raises the error that the thread has met."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Returns once what was begun is written; raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def finish(self) -> None:
        """After the last evaluation: all is written, and none is left that is neither the best nor
        of the latest. Damaged where the last that this run has written is not whole any more."""
        self.wait()
        if world.rank == 0 and self._last is not None:
            look(Index(self._last))
        if world.rank == 0 and self.best is not None:
            self._drop_old(max(self._all(), default=0), self.best)

    def _write(
        self, step: int, whole: Path, mine: Mapping[Block, Tensor], done: _Done,
        index: Callable[[Sequence[Any]], str], best: int | None,
    ) -> None:  # fmt: skip
        """Writes this rank's file; on rank 0 also the index, once all have written theirs, and
        gives the folder its name."""
        draft = folders.draft_of(whole)
        done.require_finite(mine)
        with folders.writing(draft):
            try:
                done.tell(write(draft, world.rank, mine, lambda block: bytes_of(mine[block])))
            except OSError as error:
                done.tell(str(error.strerror))
                raise
        if world.rank != 0:
            return
        files = done.all(draft)
        with folders.writing(draft):
            folders.put(draft, whole, index(files))
            self._last = whole
            self.told(step, whole)
            self._drop_old(step, best)

    def _drop_old(self, step: int, best: int | None) -> None:
        found = self._all()
        older = sorted(n for n, path in found.items() if n <= step and folders.foreign(path) is None)
        for number in older[: -self.keep] if self.keep else []:
            if number != best:
                folders.drop(found[number])


class _Done:
    """The files that the ranks have written of the checkpoint of a step, told by way of their
    store. whole: its folder. trained: the paths of the parameters that are."""

    def __init__(self, whole: Path, trained: Collection[str]) -> None:
        self.name, self.alone, self.whole, self.trained = f"shardlang/checkpoint/{whole.name}", "", whole, trained

    def require_finite(self, mine: Mapping[Block, Tensor]) -> None:
        """RunError, told to all, where a number to be written of what is trained is none."""
        for block, numbers in mine.items():
            if wrong := not_finite(block.name, numbers, block.offsets, self.trained):
                self.tell({"not finite": wrong})
                raise self._not_written(wrong)

    def _not_written(self, wrong: str) -> RunError:
        help = "the checkpoints before it stay, and --resume goes on from them; `not_finite = skip` leaves out a step "
        help += "whose gradients are not finite"
        return RunError("SH506", f"no checkpoint is written, as {wrong}", file=self.whole, help=help)

    def tell(self, written: FileFacts | str | dict[str, str]) -> None:
        """The facts of the file that this rank has written, or why it could not."""
        text = json.dumps(written)
        if world.size == 1 or world.store is None:
            self.alone = text
            return
        world.store.set(f"{self.name}/{world.rank}", text)
        world.store.add(self.name, 1)

    def all(self, draft: Path) -> list[Any]:
        """On rank 0: that of all ranks, once they have told it. RunError if one could not write."""
        if world.size == 1 or world.store is None:
            return [json.loads(self.alone)]
        while world.store.add(self.name, 0) < world.size:
            time.sleep(_PACE)
        found = []
        for rank in range(world.size):
            found.append(json.loads(world.store.get(f"{self.name}/{rank}")))
            world.store.delete_key(f"{self.name}/{rank}")
        world.store.delete_key(self.name)
        for rank, each in enumerate(found):
            if isinstance(each, dict):
                raise self._not_written(each["not finite"])
            if isinstance(each, str):
                fact = f"a checkpoint cannot be written: rank {rank} cannot write its part: {each}"
                raise RunError("SH508", fact, file=draft)
        return found


def not_finite(name: str, numbers: Tensor, offsets: Sequence[int], trained: Collection[str]) -> str:
    """The first number of a part of a saved tensor that is none, if it is of what is trained;
    else "". The state of an optimizer may be infinite."""
    path, kept, _ = name.partition(":")
    at = broken(numbers, infinite=bool(kept)) if path in trained else None
    return "" if at is None else f"`{name}` {shown(numbers, at, offsets)}"


def _mine(pieces: Sequence[Piece], tensors: Mapping[str, SavedLayout]) -> dict[Block, Tensor]:
    """The blocks that are this rank's to write, with their numbers."""
    found = {}
    for piece in pieces:
        layout = tensors[piece.name]
        part = layout.part_of(world.rank)
        if part is not None:
            found[Block(piece.name, layout.dtype, part.offsets, part.lengths)] = piece.part(part).detach()
    return found


def place() -> str:
    """The name of this rank and its host."""
    return f"rank {world.rank} on {socket.gethostname()}"


def _apart(fact: str, folder: Path) -> RunError:
    help = "give all hosts one folder: `to` of `checkpoint`, or --base, on a disk that they share"
    return RunError("SH508", f"the ranks see different checkpoints: {fact}", file=folder, help=help)


def require_one(folder: Path, seen: Sequence[tuple[str, int | None]]) -> None:
    """RunError where a rank sees another checkpoint than rank 0, or none. seen: of each rank, its
    place and the checksum of the index."""
    (first, crc), *others = seen
    for where, other in others:
        if (other is None) != (crc is None):
            has, lacks = (first, where) if other is None else (where, first)
            raise _apart(f"{lacks} does not see `{folder.name}`, which {has} sees", folder)
        if other != crc:
            raise _apart(f"{where} sees another `{folder.name}` than {first}", folder)


class SavedRun(Index):
    """The run that a checkpoint holds, to go on from."""

    def read(self, pieces: Sequence[Piece]) -> None:
        """Fills the local tensors of all pieces, whatever layout they were written from. Damaged
        where a byte that is read is not what was written."""
        due = [piece for piece in pieces if piece.local.numel()]
        lacking = [piece.name for piece in due if piece.name not in self.tensors]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise RunError("SH508", f"the checkpoint lacks `{lacking[0]}`{more}", file=self.folder, help=OF_ANOTHER)
        for piece in due:
            there = self.tensors[piece.name]
            if there.shape != piece.shape:
                fact = f"`{piece.name}` is {list(there.shape)} in the checkpoint and {list(piece.shape)} in the program"
                raise RunError("SH508", fact, file=self.folder, help=OF_ANOTHER)
        with closing(Parts(self)) as parts, torch.no_grad():
            files = parts.files((piece.name, piece.offsets, tuple(piece.local.shape)) for piece in due)
            for number, at, found in itertools.chain.from_iterable(files):
                due[number].local[at].copy_(tensor_of(found, self.tensors[due[number].name].dtype))

    def parts(self) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
        """All saved numbers: the tensor's name, where in it some begin, and they."""
        names = list(self.tensors)
        with closing(Parts(self)) as parts:
            for number, at, found in itertools.chain.from_iterable(parts.all()):
                name = names[number]
                yield name, tuple(each.start for each in at), tensor_of(found, self.tensors[name].dtype)
