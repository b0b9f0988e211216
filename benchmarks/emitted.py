"""A .shard file -> the `program` of what the compiler emits for it, loaded in this process, and its training loop.

The compiler is called as `shardc compile` calls it, the loop is what `shardc run` has each rank run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.runtime.data import Dataset
from shardlang.runtime.launch import read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.mesh import world
from shardlang.runtime.program import Program
from shardlang.runtime.train import Run
from shardlang.source import Source


def emitted(file: Path, strategy: str | None, ranks: int, settings: Mapping[str, str] | None = None) -> Program:
    """The emitted program of `file` for a strategy and a number of ranks; `settings` as `--set` gives them."""
    sink = Sink()
    checked = driver.check_source(Source(str(file), file.read_text()), sink, settings)
    planned = driver.plan_program(checked, strategy, ranks, sink) if checked else None
    files = driver.emit_plan(planned, sink) if planned else None
    if files is None:
        sys.exit("\n".join(found.message for found in sink.found))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        program = read_program(Path(folder) / "main.py")
    program.base = file.parent
    return program


def training(program: Program, data: Mapping[str, Dataset], epochs: int) -> Callable[[], None]:
    """Makes this rank's run of a program; each call of the function trains on for so many epochs."""
    run = Run(program, data, Log(sys.stdout if world.rank == 0 else None, None))
    run.total = 0

    def further() -> None:
        run.total += epochs * run.loader.batches
        run.train()

    return further
