"""All measurements of a machine -> one JSON file, which rank 0 writes; the compiler's side makes a
profile and a program of it.

    constants(programs, steps, threads, to)     one rank: microseconds of a step of each program
    machine(names, to)                          all ranks: the rest

Both are what each forked rank does in the place of training (launch/launcher.py)."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from shardlang.errors import RunError
from shardlang.runtime.calibrate import collectives, kernels
from shardlang.runtime.calibrate.clock import TURNS, Clock
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.device import expandable, kind_of
from shardlang.runtime.launch.children import take_threads
from shardlang.runtime.launch.devices import chosen
from shardlang.runtime.launch.launcher import launch_program, read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.train import TrainingRun, datasets


def measure(
    alone: Sequence[Path], together: Sequence[Path], ranks: int, device: str | None, calls: kernels.Calls, logs: Path
) -> dict[str, Any]:
    """Everything that is measured, as plain values. alone: emitted programs (their main.py) whose
    steps one rank times; together: those that all ranks time. SH503 without the devices, SH516
    where a rank fails, or the time for it is over."""
    found: dict[str, Any] = {}
    begun = time.monotonic()
    devices = chosen(device, ranks)
    one = chosen(devices.kind, 1) if devices.kind != "cpu" else devices
    for count, main_file, work in (
        (1, alone[0], lambda *given: _constants(alone, ranks, begun, logs / "steps.json", *given)),
        (ranks, together[0], lambda *given: _machine(together, calls, begun, logs / "machine.json", *given)),
    ):
        program = read_program(main_file)
        where = devices if count == ranks else one
        code = launch_program(program, main_file, count, where, logs / f"logs-{count}", None, None, work=work)
        if code:
            ranks_said = f"{count} rank{'s' * (count > 1)}"
            raise RunError("SH516", f"the measurement on {ranks_said} ended with exit code {code}", file=logs)
    for name in ("steps.json", "machine.json"):
        found |= json.loads((logs / name).read_text("utf-8"))
    return {**found, "device": devices.kind}


def _constants(
    programs: Sequence[Path], ranks: int, begun: float, to: Path, first: RunProgram, data: Mapping[str, Dataset],
    log: Log, _: object,
) -> None:  # fmt: skip
    """Microseconds of a step of each program, by one rank with a share of the processors."""
    take_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    log.note(first.where)
    steps = _timed(programs, Clock(world.device, begun))
    log.note(f"{len(steps)} small programs: microseconds of a step")
    to.write_text(json.dumps({"steps": steps}))


def _timed(programs: Sequence[Path], clock: Clock) -> dict[str, float]:
    """Microseconds of a step of each program, which take turns."""
    runs = {}
    for main_file in programs:
        program = read_program(main_file)
        program.base = main_file.parent
        runs[main_file.parent.name] = _steps(program)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _turn in range(TURNS):
        for name, further in runs.items():
            clock.require_time()
            taken[name].append(further())
    return {name: statistics.median(all) * 1e6 for name, all in taken.items()}


def _steps(program: RunProgram) -> Callable[[], float]:
    """A function that trains on for an epoch: the seconds of a step of it. It has trained one."""
    run = TrainingRun(program, datasets(program), Log(None, None))
    run.total = 0

    def further() -> float:
        run.total += run.loader.batches
        start = time.perf_counter()
        run.train()
        if world.device.type != "cpu":
            torch.accelerator.synchronize()
        return (time.perf_counter() - start) / run.loader.batches

    further()
    return further


def _machine(
    programs: Sequence[Path], calls: kernels.Calls, begun: float, to: Path, program: RunProgram,
    data: Mapping[str, Dataset], log: Log, _: object,
) -> None:  # fmt: skip
    """Kernels by every rank at the same time, as they run in training; then collectives, and small
    programs with collectives."""
    log.note(program.where)
    clock, found = Clock(world.device, begun), {}
    free = _free(world.device)
    parts: dict[str, Callable[[], Any]] = {
        "products": lambda: kernels.products(clock), "attention": lambda: kernels.attentions(clock),
        "streams": lambda: kernels.streams(clock, calls, log.note), "updates": lambda: kernels.updates(clock),
        "copies": lambda: kernels.copies(clock), "collectives": lambda: collectives.collectives(clock),
    }  # fmt: skip
    if world.size > 1:
        parts["beside"] = lambda: collectives.beside(clock)
        parts["together"] = lambda: _timed(programs, clock)
    for name, part in parts.items():
        primitives.meet()
        found[name] = part()
        log.note(f"{name} ({clock.calls} measurements in {time.monotonic() - begun:.0f} s)")
    if clock.uneven:
        log.note(f"{clock.uneven} of {clock.calls} measurements spread by more than 10 %: is the machine idle?")
    if clock.hurried:
        log.note(f"{clock.hurried} of {clock.calls} measurements had one turn, as the time for all was nearly over")
    if world.rank == 0:
        kind = kind_of(world.device)
        about = {"model": kind.model(), "driver": kind.driver(), "torch": torch.__version__}
        threads = torch.get_num_threads()
        to.write_text(json.dumps({**found, **about, **free, "threads": threads, "uneven": clock.uneven}))


def _free(device: torch.device) -> dict[str, float]:
    """Bytes of the device's memory, and those that are taken before the first tensor."""
    if device.type == "cpu":
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {"memory": pages / max(1, world.size), "reserved": 0.0}
    torch.empty(1, device=device)
    free, whole = torch.accelerator.get_memory_info(device)
    return {
        "memory": float(whole), "reserved": float(whole - free - torch.accelerator.memory_reserved(device)),
        "expandable_segments": expandable(),
    }  # fmt: skip
