"""Which ranks this process computes with: those of a process group, of torchrun or srun, of
`launch`, or itself alone.

A process is one rank, on one device, for all programs that it binds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from shardlang.errors import RunError
from shardlang.launch.started import started
from shardlang.runtime.comm import mesh
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.primitives import exchanged
from shardlang.runtime.device import KINDS, TIMEOUT
from shardlang.runtime.launch.devices import chosen, of_rank
from shardlang.runtime.launch.meeting import rendezvous


class RankError(RuntimeError):
    """A rank that failed, or ranks that do not fit each other. rank: which; traceback: its text,
    "" where there is none."""

    def __init__(self, rank: int, message: str, traceback: str = "") -> None:
        super().__init__(message + (f"\n\n{traceback.rstrip()}" if traceback else ""))
        self.rank, self.traceback = rank, traceback


class _Connected:
    """How a process has become a rank: which it was, and the group (None: by us). launched: the
    process that `launch` has begun, and its device."""

    process = -1
    group: Any = None
    launched: tuple[int, torch.device] | None = None


Device: TypeAlias = "str | torch.device | None"


def connected(ranks: int, group: Any, device: Device) -> None:
    """Makes this process a rank of `ranks`, unless it is one already. RunError where it is one of
    another number, ValueError where the group or the device is not that of an earlier program."""
    if _Connected.process == os.getpid():
        _require_same(group, device)
        return _require(ranks, world.size)
    if group is None and dist.is_initialized():
        group = dist.group.WORLD
    if device is None and _Connected.launched is not None and _Connected.launched[0] == os.getpid():
        device = _Connected.launched[1]
    if group is not None:
        _join(ranks, group, device)
    else:
        _start(ranks, device)
    _Connected.process, _Connected.group = os.getpid(), group
    return None


def begin(rank: int, ranks: int, device: torch.device, store: Path) -> None:
    """Starts torch.distributed on a rank that `launch` has forked; programs take part in it when
    they are bound. store: a file by which the ranks find each other."""
    _Connected.launched = os.getpid(), device
    kind = KINDS[device.type]
    bound = kind.take(device)
    if ranks > 1:
        there = dist.FileStore(str(store), ranks)
        dist.init_process_group(kind.backend, store=there, rank=rank, world_size=ranks, timeout=TIMEOUT, **bound)


def end() -> None:
    """Gives up all that this rank has made."""
    mesh.disconnect()
    if dist.is_initialized():
        dist.destroy_process_group()


def _require_same(group: Any, device: Device) -> None:
    mine = dist.group.WORLD if _Connected.group is None and world.size > 1 else _Connected.group
    if group is not None and group is not mine:
        raise ValueError("a program has been bound in this process over other ranks; a process is one rank for all")
    asked = torch.device(device) if device is not None else world.device
    if asked.type != world.device.type or asked.index not in (None, world.device.index):
        raise ValueError(f"a program has been bound in this process on {world.device}; no other can be on {asked}")


def _require(ranks: int, size: int) -> None:
    if ranks != size:
        fact = f"the program is laid out for {ranks} ranks and is bound on {size}"
        help = f"shardlang.compile(..., ranks={size}), or {ranks} ranks by launch(function, ranks={ranks}) or torchrun"
        raise RunError("SH503", fact, help=help)


def _join(ranks: int, group: Any, device: Device) -> None:
    """Takes part in a process group that there is."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError("this process is no member of the group, and binds nothing over it")
    _require(ranks, size)
    kind = "cuda" if device is None and "nccl" in str(dist.get_backend(group)) else "cpu"
    mesh.join(group, placed(device if device is not None else kind, int(os.environ.get("LOCAL_RANK", rank))))


def _start(ranks: int, device: Device) -> None:
    """Takes part in the ranks that torchrun or srun has started; else this process is alone."""
    place = started()
    _require(ranks, place.size if place is not None else 1)
    kind = torch.device(device).type if device is not None else None
    if place is None:
        found = placed(device, 0) if device is not None else chosen(kind, 1).device(0)
        return mesh.connect(0, 1, found)
    store = rendezvous() if place.size > 1 else None
    if device is None:
        found = of_rank(kind, store, place.rank, place.size, place.local_size).device(place.local)
    else:
        found = placed(device, place.local)
    return mesh.connect(place.rank, place.size, found, store)


def placed(device: str | torch.device, local: int) -> torch.device:
    """The device that is meant on the rank with a number among those of its machine. ValueError
    for a kind that no rank can compute on."""
    asked = torch.device(device)
    if asked.type not in KINDS:
        raise ValueError(f"`{asked}` is no device of a rank; there are {', '.join(KINDS)}")
    return asked if asked.index is not None else KINDS[asked.type].device(local)


def agree(call: str, number: int) -> None:
    """RankError where ranks do not call the same: all of them say what they call, and which of
    their calls it is. All ranks call it."""
    told: Sequence[tuple[str, int]] = [(name, count) for name, count in exchanged([call, number])]
    for rank, (name, count) in enumerate(told):
        if (name, count) != told[0]:
            first = f"rank 0 calls `{told[0][0]}` (its call {told[0][1]})"
            raise RankError(rank, f"the ranks call in different orders: {first}, and rank {rank} calls `{name}` "
                            f"(its call {count})")  # fmt: skip
