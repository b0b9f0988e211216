"""The file of a rank: a safetensors file with its blocks, whose header also says where in the whole
tensors they lie and what their checksums are.

A block has a checksum (crc32) for each cell of some rows and columns, so that a part of it, under
whatever layout, is checked while it is read, and little else is read with it. The header is as long
before the checksums are known as after, so a file is written in one pass. torch's own readers find
the offsets in it too (`DCP_SHARDING_INFO`)."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardlang.checkpoints import headers
from shardlang.checkpoints.index import ITEM_BYTES, Damaged, FileFacts, Part, Saved, opened
from shardlang.frozen.records import dataclass

# Bytes of a cell, about; columns of a block are in at most so many cells, of at least so many bytes
# (or one column), unless a row is longer than cells of the first size.
_CELL, _COLUMN_CELLS, _LEAST = 2**18, 16, 256
# Bytes of a header at most, as for every safetensors file.
_MOST_HEADER = 10**8


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


@dataclass(frozen=True)
class Cells:
    """The cells of a block: a view of it [rows, columns] of columns of `column` bytes, cut each
    `high` rows and `wide` columns."""

    rows: int
    columns: int
    column: int
    high: int
    wide: int

    @property
    def count(self) -> int:
        return -(-self.rows // self.high) * self.across

    @property
    def across(self) -> int:
        return -(-self.columns // self.wide)


def cells_of(lengths: Sequence[int], item: int) -> Cells:
    """The cells of a block (not empty) of elements of `item` bytes."""
    rows, columns, *_ = *lengths, 1, 1
    column = math.prod(lengths[2:]) * item
    width = columns * column
    parts = min(columns, max(1, min(_COLUMN_CELLS, width // _LEAST), -(-width // _CELL)))
    wide = -(-columns // parts)
    return Cells(rows, columns, column, max(1, _CELL // (wide * column)), wide)


@dataclass(frozen=True)
class Block:
    """A block of a tensor in the file of a rank."""

    name: str
    dtype: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def cells(self) -> Cells:
        return cells_of(self.lengths, ITEM_BYTES[self.dtype])

    @property
    def type(self) -> Saved:
        return Saved(self.dtype, self.lengths)


def _header(blocks: Sequence[Block], sums: Sequence[str]) -> bytes:
    """The beginning of a file, up to its numbers: its length does not depend on the checksums."""
    offsets = {block.name: {"saved_offsets": block.offsets} for block in blocks}
    crcs = {block.name: each for block, each in zip(blocks, sums, strict=True)}
    own = {"format": "pt", "written_by": "shardlang", "DCP_SHARDING_INFO": json.dumps(offsets)}
    mark = json.dumps({"__metadata__": {**own, "crc32": json.dumps(crcs)}}, separators=(",", ":"))[:-1]
    return headers.written({block.name: block.type for block in blocks}, mark)


def write(folder: Path, rank: int, blocks: Iterable[Block], numbers: Callable[[Block], np.ndarray]) -> FileFacts:
    """Writes the file of a rank and waits until it is on the disk. numbers: gives the bytes of a
    block, uint8. OSError."""
    # The widest elements first, which keeps all aligned.
    blocks = sorted(blocks, key=lambda block: (-ITEM_BYTES[block.dtype], block.name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(folder / file_name(rank), flags, 0o644), "wb", buffering=0) as file:
        placeholder = _header(blocks, ["0" * 8 * block.cells.count for block in blocks])
        _write_all(file, placeholder)
        sums = []
        for block in blocks:
            cells = block.cells
            whole = numbers(block).reshape(cells.rows, cells.columns * cells.column)
            crcs = []
            for first in range(0, cells.rows, cells.high):
                some = whole[first : first + cells.high]
                crcs += _crcs(some, cells)
                _write_all(file, some)
            sums.append("".join(f"{crc:08x}" for crc in crcs))
        header = _header(blocks, sums)
        size = file.tell()
        file.seek(0)
        _write_all(file, header)
        os.fsync(file.fileno())
    return FileFacts(size, len(header), zlib.crc32(header))


def _write_all(file: Any, some: Any) -> None:
    left = memoryview(some).cast("B")
    while left:
        left = left[file.write(left) :]


def _crcs(rows: np.ndarray, cells: Cells) -> list[int]:
    """The checksums of the cells of some rows [rows, bytes], from a cell's first column on."""
    step = cells.wide * cells.column
    return [
        zlib.crc32(np.ascontiguousarray(rows[:, first : first + step]).data) for first in range(0, rows.shape[1], step)
    ]


class RankFile:
    """The file of a rank of a checkpoint, whose header is as the index says."""

    def __init__(self, folder: Path, rank: int, facts: FileFacts | None) -> None:
        self.path = folder / file_name(rank)
        if facts is None:
            raise Damaged(f"the index is damaged: it says nothing of `{self.path.name}`", folder)
        self.file = opened(self.path)
        try:
            self._read_header(facts)
        except BaseException:
            self.file.close()
            raise

    def _read_header(self, facts: FileFacts) -> None:
        size = os.fstat(self.file.fileno()).st_size
        if size != facts.size:
            raise self._broken(f"it has {size} bytes, and {facts.size} were written")
        begin = self._bytes(0, min(8, size))
        length = int.from_bytes(begin, "little") + 8
        if length != facts.header or length > min(size, _MOST_HEADER):
            raise self._broken(f"its header has {length} bytes, and {facts.header} were written")
        text = self._bytes(0, length)
        if zlib.crc32(text) != facts.crc32:
            raise self._broken("the checksum of its header is another than when it was written")
        self.begin = length
        try:
            self.header = json.loads(text[8:])
            own = self.header.pop("__metadata__")
            self.sums, self.offsets = json.loads(own["crc32"]), json.loads(own["DCP_SHARDING_INFO"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._broken(f"its header is damaged: {error!r}") from None

    def _broken(self, why: str) -> Damaged:
        return Damaged(f"the checkpoint cannot be read: {why}", self.path)

    def _bytes(self, first: int, count: int) -> bytes:
        found = np.empty((1, count), np.uint8)
        self._fill(found, first, 0)
        return found.tobytes()

    def _fill(self, into: np.ndarray, first: int, stride: int) -> None:
        """Reads rows of bytes from `first` on, one each `stride` bytes."""
        try:
            if into.shape[1] == stride:
                into = into.reshape(1, -1)
            for number, row in enumerate(into):
                at, left = first + number * stride, memoryview(row)
                while left:
                    count = os.preadv(self.file.fileno(), [left], at)
                    if not count:
                        raise self._broken("it ends too early")
                    at, left = at + count, left[count:]
        except OSError as error:
            raise self._broken(str(error.strerror)) from None

    def block(self, name: str, part: Part, dtype: str) -> tuple[Block, int, list[int]]:
        """A block, where it begins in the file, and the checksums of its cells; Damaged where the
        file has another."""
        block = Block(name, dtype, part.offsets, part.lengths)
        try:
            found, sums = self.header[name], bytes.fromhex(self.sums[name])
            first, last = found["data_offsets"]
            offsets = self.offsets[name]["saved_offsets"]
            fits = found["dtype"] == dtype and tuple(found["shape"]) == part.lengths and tuple(offsets) == part.offsets
            inside = 0 <= first <= last <= os.fstat(self.file.fileno()).st_size - self.begin
            fits = fits and inside and type(first) is type(last) is int
            fits = fits and last - first == block.type.nbytes and len(sums) == 4 * block.cells.count
        except (KeyError, TypeError, ValueError) as error:
            raise self._broken(f"its header is damaged: {error!r}") from None
        if not fits:
            raise self._broken(f"`{name}` in it is not the block that the index says")
        return block, self.begin + first, [int(n) for n in np.frombuffer(sums, ">u4")]

    def read(
        self, name: str, part: Part, dtype: str, rows: slice, columns: slice
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """Rows and columns of a block, checked, some rows at a time: the first of the rows, the
        first of the columns, and bytes [rows, bytes], which may be a few more than are asked
        for."""
        block, begin, sums = self.block(name, part, dtype)
        cells = block.cells
        left, right = columns.start // cells.wide, -(-columns.stop // cells.wide)
        start = left * cells.wide
        width, pitch = (min(right * cells.wide, cells.columns) - start) * cells.column, cells.columns * cells.column
        for number in range(rows.start // cells.high, -(-rows.stop // cells.high)):
            first = number * cells.high
            found = np.empty((min(cells.high, cells.rows - first), width), np.uint8)
            self._fill(found, begin + first * pitch + start * cells.column, pitch)
            if _crcs(found, cells) != sums[number * cells.across + left : number * cells.across + right]:
                raise self._broken(f"`{name}` in it is damaged: a checksum is another than when it was written")
            yield first, start, found
