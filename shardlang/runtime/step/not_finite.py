"""Where a loss, a gradient or a weight that is not finite comes from: a cell of the data, a number
of the given weights, or the computation.

It is looked for once the run has failed, so nothing of it is in a step. Every rank looks at whole
files, or at its part of a batch and is told what the others have found: all find the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shardlang.errors import RunError
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.comm.primitives import AsyncResult, begin_reduce, exchanged
from shardlang.runtime.comm.record import about
from shardlang.runtime.data.dataset import Arrays
from shardlang.runtime.data.loader import Loader
from shardlang.runtime.device import kind_of
from shardlang.runtime.finite import broken, shown
from shardlang.runtime.program import Extent, Parameter, RunProgram
from shardlang.runtime.state.checkpoints import SavedRun
from shardlang.runtime.step.model import RankModel, given_weights
from shardlang.runtime.step.resume import offsets

# Numbers of a file of weights that are looked at at once.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class NonFinite:
    """A number that is not finite: what is told of it, and where it stands."""

    what: str
    file: Path | None
    help: str
    line: int | None = None


def error(
    program: RunProgram, loader: Loader, saved: SavedRun | None, step: int, fact: str,
    watched: Callable[[], str] = str,
) -> RunError:  # fmt: skip
    """The message about a step, of which `fact` says what is not finite; all ranks call it. saved:
    the checkpoint that the run goes on from. watched: gives the first number of the computation
    that is not finite, if it finds it."""
    found = _in_batches(loader, step) or (_in_weights(program) if saved is None else _in_checkpoint(saved))
    if found is not None:
        return RunError("SH506", f"{fact}: {found.what}", file=found.file, line=found.line, help=found.help)
    begun = "checkpoint" if saved is not None else "given weights" if program.init is not None else "initial weights"
    help = "look for a division by zero, the logarithm of zero, or a batch whose labels are all ignored"
    if step > 1:
        help = f"a smaller learning rate, or clip, may keep it finite; else {help}"
    if program.not_finite != "skip":
        help += "; `not_finite = skip` leaves out a step whose gradients are not finite"
    fact += f"; the batch and the {begun} are finite, so it arose in the computation"
    if first := watched():
        fact += f"; first, {first}"
    return RunError("SH506", fact, help=help)


def _in_batches(loader: Loader, step: int) -> NonFinite | None:
    """A number of the step's batch, or of that before it: an infinite one may leave its own loss
    finite and make the gradient not a number, which the next loss shows."""
    whole = isinstance(loader.dataset, Arrays)
    steps = [at for at in (step, step - 1) if at]
    found = (_in_examples(loader, loader.examples(at)) if whole else _in_parts(loader, at) for at in steps)
    return next((each for each in found if each is not None), None)


def _in_parts(loader: Loader, step: int) -> NonFinite | None:
    """A number of a batch that is made as it is asked for: each rank makes its part again."""
    told = next((each for each in exchanged(_in_part(loader, step)) if each is not None), None)
    file = loader.own.file if loader.own is not None else None
    help = "give a number there, or leave the example out"
    return None if told is None else NonFinite(told, file, help)


def _in_part(loader: Loader, step: int) -> str | None:
    examples = loader.examples(step)
    for part, blocks in zip(loader.batch(step), loader.blocks, strict=True):
        for field, block in zip(loader.fields, blocks, strict=True):
            if (at := broken(x := part[field.name])) is not None:
                number = shown(x[at[0]], at[1:], block.offsets[1:])
                return f"`{field.name}` {number} in example {examples[block.offsets[0] + at[0]]}"
    return None


def notes(loader: Loader) -> list[str]:
    """The message about an evaluation with figures that are not finite: its first such number."""
    found = _in_examples(loader, np.arange(loader.dataset.length))
    if found is None:
        return []
    return [f"{found.what}: {found.file}" + ("" if found.line is None else f":{found.line}")]


def _in_examples(loader: Loader, examples: np.ndarray) -> NonFinite | None:
    """The first number that is not finite in any field of some examples."""
    data = loader.dataset
    if not isinstance(data, Arrays):
        return None
    for name, array in data.arrays.items():
        wrong = ~np.isfinite(values := array[examples])
        if wrong.any():
            row, *index = (int(i) for i in np.argwhere(wrong)[0])
            example, at = int(examples[row]), f" at {index}" if index else ""
            line = data.origin.line(example)
            where = f" in example {example}" if line is None else ""
            what = f"`{name}` is {values[(row, *index)]}{at}{where}"
            return NonFinite(what, data.origin.file, "mend the number in the file, or leave the example out", line)
    return None


def _in_weights(program: RunProgram) -> NonFinite | None:
    weights = given_weights(program)
    for tensor in program.tensors if weights is not None else ():
        for block in Extent((0,) * len(tensor.shape), tensor.shape).by_rows(_AT_ONCE):
            assert weights is not None
            part = weights.read(tensor, block, torch.float32)
            # A state may be infinite, as a mask is.
            if (at := broken(part, infinite=not isinstance(tensor, Parameter))) is not None:
                what = f"`{tensor.path}` {shown(part, at, block.offsets)} in the weights that the run began with"
                return NonFinite(what, weights.path, "mend the file, or begin with other weights")
    return None


def in_parameters(model: RankModel) -> str | None:
    """The first number that is not finite of what any rank trains; all ranks call it."""
    learning = [t for t in model.parameters if not t.frozen]
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for tensor in learning:
        total += model.trained[tensor.path].detach().sum().to(world.device)
    with about(b"whether the weights are finite"):
        coming = begin_reduce(total, everyone(), own=True) if world.size > 1 else AsyncResult(total)
        if bool(kind_of(world.device).fetched(coming.wait)().isfinite()):
            return None
        told = exchanged(_in_trained(model, learning))
    return next((each for each in told if each is not None), None)


def _in_trained(model: RankModel, learning: Sequence[Parameter]) -> str | None:
    for tensor in learning:
        if (at := broken(x := model.trained[tensor.path].detach())) is not None:
            return f"`{tensor.path}` {shown(x, at, offsets(model, tensor))}"
    return None


def _in_checkpoint(saved: SavedRun) -> NonFinite | None:
    for name, first, part in saved.parts():
        if (at := broken(part, infinite=True)) is not None:
            what = f"`{name}` {shown(part, at, first)} in the checkpoint that the run goes on from"
            return NonFinite(what, saved.folder, "go on from an earlier checkpoint, or start anew by --overwrite")
    return None
