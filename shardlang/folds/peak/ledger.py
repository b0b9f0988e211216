"""Bytes that come and go, by what they are -> the most that was there at one time, and what it was.

The memory of a pass itself is worked out once for all stages that are alike and all microbatches.
It is a row of pieces, cut at each event that something else counts on, such as that a parameter is
read. That is followed beside it.

All that comes and goes is noted one by one too, as pairs of what it is and its bytes, below 0 where
it goes; `MEANWHILE` is there for a moment only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from shardlang.frozen.records import dataclass

# A parameter is read; its gradient is whole; a window, or what is in none, is over.
USED, WHOLE, OVER = "used", "whole", "over"
MEANWHILE = ""
Ops = Sequence[tuple[str, int]]
NONE = -(1 << 62)  # less than what any moment has, which is below 0 where a pass lets go of more


class Event(NamedTuple):
    """step: its number in the stage; of OVER the next window's. operand: of the parameter. size:
    bytes of a gradient."""

    kind: str
    step: int
    operand: int = -1
    size: int = 0


class When(NamedTuple):
    """The work of a rank: forward, again (forward within backward), backward, reduce or update.

    step: its number in the stage, -1: none; turn: of a run, in which of its layers."""

    doing: str
    step: int = -1
    turn: int = 0


class PassPeak(NamedTuple):
    """Up to an event: the most of the pass's own memory, its parts, when; what is there then; and
    what has come and gone."""

    most: int
    best: Mapping[str, int]
    when: When
    total: int
    parts: Mapping[str, int]
    event: Event
    ops: Ops = ()


@dataclass
class Ledger:
    """parts: bytes that are there, by what they are. most: at one time since the last event."""

    parts: Counter[str] = field(default_factory=Counter)
    total: int = 0
    most: int = NONE
    best: Mapping[str, int] = field(default_factory=dict)
    when: When = When("")
    pieces: list[PassPeak] = field(default_factory=list)
    ops: list[tuple[str, int]] = field(default_factory=list)

    def add(self, part: str, size: int) -> None:
        """Something comes, or goes (below 0)."""
        self.parts[part] += size
        self.total += size
        if size:
            self.ops.append((part, size))

    def meanwhile(self, size: int) -> None:
        """So much more was there for a moment, as `look` has been told."""
        if size > 0:
            self.ops.append((MEANWHILE, size))

    def look(self, doing: str, step: int, meanwhile: int = 0, part: str = "temporaries") -> None:
        """A moment, at which so much more is there."""
        if self.total + meanwhile > self.most:
            self.most, self.when = self.total + meanwhile, When(doing, step)
            best = self.best = dict(self.parts)
            best[part] = best.get(part, 0) + meanwhile

    def note(self, event: Event) -> None:
        """Ends a piece."""
        self.pieces.append(PassPeak(self.most, self.best, self.when, self.total, dict(self.parts), event, self.ops))
        self.most, self.best, self.ops = NONE, {}, []


class Rise(NamedTuple):
    """The most bytes at one time, beside those before; their parts; when. left: what stays."""

    most: int
    parts: Mapping[str, int]
    at: When
    left: Mapping[str, int]


class Beside:
    """The memory beside a pass's own, and the most of both. own: bytes of the pass. ops: takes up
    all that comes and goes, of both."""

    def __init__(self, ops: list[tuple[str, int]] | None = None) -> None:
        self.ops = ops
        self.parts, self.total = Counter[str](), 0
        self.own, self.turn = 0, 0
        self.own_parts: Sequence[Mapping[str, int]] = ()
        self.most, self.when, self.best = NONE, When(""), tuple[Mapping[str, int], ...]()

    def add(self, part: str, size: int) -> None:
        """Something comes, or goes (below 0)."""
        self.parts[part] += size
        self.total += size
        if self.ops is not None:
            self.ops.append((part, size))

    def look(self, doing: str, step: int = -1, meanwhile: int = 0, part: str = "temporaries") -> None:
        """A moment, at which so much more is there."""
        most = self.own + self.total + meanwhile
        if most > self.most:
            self._note(most, When(doing, step, self.turn), *self.own_parts, {part: meanwhile})
        if self.ops is not None and meanwhile:
            self.ops.append((MEANWHILE, meanwhile))

    def follow(self, piece: PassPeak, more: int, parts: Mapping[str, int]) -> None:
        """A piece of the pass, with so much more there."""
        if self.ops is not None:
            self.ops += piece.ops
        self.own, self.own_parts = piece.total + more, (piece.parts, parts)
        most = piece.most + more + self.total
        if most > self.most:
            self._note(most, When(piece.when.doing, piece.when.step, self.turn), piece.best, parts)

    def over(self) -> Rise:
        """All of it."""
        return Rise(self.most, added(*self.best), self.when, added(self.parts, *self.own_parts))

    def _note(self, most: int, when: When, *parts: Mapping[str, int]) -> None:
        self.most, self.when, self.best = most, when, tuple([dict(each) for each in (self.parts, *parts)])


def added(*parts: Mapping[str, int]) -> Counter[str]:
    """All of several rows of parts."""
    found = Counter[str]()
    for each in parts:
        found.update(each)
    return found
