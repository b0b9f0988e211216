"""A block of a tensor of a checkpoint -> its numbers, whatever parts it was written in, checked
while they are read.

Numbers are numpy's of the same width; bf16, which numpy lacks, is u16 of the same bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from shardlang.checkpoints.index import Index, Part, Saved
from shardlang.checkpoints.rank_files import RankFile
from shardlang.facts.dtypes import DTYPES

# numpy's type of the bits of an element, by safetensors' name of its type.
STORED = {name.upper(): facts.bits for name, facts in DTYPES.items()}
Slices: TypeAlias = tuple[slice, ...]
# The name of a tensor, and offsets and lengths in it.
Block: TypeAlias = tuple[str, Sequence[int], Sequence[int]]
# The number of a block that was asked for, where in it the numbers are, and they.
Found: TypeAlias = tuple[int, Slices, np.ndarray]
# Files of ranks that are open at one time.
_OPEN = 64


def by_rows(shape: Sequence[int], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and lengths of blocks that are all of a tensor: whole rows, with at most so many
    elements each (or one row)."""
    if not shape:
        yield (), ()
        return
    rows, *others = shape
    step = max(1, most // max(1, math.prod(others)))
    for first in range(0, max(1, rows), step):
        yield (first, *(0 for _ in others)), (min(step, rows - first), *others)


def shared(part: Part, offsets: Sequence[int], lengths: Sequence[int]) -> tuple[Slices, Slices]:
    """The block that a part and a block at `offsets` share: where it is in each of them."""
    there, here = [], []
    for start, length, mine, size in zip(part.offsets, part.lengths, offsets, lengths, strict=True):
        first, last = max(start, mine), min(start + length, mine + size)
        there.append(slice(first - start, last - start))
        here.append(slice(first - mine, last - mine))
    return tuple(there), tuple(here)


def _rows_of(
    file: RankFile, name: str, part: Part, dtype: str, there: Slices, here: Slices
) -> Iterator[tuple[Slices, np.ndarray]]:
    """The numbers that a part shares with a block, some rows at a time, and where in the block they
    are."""
    rows, columns = (*there, slice(0, 1), slice(0, 1))[:2]
    for top, left, found in file.read(name, part, dtype, rows, columns):
        block = found.view(STORED[dtype]).reshape(len(found), -1, *part.lengths[2:])
        first, last = max(top, rows.start), min(top + len(block), rows.stop)
        block = block[(slice(first - top, last - top), slice(columns.start - left, columns.stop - left), *there[2:])]
        at = [slice(each.start + first - rows.start, each.start + last - rows.start) for each in here[:1]]
        yield (*at, *here[1:]), block.reshape(block.shape[: len(there)]) if len(there) < 2 else block


class Parts:
    """The tensors of a checkpoint; files of ranks stay open from one block to the next."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.tensors: Mapping[str, Saved] = {name: layout.type for name, layout in index.tensors.items()}
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

    def files(self, blocks: Iterable[Block]) -> list[Iterator[Found]]:
        """The numbers of some blocks in the file of each rank, read as they are asked for. Damaged
        where a byte that is read is not what was written."""
        by_rank: dict[int, list[tuple[int, Block, Part]]] = {}
        for number, (name, offsets, lengths) in enumerate(blocks):
            for part in self.index.tensors[name].overlapping(offsets, lengths):
                by_rank.setdefault(part.rank, []).append((number, (name, offsets, lengths), part))
        return [self._of_file(rank, by_rank[rank]) for rank in sorted(by_rank)]

    def _of_file(self, rank: int, due: Sequence[tuple[int, Block, Part]]) -> Iterator[Found]:
        for number, (name, offsets, lengths), part in due:
            dtype = self.index.tensors[name].dtype
            for at, found in _rows_of(self._file(rank), name, part, dtype, *shared(part, offsets, lengths)):
                yield number, at, found

    def all(self) -> list[Iterator[Found]]:
        """All of all tensors, numbered as the index has them."""
        return self.files((name, (0,) * len(each.shape), each.shape) for name, each in self.index.tensors.items())

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        """A block of a tensor. Damaged where a byte that is read is not what was written."""
        into = np.empty(tuple(lengths), STORED[self.index.tensors[name].dtype])
        for _, at, found in itertools.chain.from_iterable(self.files([(name, offsets, lengths)])):
            into[at] = found
        return into
