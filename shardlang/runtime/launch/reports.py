"""The records of ranks -> what is told of an end: where a rank was, its last collective, and who
waits for it.

comm/record.py writes the files; they are there however a rank has ended."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardlang.checkpoints.index import Damaged
from shardlang.checkpoints.looked_at import opened_newest
from shardlang.disk.overwrite_guard import RECORD_MARK
from shardlang.disk.run_files import record_file
from shardlang.facts.actions import ACTIONS
from shardlang.runtime.comm import record as form
from shardlang.runtime.comm.record import CALL, HEAD, PHASES, TEXT, TEXT_BYTES, TEXTS, spans
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.resume import checkpoints
from shardlang.terminal.display import one_line


@dataclass(frozen=True)
class CollectiveCall:
    """A collective of a rank; times by the clock of its machine, 0.0: not yet. nth: of its group.
    ranks: its members; none: they are not known. stage: -1 without. site: what it is for."""

    number: int
    begun: float
    waited: float
    ended: float
    size: int
    nth: int
    step: int
    microbatch: int
    stage: int
    kind: str
    what: str
    over: str
    ranks: frozenset[int]
    site: str

    @property
    def group(self) -> tuple[str, frozenset[int]]:
        return self.over, self.ranks

    def __str__(self) -> str:
        message = self.what in ("send", "receive")
        over = self.over if message else f"over {self.over}"
        action = f", {ACTIONS[self.kind].said} of stage {self.stage}" if self.kind in ACTIONS else ""
        part = f", microbatch {self.microbatch}" if self.microbatch or action else ""
        where = "" if message else f"{action}{part}"
        return f"{self.what} {over}, {self.size} bytes{where}, for {self.site or 'the runtime'}"


@dataclass(frozen=True)
class RankStatus:
    """One rank, by its record. progress: when it last got further. allowance: seconds in which that
    need not be; usual: of a step. ahead: its host runs ahead of its device. calls: its last
    collectives, the latest last."""

    rank: int
    size: int
    pid: int
    host: str
    token: int
    step: int
    phase: str
    told: bool
    progress: float
    allowance: float
    usual: float
    ahead: bool = False
    calls: list[CollectiveCall] = field(default_factory=list)

    @property
    def last(self) -> CollectiveCall | None:
        return self.calls[-1] if self.calls else None

    @property
    def waiting(self) -> CollectiveCall | None:
        """The collective that it waits for."""
        return next((call for call in self.calls if call.waited and not call.ended), None)

    def awaits(self, other: RankStatus) -> bool:
        """Whether it waits for a collective that another rank takes part in and has not begun."""
        call = self.waiting
        if call is None or (call.ranks and other.rank not in call.ranks):
            return False
        return not any(theirs.group == call.group and theirs.nth >= call.nth for theirs in other.calls)


def read(path: Path, called: bool = True) -> RankStatus | None:
    """The rank that a record is of; None where there is none, or not yet. called: with its
    collectives."""
    size = form.BYTES if called else TEXT
    try:
        with path.open("rb") as file:
            content = file.read(size)
    except OSError:
        return None
    if len(content) != size or not content.startswith(RECORD_MARK):
        return None
    words, seconds = struct.unpack_from(f"={HEAD // 8}Q", content), struct.unpack_from(f"={HEAD // 8}d", content)
    rows = range(HEAD, TEXT, CALL.size)
    moved = max(max(CALL.unpack_from(content, at)[1:4]) for at in rows)
    calls = filter(None, (_call(content, at) for at in rows if called))
    return RankStatus(
        words[form.RANK], words[form.SIZE], words[form.PID], host=_text(content[form.HOST]), token=words[form.TOKEN],
        step=words[form.STEP], phase=PHASES[min(words[form.PHASE], len(PHASES) - 1)], told=bool(words[form.TOLD]),
        progress=max(seconds[form.PROGRESS], moved), allowance=seconds[form.ALLOWANCE], usual=seconds[form.USUAL],
        ahead=bool(words[form.AHEAD]), calls=sorted(calls, key=lambda call: call.number),
    )  # fmt: skip


def _text(content: bytes) -> str:
    return one_line(content.rstrip(b"\0").decode(errors="replace"))


def _call(content: bytes, at: int) -> CollectiveCall | None:
    number, *more, kind, text, again = CALL.unpack_from(content, at)
    if number != again or not number:
        return None
    begin = TEXT + min(text, TEXTS) * TEXT_BYTES
    texts = content[begin : begin + TEXT_BYTES].split(b"\0", 3)
    what, over, ranks, site = (_text(each) for each in (*texts, b"", b"", b"")[:4])
    given = number, *more, _text(kind), what, over, members(ranks), site
    return CollectiveCall(*given)


def members(text: str) -> frozenset[int]:
    """The ranks that record.spans has written; none where it has left them out, or they are cut."""
    found: set[int] = set()
    try:
        for part in filter(None, text.split(",")):
            ends, _, step = part.partition("/")
            first, _, last = ends.partition("-")
            found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    except ValueError:
        return frozenset()
    return frozenset(found)


def records(folder: Path, ranks: Iterable[int], token: int | None = 0, called: bool = True) -> dict[int, RankStatus]:
    """The ranks of a start of the run, or (None) of any, that have a record in a folder."""
    found = ((rank, read(record_file(folder, rank), called)) for rank in ranks)
    return {rank: seen for rank, seen in found if seen is not None and token in (None, seen.token)}


def told(seen: Mapping[int, RankStatus], rank: int, now: float | None = None) -> Iterator[str]:
    """Lines about where a rank was as it ended, and who waits for it."""
    now = time.monotonic() if now is None else now
    mine = seen.get(rank)
    if mine is None:
        yield f"  on {socket.gethostname()}, before it was connected"
        return
    where = f"in step {mine.step}" if mine.step else "before the first step"
    doing = "" if mine.phase in ("training", "starting") else f" ({mine.phase})"
    yield f"  on {mine.host}, {where}{doing}"
    if mine.last is not None:
        yield f"  its last collective: {mine.last}; {_state(mine.last, now)}"
    waiting: dict[str, list[int]] = {}
    for other in seen.values():
        call = other.waiting
        if other.rank != rank and call is not None and (not call.ranks or rank in call.ranks):
            waiting.setdefault(str(call), []).append(other.rank)
    for call_text, ranks in waiting.items():
        yield f"  {named(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for it: {call_text}"


def goes_on(program: RunProgram, mistaken: RankStatus | None = None) -> Iterator[str]:
    """A line about the checkpoint that --resume would take, if the program sets any. mistaken: the
    rank that met a mistake of the user's; one that it met in its start, --resume would meet too."""
    kept = checkpoints(program)
    if kept is not None and (mistaken is None or mistaken.phase != "starting"):
        try:
            index, passed = opened_newest(kept.folder)
        except Damaged as error:
            none = f"there is no checkpoint in {kept.folder} yet"
            yield f"  no checkpoint is whole: {error.message}" if kept.latest() else f"  {none}"
            return
        over = f", and passes over {len(passed)} that {'is' if len(passed) == 1 else 'are'} not whole" * bool(passed)
        yield f"  --resume goes on from {index.folder}{over}"


def _state(call: CollectiveCall, now: float) -> str:
    if call.ended:
        return f"it ended in step {call.step}, {_since(call.ended, now)} before"
    if call.waited:
        return f"it waited for that in step {call.step}, {_since(call.waited, now)} long"
    return f"it began in step {call.step}, {_since(call.begun, now)} before"


def _since(then: float, now: float) -> str:
    return f"{max(0.0, now - then):.1f} s"


def named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2`."""
    listed = sorted(ranks)
    return f"rank{'s' * (len(listed) > 1)} {spans(listed) or f'{listed[0]} and {len(listed) - 1} more'}"
