"""Data sources that are streams: an object with `examples(epoch, start)` -> examples by their
number in an epoch.

A rank reads forward from where its last batch ended, and opens the stream anew where it is asked
for an earlier example or another epoch. An object that offers `part`, `parts` and `size` is asked
for this rank's part alone."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from shardlang.errors import RunError
from shardlang.extensions.loaded import calling
from shardlang.runtime.data.own import ByNumber, OwnDataset, opened
from shardlang.runtime.program import BatchSource

# The length of a stream without `__len__`: an epoch that no run comes to the end of.
ENDLESS = 1 << 62


@dataclass(frozen=True)
class StreamPart:
    """Example n of an epoch is of part `n // size % parts`."""

    part: int
    parts: int
    size: int

    def numbers(self, start: int) -> Iterator[int]:
        return (n for n in count(start) if n // self.size % self.parts == self.part)


def part_of(batch: int, blocks: Sequence[Collection[tuple[int, int]]]) -> StreamPart | None:
    """The part of a stream that a rank takes, from the first example and the count of what it takes
    of a batch, in each microbatch; None where that is no equal part."""
    found = [block for each in blocks for block in each]
    if not found or any(len(each) != 1 for each in blocks) or len({size for _, size in found}) != 1:
        return None
    size = found[0][1]
    if not size or batch % (size * len(found)):
        return None
    parts = batch // (size * len(found))
    part = found[0][0] // size
    due = [(number * parts + part) * size for number in range(len(found))]
    return StreamPart(part, parts, size) if parts > 1 and [start for start, _ in found] == due else None


class ExampleStream(OwnDataset):
    """An object with `examples(epoch, start)`. part: what this rank takes, where it may ask."""

    shuffled = False

    def __init__(self, source: BatchSource, made: Any, file: Path) -> None:
        super().__init__(source, made, file)
        self.counted = hasattr(type(made), "__len__")
        self.length = ENDLESS
        if self.counted:
            with calling("SH502", f"`len({self.name}(..))`", file):
                self.length = len(made)
        known = inspect.signature(made.examples).parameters
        self.offers = {"part", "parts", "size"} <= known.keys()
        self.part: StreamPart | None = None
        many = f"{self.length:,} examples an epoch" if self.counted else "examples without an end"
        self.notes = [f"{source.kind}: {many} by `{self.name}` of {file.name}"]
        self._of: tuple[int, StreamPart | None] = 0, None
        self._coming: Iterator[tuple[int, Any]] = iter(())
        self._next = self._start = 0

    def fetch(self, epoch: int, numbers: np.ndarray) -> Mapping[str, np.ndarray]:
        wanted = [int(n) for n in numbers]
        if self._of != (epoch, self.part) or wanted[0] < self._next:
            self._open(epoch, wanted[0] // self.source.batch * self.source.batch)
        rows = []
        for number in wanted:
            at, row = self._read(epoch)
            while at < number:
                at, row = self._read(epoch)
            rows.append(row)
        return self.arrays(wanted, rows)

    def _open(self, epoch: int, start: int) -> None:
        part = self.part
        further = {} if part is None else {"part": part.part, "parts": part.parts, "size": part.size}
        with calling("SH502", self._called(epoch, start), self.file):
            coming = iter(self.made.examples(epoch, start, **further))
        numbers = count(start) if part is None else part.numbers(start)
        # The object's own stream comes first: a number is taken for each example that is there.
        self._coming = ((n, row) for row, n in zip(coming, numbers, strict=False))
        self._of, self._next, self._start = (epoch, part), start, start

    def _read(self, epoch: int) -> tuple[int, Any]:
        with calling("SH502", self._called(epoch, self._start), self.file):
            found = next(self._coming, None)
        if found is not None:
            self._next = found[0] + 1
            return found
        fact = f"{self._called(epoch, self._start)} ends before example {self._next}"
        if self.counted:
            raise self.wrong(f"{fact}, and an epoch has {self.length}, as `__len__` says")
        raise self.wrong(fact, "give the object `__len__`, the examples of an epoch")

    def _called(self, epoch: int, start: int) -> str:
        part = "" if self.part is None else f", part={self.part.part}, parts={self.part.parts}, size={self.part.size}"
        return f"`{self.name}.examples({epoch}, {start}{part})`"


def read(source: BatchSource, base: Path) -> OwnDataset:
    """A declared source, opened. RunError where its object is none of the two kinds."""
    made, file = opened(source, base)
    source.files = ()
    name = source.arguments["call"].name
    if hasattr(made, "examples"):
        given = [word for word in ("shuffle", "seed") if word in source.arguments]
        if given:
            fact = f"`{name}` is a stream, whose order is its own, and `{given[0]}` is given"
            raise RunError("SH502", fact, file=file, help=f"leave `{given[0]}` out")
        return ExampleStream(source, made, file)
    due = ("__len__", "__getitem__")
    lacks = next((word for word in due if not hasattr(type(made), word)), None)
    if lacks is not None and not (lacks == "__getitem__" and hasattr(type(made), "__getitems__")):
        fact = f"`{name}` gives {type(made).__name__}, which has no `{lacks}` and no `examples`"
        help = "examples by number want `__len__` and `__getitem__`, a stream `examples(epoch, start)`"
        raise RunError("SH502", fact, file=file, help=help)
    return ByNumber(source, made, file)
