"""A program -> the first and the last line of its run, which say what it is and what came of it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from shardlang.runtime.program import RunProgram


def first_line(program: RunProgram, steps: int) -> str:
    """The program, where it runs, how large it is, where its files go."""
    strategy = f"strategy {program.strategy}" if program.strategy else ""
    what = ", ".join(filter(None, (program.name, strategy, program.where)))
    return f"{what}: {size(program):,} parameters, {steps:,} steps; {_folders(program)}"


def size(program: RunProgram) -> int:
    """How many numbers the parameters have."""
    return sum(math.prod(parameter.shape) for parameter in program.parameters)


def last_line(program: RunProgram, ended: str, best: str, weights: Path | None, kept: int) -> str:
    """How the run ended, its best figure, where its files are. kept: the step of the checkpoint
    that stays as the best; 0 where none does."""
    best_in = f", the best in step-{kept} there" if kept and program.checkpoint is not None else ""
    files = _folders(program) + best_in + (f", weights in {_shown(weights)}" if weights is not None else "")
    return f"{ended}: {best}; {files}" if best else f"{ended}; {files}"


def _folders(program: RunProgram) -> str:
    logs = f"logs in {_shown(program.log_dir)}, " if program.log_dir is not None else ""
    if program.checkpoint is None:
        return f"{logs}no checkpoints"
    return f"{logs}checkpoints in {_shown(program.base / program.checkpoint.to)}"


def _shown(path: Path) -> Path:
    """A path from here, where it is below."""
    whole = Path(os.path.abspath(path))
    return whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole
