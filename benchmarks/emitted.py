"""A .shard file -> the `program` of what the compiler emits for it, loaded in this process, and its training loop.

The compiler is called as `shardc compile` calls it, the loop is what `shardc run` has each rank run. For the other
side: the same data as tensors, the same weights to begin with.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.data.dataset import Arrays, Dataset, Origin
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.program import Extent, RunProgram
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.step.train import TrainingRun, datasets
from shardlang.sources.source import Source


def planned(file: Path, strategy: str | None, ranks: int, settings: Mapping[str, str] | None = None) -> Plan:
    """The plan of a program; arguments as of `emitted`."""
    sink = Sink()
    checked = driver.check_source(Source(str(file), file.read_text()), sink, settings)
    plan = driver.plan_program(checked, strategy, ranks, sink) if checked else None
    if plan is None:
        sys.exit("\n".join(found.message for found in sink.found))
    return plan


def emitted(file: Path, strategy: str | None, ranks: int, settings: Mapping[str, str] | None = None) -> RunProgram:
    """The emitted program of `file` for a strategy and a number of ranks; `settings` as `--set` gives them."""
    sink = Sink()
    files = driver.emit_plan(planned(file, strategy, ranks, settings), sink)
    if files is None:
        sys.exit("\n".join(found.message for found in sink.found))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        program = read_program(Path(folder) / "main.py")
    program.base = file.parent
    return program


class Losses(Log):
    """Shows what a run's log shows, and keeps the losses."""

    def __init__(self) -> None:
        super().__init__(sys.stdout if world.rank == 0 else None, None)
        self.losses: list[float] = []

    def step(self, step: int, epoch: int, figures: Mapping[str, float], *further: Any) -> None:
        super().step(step, epoch, figures, *further)
        self.losses.append(figures["loss"])


def training(program: RunProgram, data: Mapping[str, Dataset], epochs: int) -> Callable[[], list[float]]:
    """Makes this rank's run of a program; each call of the function trains on for so many epochs: the losses."""
    log = Losses()
    run = TrainingRun(program, data, log)
    run.total = 0

    def further() -> list[float]:
        log.losses.clear()
        run.total += epochs * run.loader.batches
        run.train()
        return list(log.losses)

    return further


def on_hand(program: RunProgram) -> tuple[dict[str, Dataset], dict[str, Tensor]]:
    """The data of a program in memory: as its run takes it, and whole, by field."""
    source, read = program.data, datasets(program)["data"]
    every = np.arange(read.length)
    whole = {field.name: Extent((0,) * len(field.shape), field.shape) for field in source.fields}
    arrays = {field.name: read.take(field, every, whole[field.name]) for field in source.fields}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {"data": Arrays(source.fields, arrays, Origin(program.base))}, tensors


def beginning(file: Path, settings: Mapping[str, str] | None = None) -> dict[str, Tensor]:
    """The whole parameters of a program before the first step, by path as torch writes it (`blocks.0.up.weight`)."""
    return leaves(emitted(file, None, 1, settings))


def leaves(program: RunProgram) -> dict[str, Tensor]:
    """The same for a program that is emitted already, on this rank's device."""
    found = RankModel(program).leaves
    return {path.replace("[", ".").replace("]", ""): leaf.detach() for path, leaf in found.items()}
