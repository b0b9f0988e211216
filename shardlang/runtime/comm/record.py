"""The collectives of this rank -> its last 64 on record, and where it is in the run, in a file that
others read: `rank-N.collectives`.

The file is mapped memory, so what was written is there however the rank ends. Every collective
begins as a `LoggedWork`, here and nowhere else. launch/reports.py says what is in such files."""

from __future__ import annotations

import mmap
import os
import socket
import statistics
import struct
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import CodeType, FrameType
from typing import Any, Protocol

from torch import Tensor
from torch._guards import TracingContext

from shardlang.disk.overwrite_guard import RECORD_MARK
from shardlang.runtime.citations import cited
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import TIMEOUT
from shardlang.runtime.untraced import as_it_is

KEPT, TEXTS = 64, 512
# What the head of the file has in which of its words of 8 bytes: whole numbers, then seconds. A
# rank that is slow by nature (it compiles, reads data, writes a checkpoint) has an allowance.
PID, RANK, SIZE, TOKEN, STEP, PHASE, TOLD = range(1, 8)
PROGRESS, ALLOWANCE, USUAL = range(8, 11)
# Whether the rank's host runs ahead of its device: what it waits for may be work of its own.
AHEAD = 11
_HOST_BYTES, HEAD = 160, 256
HOST = slice(HEAD - _HOST_BYTES, HEAD)
# Then the last collectives, in words: the number, when it began, was waited for and ended (0.0: not
# yet), bytes, number within its group, step, microbatch, stage and kind of the action, text, and
# the number again: until that is there, the row is not whole. A rank has got as far as the latest
# of these times says, or `PROGRESS`.
CALL = struct.Struct("=QdddQQQQi4sQQ")
_WAITED, _ENDED, _TEXT = 2, 3, 9
# The same, with stage and kind as one word.
_write = struct.Struct("QdddQQQQQQQ").pack_into
_FIRST, _WORDS = HEAD // 8, CALL.size // 8
# Then their texts, which many collectives share.
TEXT_BYTES = 192
TEXT = HEAD + KEPT * CALL.size
BYTES = TEXT + TEXTS * TEXT_BYTES
PHASES = ("starting", "training", "evaluating", "saving", "ending", "ended", "watching")
_TRAINING = PHASES.index("training")
_STAGE_AND_KIND, _ACTIONS = struct.Struct("=i4s"), struct.Struct("=Q")


class CollectiveMembers(Protocol):
    """The ranks that a collective is over."""

    @property
    def axes(self) -> tuple[str, ...]: ...

    @property
    def ranks(self) -> tuple[int, ...]: ...


class FlightRecorder:
    """The file of this rank, or memory of its own until there is one. site: what the collectives
    that begin now are for, in the place of a line of the program."""

    def __init__(self) -> None:
        self.forget()

    def _anew(self, memory: bytearray | mmap.mmap, folder: str) -> None:
        self.memory, self.folder, self.site = memory, folder, b""
        self.words, self.seconds = memoryview(memory).cast("Q"), memoryview(memory).cast("d")
        self.number = self.step = 0
        self.at_action("", -1)
        self._lines: dict[str, list[str] | None] = {}
        # By the identity of a code, which is held so that no other has it: the lines that its
        # instructions are for; None: it is not of an emitted file.
        self.sites: dict[int, dict[int, bytes] | None] = {}
        self._held: list[CodeType] = []
        # Where in the file the text of a collective is, and how many its group has had.
        self.texts: dict[tuple[str, CollectiveMembers, bytes], tuple[int, list[int]]] = {}
        self._written: list[tuple[str, CollectiveMembers, bytes] | None] = [None] * TEXTS
        self._next = 0
        self._counts: dict[bytes, list[int]] = {}
        self._steps, self._taken = deque[float](maxlen=33), 0
        # What was waited for on a device, where the host does not see its end.
        self.flying: deque[LoggedWork] = deque(maxlen=KEPT)

    def open(self, path: Path, folder: Path, rank: int, size: int, token: int = 0) -> None:
        """Goes on in a new file. folder: of the emitted files. token: of this start of the run, by
        which the files of its ranks are told from those that an earlier one has left. OSError where
        it cannot be made."""
        path.unlink(missing_ok=True)
        with path.open("x+b") as file:
            file.write(bytes(BYTES))  # a full disk is said here, and is no SIGBUS later
            file.flush()
            memory = mmap.mmap(file.fileno(), BYTES)
        self._anew(memory, str(folder))
        memory[HOST] = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
        self.words[PID], self.words[RANK], self.words[SIZE], self.words[TOKEN] = os.getpid(), rank, size, token
        self.phase("starting", slow=True)
        memory[: len(RECORD_MARK)] = RECORD_MARK

    def forget(self, folder: str = "") -> None:
        """Goes on in memory of its own. folder: of the emitted files."""
        self._anew(bytearray(BYTES), folder)

    def ahead(self, device: bool) -> None:
        """Whether what this rank computes and sends runs on a device, behind the host."""
        self.words[AHEAD] = device

    def phase(self, name: str, slow: bool = False) -> None:
        """The rank begins with something else. slow: nothing of it may be seen for as long as a
        collective may take; else for a time that goes by that of a step."""
        self.words[PHASE], self.seconds[ALLOWANCE] = PHASES.index(name), TIMEOUT.total_seconds() if slow else 0.0
        self.moved()

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """The rank does something else, which is slow, and then what it did before."""
        before, allowance = self.words[PHASE], self.seconds[ALLOWANCE]
        self.phase(name, slow=True)
        yield
        self.words[PHASE], self.seconds[ALLOWANCE] = before, allowance
        self.moved()

    def took(self, seconds: float) -> None:
        """A step that was like others took so long."""
        self._steps.append(seconds)
        self._taken += 1
        if self._taken % 8 == 1:
            self.seconds[USUAL] = statistics.median(self._steps)
        if self.words[PHASE] != _TRAINING:
            self.phase("training")

    def moved(self) -> None:
        """The rank has got further."""
        self.seconds[PROGRESS] = monotonic()

    def at_step(self, step: int) -> None:
        self.step = self.words[STEP] = step
        self.seconds[PROGRESS] = monotonic()

    def at_action(self, kind: str, stage: int) -> None:
        """The action of a pipeline that begins; "" after the last."""
        self.action = _ACTIONS.unpack(_STAGE_AND_KIND.pack(stage, kind.encode()))[0]
        self.moved()

    def text(self, what: str, group: CollectiveMembers, site: bytes) -> tuple[int, list[int]]:
        """Writes the text of a collective that has none; as an entry of `texts`."""
        kept = {self.words[_FIRST + at * _WORDS + _TEXT] for at in range(KEPT)}
        while self._next in kept:
            self._next = (self._next + 1) % TEXTS
        at, key = self._next, (what, group, site)
        self._next = (at + 1) % TEXTS
        before, self._written[at] = self._written[at], key
        if before is not None:
            del self.texts[before]
        over = f"{what}\0{', '.join(group.axes)}\0{spans(group.ranks)}\0".encode()
        text = (over + site)[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        self.memory[TEXT + at * TEXT_BYTES : TEXT + (at + 1) * TEXT_BYTES] = text
        self.texts[key] = at, self._counts.setdefault(over.partition(b"\0")[2], [0])
        return self.texts[key]

    @property
    def latest(self) -> tuple[str, CollectiveMembers, bytes]:
        """The collective that began last, as a key of `texts`."""
        found = self._written[self.words[_FIRST + self.number % KEPT * _WORDS + _TEXT]]
        assert found is not None
        return found

    def look(self) -> None:
        """Notes which collectives on a device have ended meanwhile. Several threads may ask."""
        for flying in tuple(self.flying):
            if not flying.work.is_completed():
                return
            flying.ended()
            with suppress(ValueError):
                self.flying.remove(flying)

    def lines_of(self, code: CodeType) -> dict[int, bytes] | None:
        """An entry of `sites` for a code that has none."""
        own = code.co_name != "<module>" and self.emitted(code.co_filename) is not None
        self._held.append(code)
        made: dict[int, bytes] | None = {} if own else None
        self.sites[id(code)] = made
        return made

    def cite(self, frame: FrameType) -> bytes:
        """The line of the program above the line of an emitted file that a frame is at."""
        lines, known = self._lines[frame.f_code.co_filename], self.sites[id(frame.f_code)]
        assert lines is not None and known is not None
        found = known[frame.f_lasti] = cited(lines, frame.f_lineno - 1).encode()
        return found

    def emitted(self, file: str) -> list[str] | None:
        """The lines of an emitted file; None: it is another one."""
        if file not in self._lines:
            own = file.endswith(".py") and os.path.dirname(os.path.abspath(file)) == self.folder
            self._lines[file] = Path(file).read_text().splitlines() if own else None
        return self._lines[file]


record = FlightRecorder()
_UNKNOWN: dict[int, bytes] = {}


@as_it_is
def here(around_at: int = 1) -> bytes:
    """The line of the program that this is called for; b"" where it is none. around_at: how many
    functions out the search begins; each one less that is looked at saves a microsecond."""
    sites = record.sites
    around: FrameType | None = sys._getframe(around_at)
    while around is not None:
        lines = sites.get(id(around.f_code), _UNKNOWN)
        if lines is _UNKNOWN:
            lines = record.lines_of(around.f_code)
        if lines is not None:
            return lines.get(around.f_lasti) or record.cite(around)
        around = around.f_back
    if TracingContext.try_get() is None:
        return b""
    # torch.compile runs no frame of the program, and knows at which line of it it is.
    for at in reversed(TracingContext.extract_stack()):
        found = record.emitted(at.filename)
        if found is not None and at.lineno is not None:
            return cited(found, at.lineno - 1).encode()
    return b""


class about:
    """Says for the collectives within what they are for, in the place of a line of the program."""

    __slots__ = ("before", "site")

    def __init__(self, site: bytes) -> None:
        self.site = site

    def __enter__(self) -> None:
        self.before, record.site = record.site, self.site

    def __exit__(self, *_: object) -> None:
        record.site = self.before


def naming(what: str, paths: Sequence[str]) -> about:
    """Says for the collectives within that they are for some parameters."""
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return about(f"{what} of {', '.join(paths[:2])}{more}".encode())


class LoggedWork:
    """A collective that is on record: `LoggedWork("all-gather", group, x).of(...)`, with what torch
    has begun. size: its bytes, by default those of `x`."""

    __slots__ = ("at", "number", "on_host", "work")

    def __init__(self, what: str, group: CollectiveMembers, x: Tensor, size: int | None = None) -> None:
        # What a rank has not used since it last slept is far from its processor: each function,
        # object and page that a collective needs costs up to a microsecond. So this is one
        # function, and writes its row by one call.
        to = record
        self.on_host = x.is_cpu
        if not self.on_host:
            to.look()
        site = to.site or here(3)  # out of this and of the function of the runtime that began it
        text, count = to.texts.get((what, group, site)) or to.text(what, group, site)
        self.number = to.number = number = to.number + 1
        self.at = at = _FIRST + number % KEPT * _WORDS
        count[0] = nth = count[0] + 1
        _write(to.memory, at * 8, number, monotonic(), 0.0, 0.0, x.nbytes if size is None else size, nth, to.step,
               world.microbatch, to.action, text, number)  # fmt: skip

    def of(self, work: Any) -> LoggedWork:
        self.work = work
        return self

    def wait(self) -> None:
        to, at = record, self.at
        seconds = to.seconds
        # No other one of this thread begins meanwhile, so what is on record stays so.
        kept = to.number - self.number < KEPT
        if kept:
            seconds[at + _WAITED] = monotonic()
        self.work.wait()
        if not self.on_host:
            to.flying.append(self)
        elif kept:
            seconds[at + _ENDED] = monotonic()

    def ended(self) -> None:
        to, at = record, self.at
        if to.number - self.number < KEPT:
            to.seconds[at + _ENDED] = monotonic()

    def is_completed(self) -> bool:
        if not self.work.is_completed():
            return False
        self.ended()
        return True


def spans(ranks: Sequence[int]) -> str:
    """Ranks in few characters: `0-3`, `0-12/4`, `1,5,6`; "" where they are too many for that."""
    listed = sorted({*ranks})
    step = listed[1] - listed[0] if len(listed) > 1 else 1
    if len(listed) > 2 and listed == [*range(listed[0], listed[-1] + 1, step)]:
        return f"{listed[0]}-{listed[-1]}" + (f"/{step}" if step > 1 else "")
    text = ",".join(map(str, listed))
    return text if len(text) <= 60 else ""
