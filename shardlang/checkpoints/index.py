"""The index of a checkpoint: a small text that says which rank wrote which part of each tensor.

Tensors that are cut in the same way share a `SavedLayout`: lengths along each dim, and a rank for
each part. So the index grows with the ways to cut, not with the parts, and its parts can neither
overlap nor leave anything out. Where a part lies in its rank's file, the file's own header says
(rank_files.py); the index has that header's checksum."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from shardlang.errors import RunError
from shardlang.facts.dtypes import DTYPES
from shardlang.frozen.records import dataclass

INDEX, FORMAT = "index.json", 2
# The help where tensors of a checkpoint are not those of the program.
OF_ANOTHER = "it is of another model: give the dims the sizes that it was written with, or name another checkpoint"
# The name of a checkpoint's folder.
STEP = re.compile(r"step-(0|[1-9]\d*)", re.ASCII)
# Bytes of an element, by safetensors' name of its type.
ITEM_BYTES = {name.upper(): facts.bytes for name, facts in DTYPES.items()}
# Bytes of an index, at most: ten times those of 16,384 ranks.
_MOST_BYTES = 2**25
# Steps of a run, at most: so far every float64 counts them.
_MOST_STEPS = 2**53
_SUM = b', "crc32": '


class Damaged(RunError):
    """A checkpoint is not what was written."""

    def __init__(self, message: str, file: Path) -> None:
        super().__init__("SH508", message, file=file)


@dataclass(frozen=True)
class Saved:
    """The element type (by safetensors' name) and the shape of a saved tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype.lower()}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Part:
    """A part of a whole tensor: `lengths` of it at `offsets`, in the file of a rank."""

    rank: int
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


class SavedLayout:
    """How tensors of a shape are cut: lengths along each dim, and the rank of each part, in
    row-major order."""

    def __init__(
        self, dtype: str, shape: Sequence[int], lengths: Sequence[Sequence[int]], ranks: Sequence[int]
    ) -> None:
        self.dtype, self.shape, self.lengths, self.ranks = dtype, tuple(shape), lengths, ranks

    def written(self) -> list[Any]:
        return [self.dtype, self.shape, self.lengths, self.ranks]

    @cached_property
    def _starts(self) -> list[list[int]]:
        return [list(itertools.accumulate(each, initial=0)) for each in self.lengths]

    def parts(self) -> Iterator[Part]:
        """All that hold an element."""
        return self.overlapping((0,) * len(self.shape), self.shape)

    def overlapping(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[Part]:
        """The parts that hold an element of a block of the whole."""
        near = [
            range(bisect_right(starts, first) - 1, bisect_left(starts, first + length))
            for starts, first, length in zip(self._starts, offsets, lengths, strict=True)
        ]
        for at in itertools.product(*near):
            found = tuple(each[i] for each, i in zip(self.lengths, at, strict=True))
            if 0 in found:
                continue
            number = 0
            for each, i in zip(self.lengths, at, strict=True):
                number = number * len(each) + i
            begins = tuple(starts[i] for starts, i in zip(self._starts, at, strict=True))
            yield Part(self.ranks[number], begins, found)

    def part_of(self, rank: int) -> Part | None:
        """The part that a rank wrote, if any."""
        return self._of_ranks.get(rank)

    @cached_property
    def _of_ranks(self) -> dict[int, Part]:
        return {part.rank: part for part in self.parts()}

    @property
    def type(self) -> Saved:
        return Saved(self.dtype, self.shape)

    def require(self, ranks: int) -> None:
        """ValueError where the parts are not those of a tensor, written by some of so many
        ranks."""
        if self.dtype not in ITEM_BYTES or not _whole(self.shape) or len(self.lengths) != len(self.shape):
            raise ValueError(f"the layout of {self.dtype!r} {list(self.shape)}")
        for size, each in zip(self.shape, self.lengths, strict=True):
            if not _whole(each) or sum(each) != size:
                raise ValueError(f"parts of a dim of {size} are not {size} in all")
        if not _whole(self.ranks) or len(self.ranks) != math.prod(map(len, self.lengths)):
            raise ValueError(f"{len(self.ranks)} ranks for another number of parts")
        # Of parts that hold an element.
        wrote = [rank for rank, each in zip(self.ranks, itertools.product(*self.lengths), strict=True) if 0 not in each]
        if wrote and max(wrote) >= ranks:
            raise ValueError(f"rank {max(wrote)} of {ranks}")
        if len(set(wrote)) != len(wrote):
            twice = next(one for one, other in itertools.pairwise(sorted(wrote)) if one == other)
            raise ValueError(f"rank {twice} has two parts of one tensor")


def layout_of(dtype: str, shape: Sequence[int], parts: Sequence[Part]) -> SavedLayout | None:
    """The layout of a tensor that has been cut so, where its parts that hold an element are a grid,
    in any order, that is all of it; else None."""
    if 0 in shape:
        return SavedLayout(dtype, shape, [[n] for n in shape], [part.rank for part in parts[:1]])
    due = sorted((part for part in parts if 0 not in part.lengths), key=lambda part: part.offsets)
    starts = [sorted({part.offsets[dim] for part in due}) for dim in range(len(shape))]
    lengths = [
        [last - first for first, last in itertools.pairwise([*each, size])]
        for each, size in zip(starts, shape, strict=True)
    ]
    if math.prod(map(len, starts)) != len(due):
        return None
    found = SavedLayout(dtype, shape, lengths, [part.rank for part in due])
    return found if list(found.parts()) == due else None


def _whole(numbers: Sequence[Any]) -> bool:
    return isinstance(numbers, list | tuple) and all(type(n) is int and 0 <= n < 2**60 for n in numbers)


class FileFacts(NamedTuple):
    """The facts in an index about the file of a rank: bytes of all of it, bytes of its header, and
    the header's checksum."""

    size: int
    header: int
    crc32: int


class Index:
    """An index that has been read. facts: what it says besides of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path, text = folder / INDEX, index_text(folder)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"the checkpoint cannot be read: {error}", path) from None
        given = found.get("format") if isinstance(found, dict) else None
        if given != FORMAT:
            why = "shardlang did not write it"
            if type(given) is int:
                why = f"{'a newer' if given > FORMAT else 'an older'} shardlang wrote it, which can go on from it"
            raise Damaged(f"the checkpoint has format {given}, and this is for {FORMAT}: {why}", path)
        if not is_as_summed(text):
            raise Damaged("the index is damaged: its checksum is another", path)
        try:
            self._take(found)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise Damaged(f"the index is damaged: {error!r}", path) from None
        if (name := STEP.fullmatch(folder.name)) and int(name[1]) != self.step:
            raise Damaged(f"this is the index of step {self.step}, and the folder is `{folder.name}`", path)

    def _take(self, found: Mapping[str, Any]) -> None:
        self.step = found["step"]
        if type(self.step) is not int or not 0 <= self.step < _MOST_STEPS:
            raise ValueError(f"step {self.step!r}")
        self.files = [FileFacts(*each) if each is not None else None for each in found["files"]]
        if not all(_whole([f.size, f.header, f.crc32]) for f in self.files if f is not None):
            raise ValueError("the sizes of files")
        layouts = [SavedLayout(*each) for each in found["layouts"]]
        for layout in layouts:
            layout.require(len(self.files))
        self.tensors = {str(name): layouts[number] for name, number in found["tensors"].items()}
        self.facts = {name: value for name, value in found.items() if name not in ("files", "layouts", "tensors")}


def is_as_summed(text: bytes) -> bool | None:
    """Whether an index is what its own checksum is of; None where it has none."""
    body, mark, crc = text.rpartition(_SUM)
    return crc.rstrip(b"}\n") == str(zlib.crc32(body + b"}")).encode() if mark else None


def text_of(facts: Mapping[str, Any]) -> str:
    """The text of an index, with its own checksum."""
    text = json.dumps(facts)
    return f"{text[:-1]}{_SUM.decode()}{zlib.crc32(text.encode())}}}"


def index_of(step: int, facts: Mapping[str, Any], files: Sequence[Any], tensors: Mapping[str, SavedLayout]) -> str:
    """The text of an index, of the facts of files and of how tensors are cut."""
    layouts = {id(layout): layout for layout in tensors.values()}
    numbers = {key: number for number, key in enumerate(layouts)}
    return text_of({
        "format": FORMAT, "step": step, **facts, "files": files,
        "layouts": [layout.written() for layout in layouts.values()],
        "tensors": {name: numbers[id(layout)] for name, layout in tensors.items()},
    })  # fmt: skip


def index_text(folder: Path) -> bytes:
    """The index of a checkpoint as it is there; Damaged where that is none, or too large."""
    with opened(folder / INDEX) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MOST_BYTES:
            raise Damaged(f"the file has {size} bytes, where at most {_MOST_BYTES} are due", folder / INDEX)
        found: bytes = file.read(_MOST_BYTES)
        return found


def opened(path: Path) -> Any:
    """A regular file, opened for reading as bytes; Damaged where it is missing, a link, or another
    kind."""
    try:
        # Without waiting for the other end of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise Damaged(f"the checkpoint cannot be read: {why}", path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged("the checkpoint cannot be read: this is no regular file", path)
    return os.fdopen(descriptor, "rb", buffering=0)
