"""Sides of a claim, each in processes of its own.

Where a GPU has room for two such nets, two sides take turns on it: a clock that falls as the device warms slows both.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import torch
from ranks import WARMUP, barrier
from timing import Timing, interleave

from benchmarks.gpu.nets import Net, Turn
from shardlang.folds.peak.step import step_peaks
from shardlang.runtime.comm import mesh

Sides = Mapping[str, Callable[[], Turn]]
# What a process has on a GPU beside tensors, and what the allocator keeps of freed blocks.
ROOM = 1.3


def measured(net: Net, sides: Sides) -> dict[str, Timing]:
    """Seconds of each side's turns, which are printed with tokens/s and MFU."""
    found: dict[str, Timing] = {}
    names, beside = list(sides), 2 if _room_for_two(net) else 1
    for at in range(0, len(names), beside):
        found |= _taking_turns(net, {name: sides[name] for name in names[at : at + beside]})
    for name, timing in found.items():
        print(f"{net.name}, {name}: {timing} for {net.steps} steps, {net.speed(timing.median)}", flush=True)
    return found


def _room_for_two(net: Net) -> bool:
    """Whether two sides on one rank fit into the device's memory at once."""
    if net.ranks > 1 or not net.place.whole:
        return net.ranks == 1
    (planned,) = [peak.bytes for peak in step_peaks(net.plan)]
    (there,) = net.place.forked(lambda: torch.cuda.mem_get_info()[0])
    return bool(2 * ROOM * planned < there)


def _taking_turns(net: Net, sides: Sides) -> dict[str, Timing]:
    if len(sides) == 1:
        ((name, side),) = sides.items()
        return net.place.on_ranks(lambda: {name: side()}, net.ranks)
    context, ends = multiprocessing.get_context("fork"), {}
    for name, side in sides.items():
        ends[name], theirs = context.Pipe()
        context.Process(target=_turns, args=(net, side, theirs), daemon=True).start()
        theirs.close()
    found = interleave({name: lambda end=end: _asked(end) for name, end in ends.items()}, net.place.turns, WARMUP)
    for end in ends.values():
        end.send(False)
    for process in multiprocessing.active_children():
        process.join()
    return found


def _asked(end: Connection) -> float:
    """Seconds of a turn of the process at the other end."""
    try:
        end.send(True)
        seconds: float = end.recv()
    except (EOFError, OSError):
        sys.exit("a side failed")
    return seconds


def _turns(net: Net, side: Callable[[], Turn], end: Connection) -> None:
    """The process of a side: a turn whenever it is asked for one."""
    # Makes torch's pool of threads anew in this fork. Else threads of autograd do, several at once, and one finds none.
    torch.set_num_threads(torch.get_num_threads())
    mesh.connect(0, 1, net.place.devices.device(0))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        turn = side()
        while end.recv():
            barrier()
            start = time.perf_counter()
            turn()
            barrier()
            end.send(time.perf_counter() - start)
