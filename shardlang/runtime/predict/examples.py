"""An evaluation that keeps values of each example -> a file of arrays, one for each value, in the
order of the examples.

The values are laid out as in training. Each rank puts its blocks of a batch into zeros, and the
ranks add these up as bytes, so that the first has the whole, bit for bit."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shardlang.disk.locks import drafted
from shardlang.disk.overwrite_guard import PREDICTED_MARK
from shardlang.runtime.comm.mesh import microbatches, world
from shardlang.runtime.comm.primitives import put_together
from shardlang.runtime.comm.record import record
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram, SourceField, dtype_of, numbers_of, split_axes
from shardlang.runtime.step.resume import resumed
from shardlang.runtime.step.train import TrainingRun, require_ranks


class PredictedExamples:
    """The values of a set's examples so far; on rank 0 alone."""

    def __init__(self, program: RunProgram) -> None:
        self.program = program
        self.parts: dict[str, list[np.ndarray]] = {field.name: [] for field in program.predicted}

    def add(self, values: Mapping[str, Sequence[Tensor]], rows: int) -> None:
        """Takes in a batch of `rows` real rows: of each value this rank's block, for each
        microbatch. All ranks call it."""
        for field in self.program.predicted:
            whole = put_together(_mine(self.program, field, values[field.name]))
            if world.rank == 0:
                whole = whole.float() if whole.dtype == torch.bfloat16 else whole
                self.parts[field.name].append(whole[:rows].cpu().numpy())


def _mine(program: RunProgram, field: SourceField, blocks: Sequence[Tensor]) -> Tensor:
    """The batch, with zeros where this rank has nothing, or another one counts."""
    found = torch.zeros(field.shape, dtype=dtype_of(program, field), device=world.device)
    if blocks and counts(program, field):
        for number in microbatches(len(blocks)):
            found[program.block(field).slices()] = blocks[number]
    return found


def counts(program: RunProgram, field: SourceField) -> bool:
    """Whether this rank is the first of those that hold the same block."""
    return (field.mesh or program.mesh)._leads({*split_axes(field.cut), program.stage_axis})


def trained(
    program: RunProgram, data: Mapping[str, Dataset], log: Log, checkpoint: Path | None, ema: bool
) -> TrainingRun:
    """A run of the program that only evaluates, with the parameters of a checkpoint if one is
    given."""
    require_ranks(program, world.size)
    log.note(program.where)
    run = TrainingRun(replace(program, optimizers=(), checkpoint=None, ema=None), data, log)
    if checkpoint is not None:
        found = resumed(run.model, checkpoint, log.note, ema).folder
        log.note(f"{'averages of ' * ema}parameters of {found}")
    return run


@dataclass(frozen=True)
class Predict:
    """The work of a rank: evaluates, and writes what is kept to `out`. names: of the arrays, by the
    paths of the values. checkpoint: whose parameters are taken, if any; ema: their averages."""

    out: Path
    names: Mapping[str, str]
    checkpoint: Path | None
    ema: bool = False

    def __call__(self, program: RunProgram, data: Mapping[str, Dataset], log: Log, save_weights: Path | None) -> None:
        run = trained(program, data, log, self.checkpoint, self.ema)
        for note in data["eval"].notes:
            log.note(note)
        kept = PredictedExamples(program)
        assert run.test is not None
        with numbers_of(program), record.during("evaluating"):
            figures = run.evaluation(run.test.once(), kept.add)
        log.note("  ".join(f"eval.{name} {value:.6g}" for name, value in figures.items()))
        if world.rank == 0:
            self._write(kept, log)

    def _write(self, kept: PredictedExamples, log: Log) -> None:
        """The arrays as numpy's `load` reads them."""
        with drafted(self.out, "what is predicted") as file, zipfile.ZipFile(file, "w") as archive:
            archive.comment = PREDICTED_MARK
            for path, parts in kept.parts.items():
                array = np.concatenate(parts)
                with archive.open(f"{self.names[path]}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
                log.note(f"`{self.names[path]}` {list(array.shape)} of {array.dtype} in {self.out}")
