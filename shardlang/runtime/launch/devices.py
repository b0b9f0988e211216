"""Which kind of device the ranks of a run take, decided before any of them starts; what is said of
it.

A device for each rank, or the CPU: fewer devices than ranks are never shared."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardlang.errors import RunError
from shardlang.runtime.device import KINDS, Cpu


@dataclass(frozen=True)
class DeviceChoice:
    """A kind of device by its name, and what is told of it; few: why devices that are there are
    not taken."""

    kind: str
    devices: str = "the CPU"
    few: str = ""
    # Each rank sees one device, its own.
    apart: bool = False

    def told(self, ranks: int) -> str:
        """`8 ranks on the CPU by gloo`: where ranks compute, and what they communicate by."""
        by = f" by {KINDS[self.kind].backend}" if ranks > 1 else ""
        return f"{_counted(ranks, 'rank')} on {self.devices}{by}" + (f" ({self.few})" if self.few else "")

    def device(self, number: int) -> torch.device:
        """The device of the rank with a number among those of its machine."""
        return KINDS[self.kind].device(0 if self.apart else number)


def chosen(asked: str | None, ranks: int) -> DeviceChoice:
    """The kind for `ranks` ranks of this machine that are forked here: the one that is asked for,
    else the first of which there is a device for each rank. RunError where what is asked for is not
    there."""
    few = ""
    for kind, count in _there(asked):
        if count >= ranks:
            return DeviceChoice(kind.name, f"{ranks} x {kind.model()}")
        if asked is not None:
            raise _missing(ranks, count, kind)
        if count and not few:
            few = f"{_counted(count, kind.noun)} {'is' if count == 1 else 'are'} fewer than {ranks} ranks"
    return DeviceChoice("cpu", few=few)


def of_rank(asked: str | None, store: dist.Store | None, rank: int, size: int, here: int) -> DeviceChoice:
    """The kind for one rank that torchrun or a scheduler has started, the same for all ranks of the
    run; `here` of them are on this host. RunError where ranks see different kinds, and where some
    see devices that are too few: the CPU is taken only if asked for."""
    found = DeviceChoice("cpu")
    for kind, count in _there(asked):
        # A scheduler may show each process its own device alone.
        apart = count == 1 < here and _apart(kind, store)
        if count < here and not apart and (count or asked is not None):
            raise _missing(here, count, kind)
        if count:
            found = DeviceChoice(kind.name, f"{size} x {kind.model()}", apart=apart)
            break
    if store is not None:
        store.set(f"device/{rank}", found.kind)
        if (first := store.get("device/0").decode()) != found.kind:
            raise RunError(
                "SH503", f"rank 0 computes on {first}, and rank {rank} on {found.kind}",
                help="--device cpu, or ranks on machines of one kind",
            )  # fmt: skip
    return found


def _there(asked: str | None) -> list[tuple[Cpu, int]]:
    """The kinds to choose from, each with how many there are; the CPU, of which there is always
    enough, is not one."""
    kinds = [kind for kind in KINDS.values() if asked in (None, kind.name)]
    return [(kind, count) for kind in kinds if (count := kind.count()) is not None]


def _apart(kind: Cpu, store: dist.Store | None) -> bool:
    """Whether no rank before this one has seen the one device that it sees."""
    mine = kind.identity(kind.device(0))
    return bool(mine) and store is not None and store.add(f"device-of/{socket.gethostname()} {mine}", 1) == 1


def _missing(ranks: int, count: int, kind: Cpu) -> RunError:
    need = f"{_counted(ranks, 'rank')} need{'s' if ranks == 1 else ''} {_counted(ranks, kind.noun)}"
    there = kind.lack() or f"there {'is' if count < 2 else 'are'} {count or 'none'}"
    return RunError("SH503", f"{need}, and {there}", help="--device cpu")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
