"""An emitted program on its ranks, one after the other in this process, for one step -> who of them
would wait for ever.

Each rank runs the emitted text, with its parts and all that hooks of autograd begin. Its groups
have nobody else in them: they note what the rank begins and waits for, and give it numbers of its
own for those of the others. So the figures mean nothing; which collectives a rank begins, and when,
may depend on no number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime.comm import mesh
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.record import record, spans
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.device import HOST, KINDS, Cpu
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.step.train import TrainingRun

_SHOWN = 4


@dataclass(frozen=True)
class Met:
    """A collective as its members know it: the ranks (of a message the sender, then the other), and
    how many of these they had begun with it."""

    ranks: tuple[int, ...]
    message: bool
    number: int


@dataclass(frozen=True)
class TraceEntry:
    """A rank begins a collective, or waits for one. said: what it is, and the line of the
    program."""

    met: Met
    waits: bool
    said: str


class Turns(Cpu):
    """The host, where one rank is alone. course: what it has done so far."""

    def __init__(self) -> None:
        self.course: list[TraceEntry] = []
        self.begun = Counter[tuple[tuple[int, ...], bool]]()

    def meet(self, store: dist.Store | None, rank: int, size: int, bound: Mapping[str, Any]) -> None:
        """Nobody."""

    def group(self, store: dist.Store, ranks: Sequence[int], at: int, name: str) -> Any:
        return Noted(self, tuple(ranks))

    def everyone(self) -> Any:
        return Noted(self, tuple(range(world.size)))

    def begin(self, ranks: tuple[int, ...], message: bool = False) -> Going:
        self.begun[ranks, message] += 1
        what, group, site = record.latest
        over = ", ".join(group.axes) if message else f"over {', '.join(group.axes)} (ranks {spans(ranks)})"
        going = Going(self, Met(ranks, message, self.begun[ranks, message]), f"{what} {over}, {site.decode()}")
        self.course.append(TraceEntry(going.met, False, going.said))
        return going


@dataclass(frozen=True)
class Going:
    """A collective that the rank has begun."""

    turns: Turns
    met: Met
    said: str

    def wait(self) -> bool:
        self.turns.course.append(TraceEntry(self.met, True, self.said))
        return True

    def is_completed(self) -> bool:
        return False


@dataclass(frozen=True)
class Noted:
    """A group as torch.distributed has it: those of its functions that ranks on the CPU call."""

    turns: Turns
    ranks: tuple[int, ...]

    def allreduce(self, xs: Sequence[Tensor], options: Any) -> Going:
        return self.turns.begin(self.ranks)

    def alltoall_base(self, made: Tensor, given: Tensor, receive: Sequence[int], send: Sequence[int]) -> Going:
        # Whole numbers are places, or sizes of what is to come: 0 is one, and nothing.
        made.zero_()
        if made.is_floating_point() and made.numel() == given.numel():
            made.copy_(given.view(made.shape))
        return self.turns.begin(self.ranks)

    def send(self, xs: Sequence[Tensor], to: int, tag: int) -> Going:
        return self.turns.begin((world.rank, to), True)

    def recv(self, xs: Sequence[Tensor], source: int, tag: int) -> Going:
        for x in xs:
            x.zero_()
        return self.turns.begin((source, world.rank), True)


def require_ends(main_file: Path, base: Path, data: Mapping[str, Dataset], ranks: int, log: Log) -> None:
    """RunError (SH515) where ranks of an emitted program would wait for ever in its first step.
    log: is told where that cannot be found out, as something does not take a rank's own numbers."""
    try:
        courses = [_course(main_file, base, data, rank, ranks) for rank in range(ranks)]
    except (RunError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        log.note(f"whether real ranks would wait for each other for ever was not looked at, as one alone fails: {why}")
        return
    if not (found := waiting(courses)):
        return
    lines = [f"  rank {rank} waits in {event.said}, for rank {spans(missing)}" for rank, event, missing in found]
    more = [f"  and {len(found) - _SHOWN} more ranks wait"] if len(found) > _SHOWN else []
    fact = "\n".join(["ranks would wait for each other for ever:", *lines[:_SHOWN], *more])
    raise RunError("SH515", fact, help="this is a fault of shardc: please report it with the program and the command")


def waiting(courses: Sequence[Sequence[TraceEntry]]) -> list[tuple[int, TraceEntry, list[int]]]:
    """The ranks that wait for ever, in what, and for whom: those who have not begun it."""
    at, begun, moved = [0] * len(courses), dict[Met, set[int]](), True
    while moved:
        moved = False
        for rank, course in enumerate(courses):
            while at[rank] < len(course) and not (course[at[rank]].waits and _missing(course[at[rank]], begun)):
                if not course[at[rank]].waits:
                    begun.setdefault(course[at[rank]].met, set()).add(rank)
                at[rank] += 1
                moved = True
    heads = [(rank, course[place]) for rank, (course, place) in enumerate(zip(courses, at, strict=True))
             if place < len(course)]  # fmt: skip
    return [(rank, event, _missing(event, begun)) for rank, event in heads]


def _missing(event: TraceEntry, begun: Mapping[Met, set[int]]) -> list[int]:
    return sorted({*event.met.ranks} - begun.get(event.met, set()))


def _course(main_file: Path, base: Path, data: Mapping[str, Dataset], rank: int, ranks: int) -> list[TraceEntry]:
    """All that one rank begins and waits for in its first step, in order."""
    program = replace(read_program(main_file), base=base, checkpoint=None, log=None, compile="none")
    with _alone(main_file.parent, rank, ranks) as turns:
        run = TrainingRun(program, data, Log(None, None))
        batch = next(iter(run.loader.epoch(1, 0)))
        turns.course.clear()
        run.begin()
        run.passes.step(batch)
        run.model.update(run.step, run.total)
        return turns.course


@contextmanager
def _alone(folder: Path, rank: int, ranks: int) -> Iterator[Turns]:
    """This process is a rank without others. folder: of the emitted files."""
    before, KINDS["cpu"] = KINDS["cpu"], (turns := Turns())
    record.forget(str(folder))
    mesh.connect(rank, ranks, HOST, dist.HashStore())
    try:
        yield turns
    finally:
        mesh.disconnect()
        record.forget()
        KINDS["cpu"] = before
