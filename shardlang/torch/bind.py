"""`bind(compiled)`: a compiled program -> a torch module, on the ranks of this process's group."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shardlang.api.values import Compiled
from shardlang.disk.scratch import scratch
from shardlang.errors import RunError
from shardlang.runtime import compiled as blocks
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.program import RunProgram, Safetensors, load_own
from shardlang.runtime.step.resume import resumed
from shardlang.runtime.step.stepper import Stepper
from shardlang.torch.module import ShardModule
from shardlang.torch.ranks import connected

Folder = str | os.PathLike[str]


def bind(
    compiled: Compiled | Folder, *, device: str | torch.device | None = None, group: Any = None,
    base: Folder | None = None, weights: Folder | None = None, resume: Folder | None = None,
) -> ShardModule:  # fmt: skip
    """A compiled program, or the folder that one was written to, as a module. All ranks call it.

    The ranks are those of `group`, or of torch.distributed where that has been started, or of
    torchrun, srun or `launch`; else this process is alone. device: by default a GPU for each rank,
    if there is one, else the CPU. base: the folder that the program's paths are relative to, by
    default that of its file, or, where `compiled` is a folder, the current one. weights: a
    safetensors file to begin with. resume: a checkpoint, or a folder of them, of which the newest
    whole one is taken. RunError where ranks, weights or checkpoint do not fit."""
    if weights is not None and resume is not None:
        raise ValueError("a program begins with `weights` or goes on by `resume`, not both")
    stack = ExitStack()
    try:
        program = _program(compiled, base, stack)
        load_own(program)
        connected(program.ranks, group, device)
        blocks.require(program, world.device.type)
        if weights is not None:
            names = program.init.names if program.init is not None else None
            program = replace(program, init=Safetensors(str(Path(weights).absolute()), names))
        stepper = Stepper(program)
        saved = resumed(stepper.model, Path(resume), _warn) if resume is not None else None
        net = ShardModule(program, stepper, saved)
    except BaseException:
        stack.close()
        raise
    weakref.finalize(net, stack.close)
    return net


def _warn(text: str) -> None:
    """Says why a checkpoint is passed over, once for all ranks."""
    if world.rank == 0:
        warnings.warn(text, stacklevel=5)


def _program(compiled: Compiled | Folder, base: Folder | None, stack: ExitStack) -> RunProgram:
    """The program, whose optimizers and checkpoints are the user's to have."""
    if isinstance(compiled, Compiled):
        # It stays: torch.compile and tracebacks read the text.
        folder = stack.enter_context(scratch("bind")).path
        compiled.write(folder)
        base = compiled.base if base is None else base
    elif isinstance(compiled, str | os.PathLike):
        folder = Path(compiled)
    else:
        raise TypeError(f"what is bound is a Compiled or its folder, not {type(compiled).__name__}")
    main = (folder / "main.py" if folder.is_dir() else folder).resolve()
    if not main.is_file():
        help = "shardlang.compile(..).write(folder), or shardc compile FILE --ranks N -o FOLDER"
        raise RunError("SH503", "there is no compiled program", file=main, help=help)
    program = read_program(main)
    return replace(program, base=Path(base or "."), optimizers=(), checkpoint=None, log=None)
