"""Interleaved timings on several connected ranks: in each process the sides take turns, so that whatever slows the
machine slows both.

A turn is a call on every rank at once, from a barrier to a barrier: its wall time is the first rank's, its processor
time that of all ranks together. A device has done all that it was given before a barrier. Sides that give losses must
give the same ones in their first turn.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from timing import Timing, ratios, verdict

from shardlang.runtime.comm import mesh
from shardlang.runtime.launch.devices import DeviceChoice

WARMUP = 2  # turns that are not counted
CLOSE = 1e-4  # relative: how much losses in float32 may differ
# Threads of OpenMP do not come along into a forked rank, which would wait for them: there are none before.
torch.set_num_threads(1)
# What a turn of each side does; it gives the losses of its steps, or nothing.
Turns = Mapping[str, Callable[[], Sequence[float] | None]]
Sides = Callable[[], Turns]
HOST = DeviceChoice("cpu")


def forked(size: int, work: Callable[[], Any], where: DeviceChoice = HOST) -> list[Any]:
    """What `work` gives on each of `size` ranks, forked and connected: anything that JSON has."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, size, work, Path(folder), where) for rank in range(size)]
        if any([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]):
            sys.exit("a rank failed")
        return [json.loads((Path(folder) / f"rank-{rank}.json").read_text()) for rank in range(size)]


def on_ranks(
    size: int, sides: Sides, turns: int, where: DeviceChoice = HOST, close: float = CLOSE
) -> tuple[dict[str, Timing], dict[str, Timing]]:
    """Wall and processor seconds of each side's turns on `size` forked ranks.

    sides: called on every rank once it is connected; name -> what a turn of that side does. close: how much losses may
    differ, relative.
    """
    measured = forked(size, lambda: _take_turns(sides(), WARMUP + turns, close), where)
    wall = {name: Timing(tuple(taken[WARMUP:])) for name, taken in measured[0]["wall"].items()}
    return wall, {name: _together([m["processor"][name][WARMUP:] for m in measured]) for name in wall}


def compared(size: int, sides: Sides, turns: int, label: str, limit: float) -> bool:
    """Prints the sides' times and the ratio of "ours" to "by hand" under the label; whether it is within the limit."""
    wall, processor = on_ranks(size, sides, turns)
    for name, timing in wall.items():
        print(f"{size} rank{'s' * (size > 1)}, {name:8} {timing}, processor {processor[name]}")
    print(f"processor time: ratio {processor['ours'].median / processor['by hand'].median:.3f}")
    return verdict(label, ratios(wall, "ours", "by hand"), limit)


def _together(of_ranks: Sequence[Sequence[float]]) -> Timing:
    return Timing(tuple(sum(turn) for turn in zip(*of_ranks, strict=True)))


def _fork(rank: int, size: int, work: Callable[[], Any], folder: Path, where: DeviceChoice) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
        store = dist.FileStore(str(folder / "store"), size) if size > 1 else None
        mesh.connect(rank, size, where.device(rank), store)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            found = work()
        (folder / f"rank-{rank}.json").write_text(json.dumps(found))
        barrier()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def barrier() -> None:
    """All ranks, and their devices, have done what they were given."""
    if mesh.world.device.type != "cpu":
        torch.accelerator.synchronize()
    if mesh.world.size > 1:
        dist.barrier()


def _take_turns(runs: Turns, turns: int, close: float) -> dict[str, dict[str, list[float]]]:
    wall: dict[str, list[float]] = {name: [] for name in runs}
    processor: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        losses = {}
        # Each side goes first every other turn.
        for name in sorted(runs, reverse=bool(turn % 2)):
            gc.collect()
            barrier()
            start, used = time.perf_counter(), time.process_time()
            losses[name] = runs[name]()
            processor[name].append(time.process_time() - used)
            barrier()
            wall[name].append(time.perf_counter() - start)
        if turn == 0:
            _require_alike(losses, close)
    return {"wall": wall, "processor": processor}


def _require_alike(losses: Mapping[str, Sequence[float] | None], close: float) -> None:
    """Ends the benchmark where two sides that began alike have not computed the same."""
    given = {name: torch.tensor(values, dtype=torch.float64) for name, values in losses.items() if values is not None}
    for name, values in given.items():
        first = next(iter(given.values()))
        if values.shape != first.shape or not torch.allclose(values, first, rtol=close, atol=0.0):
            raise RuntimeError(f"losses differ: {name} {values.tolist()}, and {first.tolist()}")
