"""Checkpoints: all that a run needs to go on, written in parts by the ranks and read back under any
layout.

A checkpoint is a folder `step-N`: safetensors files of each rank with the blocks that no other rank
writes, and `index.json`, which says where in each whole tensor each block lies. Its folder bears
another name until it is complete (see checkpoint_folders.py).
Nothing is pickled. (torch.distributed.checkpoint pickles its metadata, so it is not used.)"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.program import Block
from shardlang.runtime.state import checkpoint_folders as folders
from shardlang.runtime.state.checkpoint_folders import FORMAT, INDEX, RANK_FILE

# A file is copied in memory before it is written; what is kept in mapped files may be larger than
# memory.
_FILE_BYTES = 2**30


@dataclass(frozen=True)
class Piece:
    """This rank's block of a whole tensor: `local` at `offsets` of `shape`. writes: only it."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: Tensor
    writes: bool


class Checkpoints:
    """The folder of a run's checkpoints. keep: how many are left there, the latest; 0: all."""

    def __init__(self, folder: Path, every: int, keep: int) -> None:
        self.folder, self.every, self.keep = folder, every, keep

    def due(self, step: int, total: int) -> bool:
        return step % self.every == 0 or step == total

    def tidy(self) -> None:
        """Before anything is read, by all ranks: removes what killed runs left."""
        if world.rank == 0:
            folders.tidy(self.folder)
        primitives.meet()

    def require_way(self, total: int) -> None:
        """Before training. RunError if anything of the user's has a coming checkpoint's name."""
        if world.rank == 0:
            folders.require_way(self.folder, lambda step: self.due(step, total))

    def broken(self, newest: Path, why: Damaged) -> RunError:
        """The message and help if the newest checkpoint is broken: an earlier one may be whole."""
        found = self._all()
        earlier = (found[step] for step in sorted(found, reverse=True) if found[step] != newest)
        whole = next((path for path in earlier if SavedRun.is_whole(path)), None)
        help = "no other checkpoint is whole: start anew without --resume"
        if whole is not None:
            moved = f"mv {shlex.quote(str(newest))} {shlex.quote(f'{newest}.broken')}"
            help = f"the newest whole one is {whole}; to go on from it, move the broken one away: {moved}"
        return RunError("SH508", why.message, file=why.file, help=help)

    def latest(self) -> Path | None:
        """The complete checkpoint of the greatest step."""
        found = self._all()
        return found[max(found)] if found else None

    def _all(self) -> dict[int, Path]:
        return {step: path for step, path in folders.steps(self.folder).items() if (path / INDEX).is_file()}

    def write(self, step: int, pieces: Sequence[Piece], facts: Mapping[str, Any]) -> Path:
        """All ranks call it. The folder gets its name once every rank has written its file."""
        whole = self.folder / f"step-{step}"
        draft = folders.draft_of(whole)
        if world.rank == 0:
            folders.begin(draft, step)
        primitives.meet()
        listed = _collected(_write_files(draft, f"rank-{world.rank:05d}", pieces))
        if world.rank == 0:
            index = {"format": FORMAT, "step": step, **facts, "blocks": [b for part in listed for b in part]}
            try:
                folders.write_index(draft, json.dumps(index))
                folders.put(draft, whole)
                self._drop_old(step)
            except OSError as error:
                raise RunError("SH508", f"a checkpoint cannot be written: {error.strerror}", file=draft) from None
        primitives.meet()
        return whole

    def _drop_old(self, step: int) -> None:
        found = self._all()
        older = sorted(n for n, path in found.items() if n <= step and folders.foreign(path) is None)
        for number in older[: -self.keep] if self.keep else []:
            folders.drop(found[number])


def _collected(blocks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Every rank's blocks, by way of JSON."""
    if world.size == 1:
        return [blocks]
    text = json.dumps(blocks).encode()
    sizes = primitives.all_gather(torch.tensor(len(text)), everyone()).tolist()
    padded = torch.frombuffer(bytearray(text.ljust(max(sizes))), dtype=torch.uint8)
    return [json.loads(bytes(part.numpy())) for part in primitives.all_gather(padded, everyone())]


def _write_files(folder: Path, name: str, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """Writes the pieces that this rank writes, and says where they lie."""
    blocks = []
    for number, some in enumerate(_by_file(pieces)):
        path = folder / f"{name}{f'-{number}' if number else ''}.safetensors"
        _write_file(path, some)
        blocks += [
            {"name": p.name, "shape": p.shape, "offsets": p.offsets, "lengths": list(p.local.shape), "file": path.name}
            for p in some
        ]
    return blocks


def _by_file(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """The blocks to write, in files of at most _FILE_BYTES (or one row), names once in each."""
    some: list[Piece] = []
    size = 0
    due = (piece for piece in pieces if piece.writes and piece.local.numel())
    for piece in itertools.chain.from_iterable(_rows(piece) for piece in due):
        if some and size + piece.local.nbytes > _FILE_BYTES:
            yield some
            some, size = [], 0
        some.append(piece)
        size += piece.local.nbytes
    if some:
        yield some


def _rows(piece: Piece) -> Iterator[Piece]:
    """A piece by as many rows as fit a file."""
    if piece.local.nbytes <= _FILE_BYTES or not piece.shape:
        yield piece
        return
    for some in Block(piece.offsets, tuple(piece.local.shape)).by_rows(_FILE_BYTES // piece.local.itemsize):
        first = some.offsets[0] - piece.offsets[0]
        yield replace(piece, offsets=some.offsets, local=piece.local[first : first + some.shape[0]])


def _write_file(path: Path, pieces: Sequence[Piece]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({piece.name: piece.local.detach().cpu().contiguous() for piece in pieces}, path)
    except (OSError, SafetensorError) as error:
        raise RunError("SH508", f"a checkpoint cannot be written: {error}", file=path) from None


class Damaged(RunError):
    """A checkpoint is not what was written."""

    def __init__(self, message: str, file: Path) -> None:
        super().__init__("SH508", message, file=file)


class SavedRun:
    """The run that a checkpoint holds, to go on from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.index = json.loads((folder / INDEX).read_text())
        except (OSError, ValueError) as error:
            raise Damaged(f"the checkpoint cannot be read: {error}", folder / INDEX) from None
        given = self.index.get("format") if isinstance(self.index, dict) else None
        if given != FORMAT:
            raise Damaged(f"the checkpoint has format {given}, and this is for {FORMAT}", folder / INDEX)
        self.blocks: dict[str, list[dict[str, Any]]] = {}
        try:
            self.step = int(self.index["step"])
            for block in self.index["blocks"]:
                _require_block(block)
                self.blocks.setdefault(block["name"], []).append(block)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise Damaged(f"the index is damaged: {error!r}", folder / INDEX) from None
        self._files: dict[str, Any] = {}

    @staticmethod
    def is_whole(folder: Path) -> bool:
        """Whether all that the index names is there, as far as the heads of the files tell."""
        try:
            saved = SavedRun(folder)
            for block in itertools.chain.from_iterable(saved.blocks.values()):
                saved._slice(block)
        except RunError:
            return False
        return True

    def require(self, facts: Mapping[str, Any]) -> None:
        """The facts that must be unchanged for the run to go on: RunError where it is not."""
        for name, value in facts.items():
            if self.index.get(name) != value:
                fact = f"`{name}` is {value}, and the checkpoint was written with {self.index.get(name)}"
                help = "give it as it was, or start anew without --resume"
                raise RunError("SH508", fact, file=self.folder, help=help)

    def read(self, pieces: Sequence[Piece]) -> None:
        """Fills the local tensors of all pieces, whatever layout they were written from."""
        lacking = [piece.name for piece in pieces if piece.name not in self.blocks and piece.local.numel()]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise RunError("SH508", f"the checkpoint lacks `{lacking[0]}`{more}", file=self.folder)
        for piece in pieces:
            if piece.local.numel():
                self._fill(piece)

    def _fill(self, piece: Piece) -> None:
        blocks = self.blocks[piece.name]
        for there in (block["shape"] for block in blocks if tuple(block["shape"]) != piece.shape):
            fact = f"`{piece.name}` is {there} in the checkpoint and {list(piece.shape)} in the program"
            raise RunError("SH508", fact, file=self.folder)
        with torch.no_grad():
            filled = sum(self._copy(piece, block) for block in blocks)
        if filled != piece.local.numel():
            raise Damaged(f"the checkpoint lacks a part of `{piece.name}`", self.folder)

    def _copy(self, piece: Piece, block: Mapping[str, Any]) -> int:
        """Copies what a saved block and a piece share; how many elements that is."""
        there, here = [], []
        for start, length, mine, size in zip(
            block["offsets"], block["lengths"], piece.offsets, piece.local.shape, strict=True
        ):
            first, last = max(start, mine), min(start + length, mine + size)
            if first >= last:
                return 0
            there.append(slice(first - start, last - start))
            here.append(slice(first - mine, last - mine))
        part = self._part(block, tuple(there))
        piece.local[tuple(here)] = part.to(device=piece.local.device, dtype=piece.local.dtype)
        return int(part.numel())

    def parts(self) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
        """All saved blocks: the tensor's name, where in it the block begins, its numbers."""
        for name, blocks in self.blocks.items():
            for block in blocks:
                yield name, tuple(block["offsets"]), self._part(block, tuple(slice(0, n) for n in block["lengths"]))

    def _part(self, block: Mapping[str, Any], where: tuple[slice, ...]) -> Tensor:
        """A part of a saved block."""
        from safetensors import SafetensorError

        saved = self._slice(block)
        try:
            found: Tensor = saved[where] if where else self._files[block["file"]].get_tensor(block["name"])
        except (OSError, ValueError, SafetensorError) as error:
            raise Damaged(f"the checkpoint cannot be read: {error}", self.folder / block["file"]) from None
        return found

    def _slice(self, block: Mapping[str, Any]) -> Any:
        """A block in its file, not read yet."""
        from safetensors import SafetensorError, safe_open

        name, file = block["name"], block["file"]
        try:
            if file not in self._files:
                self._files[file] = safe_open(str(self.folder / file), framework="pt")
            saved = self._files[file].get_slice(name)
            if list(saved.get_shape()) != list(block["lengths"]):
                raise ValueError(f"`{name}` is {saved.get_shape()} there, and {block['lengths']} by the index")
        except (OSError, ValueError, SafetensorError) as error:
            raise Damaged(f"the checkpoint cannot be read: {error}", self.folder / file) from None
        return saved


def _require_block(block: Mapping[str, Any]) -> None:
    """ValueError, TypeError or KeyError if an entry of the index is no block of a file there."""
    numbers = [block[field] for field in ("shape", "offsets", "lengths")]
    if len({len(n) for n in numbers}) > 1 or any(type(n) is not int or n < 0 for part in numbers for n in part):
        raise ValueError(f"shape, offsets and lengths of {block['name']!r}")
    if RANK_FILE.fullmatch(block["file"]) is None:
        raise ValueError(f"{block['file']!r} is no file of a rank")
