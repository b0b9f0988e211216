"""A block of a tensor of a checkpoint -> its numbers, whatever parts it was written in, checked
while they are read.

Numbers are numpy's of the same width; bf16, which numpy lacks, is u16 of the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shardlang.checkpoints.index import Damaged, Index, Part
from shardlang.checkpoints.rank_files import RankFile
from shardlang.facts.dtypes import DTYPES

# numpy's type of the bits of an element, by safetensors' name of its type.
STORED = {name.upper(): facts.bits for name, facts in DTYPES.items()}
# Files of ranks that are open at one time.
_OPEN = 64


def rows_of(
    file: RankFile, name: str, part: Part, dtype: str, where: Sequence[range]
) -> Iterator[tuple[np.ndarray, range]]:
    """Some rows at a time of a part of a block, and which of the rows asked for they are."""
    rows, columns = [*where, range(1), range(1)][:2]
    for top, left, found in file.read(name, part, dtype, rows, columns):
        block = found.view(STORED[dtype]).reshape(len(found), -1, *part.lengths[2:])
        first, last = max(top, rows.start), min(top + len(block), rows.stop)
        block = block[first - top : last - top, columns.start - left : columns.stop - left]
        block = block[(slice(None), slice(None), *(slice(each.start, each.stop) for each in where[2:]))]
        flat = block.reshape(block.shape[: len(where)]) if len(where) < 2 else block
        yield flat, range(first - rows.start, last - rows.start)


def shared(part: Part, offsets: Sequence[int], lengths: Sequence[int]) -> tuple[list[range], tuple[slice, ...]]:
    """The block that a part and a block at `offsets` share: where it is in each of them."""
    there, here = [], []
    for start, length, mine, size in zip(part.offsets, part.lengths, offsets, lengths, strict=True):
        first, last = max(start, mine), min(start + length, mine + size)
        there.append(range(first - start, last - start))
        here.append(slice(first - mine, last - mine))
    return there, tuple(here)


class Parts:
    """The tensors of a checkpoint; files of ranks stay open from one block to the next."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._files: dict[int, RankFile] = {}

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].file.close()

    def _file(self, rank: int) -> RankFile:
        found = self._files.pop(rank, None)
        if found is None:
            if len(self._files) >= _OPEN:
                self._files.pop(next(iter(self._files))).file.close()
            found = RankFile(self.index.folder, rank, self.index.files[rank])
        self._files[rank] = found
        return found

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        """A block of a tensor. Damaged where a byte that is read is not what was written."""
        layout = self.index.tensors[name]
        into = np.empty(tuple(lengths), STORED[layout.dtype])
        filled = 0
        for part in layout.overlapping(offsets, lengths):
            there, here = shared(part, offsets, lengths)
            mine: np.ndarray = into[(*here, ...)]  # type: ignore[arg-type]
            for found, rows in rows_of(self._file(part.rank), name, part, layout.dtype, there):
                (mine[rows.start : rows.stop] if here else mine)[...] = found
                filled += found.size
        if filled != into.size:
            raise Damaged(f"the index is damaged: parts of `{name}` are not all of it", self.index.folder)
        return into
