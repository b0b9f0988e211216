"""A program and its `--log` -> the stream of its events, and the settings that `start` tells."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from shardlang import __version__
from shardlang.disk.locks import Claims
from shardlang.disk.overwrite_guard import EMITTED, EVENTS, is_own
from shardlang.runtime.events.consumers import open_function
from shardlang.runtime.events.stream import Asking, EventStream
from shardlang.runtime.events.told import size
from shardlang.runtime.program import RunProgram


def stream_of(program: RunProgram) -> EventStream | None:
    """The stream of a program, on rank 0; None where nobody wants it. RunError where a function of
    the user's cannot be loaded."""
    if not program.targets:
        return None
    asking = Asking()
    return EventStream([(str(target), open_function(target, asking)) for target in program.targets], asking)


def loaded_files(program: RunProgram) -> list[str]:
    """The files of callbacks, and which text each is."""
    files = sorted({Path(target.place) for target in program.targets if target.kind == "python"})
    return [f"runs {path}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]


def claim_events(claims: Claims, program: RunProgram) -> None:
    """Claims the files that the events of a run are written to, line by line."""
    for target in program.targets:
        if target.kind == "jsonl":
            claims.lines(Path(target.place), EVENTS)


def emitted_hash(main_file: Path) -> str:
    """The sha256 of an emitted program, all files of it."""
    found = hashlib.sha256()
    for path in sorted(main_file.parent.glob("*.py")):
        if is_own(path, EMITTED):
            found.update(f"{path.name}\0".encode() + path.read_bytes())
    return found.hexdigest()


def settings(program: RunProgram, total: int) -> dict[str, Any]:
    """The settings of a run, by which its figures are compared to others'."""
    work, data = program.work, program.data
    plan = {"tokens": work.tokens, "flops": work.flops, "device_bytes": max(work.memory, default=0)}
    schedule, optimizers = program.lr_schedule, program.optimizers
    found: dict[str, Any] = {
        "program": program.name, "strategy": program.strategy, "ranks": program.ranks, "hash": program.hash,
        "shardlang": __version__, "mesh": {axis: program.mesh[axis].size for axis in program.mesh},
        "parameters": size(program),
        "data": data.kind, "batch": data.batch, "steps": total, "seed": program.seed, "precision": program.precision,
        "microbatches": program.microbatches, "clip": program.clip,
        "lr_schedule": None if schedule is None else {"kind": type(schedule).__name__, **vars(schedule)},
        "optimizer": {"kind": optimizers[0].kind, **optimizers[0].arguments} if optimizers else None,
        "plan": {name: value for name, value in plan.items() if value},
    }  # fmt: skip
    more = {f"optimizer_{at}": {"kind": o.kind, **o.arguments} for at, o in enumerate(optimizers[1:], 2)}
    return {name: value for name, value in {**found, **more}.items() if value is not None}
