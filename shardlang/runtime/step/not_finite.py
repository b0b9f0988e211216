"""Where a loss that is not finite comes from: a cell of the data, a number of the given weights, or
the computation.

It is looked for once the run has failed, so nothing of it is in a step. Every rank looks at the
whole batch and the whole files, and finds the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime.data.dataset import Arrays
from shardlang.runtime.data.loader import Loader
from shardlang.runtime.program import Block, Parameter, Program
from shardlang.runtime.state.checkpoints import SavedRun
from shardlang.runtime.step.model import given_weights

# Numbers of a file of weights that are looked at at once.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Found:
    """A number that is not finite: what is told of it, and where it stands."""

    what: str
    file: Path
    help: str
    line: int | None = None


def error(
    program: Program, loader: Loader, saved: SavedRun | None, step: int, epoch: int, loss: float,
    watched: Callable[[], str] = str,
) -> RunError:  # fmt: skip
    """The message about the loss of a step. saved: the checkpoint that the run goes on from.
    watched: gives the first number of the computation that is not finite, if it finds it."""
    fact = f"the loss is {loss} at step {step} (epoch {epoch})"
    found = _in_batches(loader, step) or (_in_weights(program) if saved is None else _in_checkpoint(saved))
    if found is not None:
        return RunError("SH506", f"{fact}: {found.what}", file=found.file, line=found.line, help=found.help)
    begun = "checkpoint" if saved is not None else "given weights" if program.init is not None else "initial weights"
    help = "look for a division by zero, the logarithm of zero, or a batch whose labels are all ignored"
    if step > 1:
        help = f"a smaller learning rate, or clip, may keep it finite; else {help}"
    fact += f"; the batch and the {begun} are finite, so it arose in the computation"
    if first := watched():
        fact += f"; first, {first}"
    return RunError("SH506", fact, help=help)


def _in_batches(loader: Loader, step: int) -> Found | None:
    """A number of the step's batch, or of that before it: an infinite one may leave its own loss
    finite and make the gradient not a number, which the next loss shows."""
    found = (_in_examples(loader, loader.examples(at)) for at in (step, step - 1) if at)
    return next((each for each in found if each is not None), None)


def notes(loader: Loader) -> list[str]:
    """The message about an evaluation with figures that are not finite: its first such number."""
    found = _in_examples(loader, np.arange(loader.dataset.length))
    if found is None:
        return []
    return [f"{found.what}: {found.file}" + ("" if found.line is None else f":{found.line}")]


def _in_examples(loader: Loader, examples: np.ndarray) -> Found | None:
    """The first number that is not finite in any field of some examples."""
    data = loader.dataset
    if not isinstance(data, Arrays):
        return None
    for name, array in data.arrays.items():
        broken = ~np.isfinite(values := array[examples])
        if broken.any():
            row, *index = (int(i) for i in np.argwhere(broken)[0])
            example, at = int(examples[row]), f" at {index}" if index else ""
            line = data.origin.line(example)
            where = f" in example {example}" if line is None else ""
            what = f"`{name}` is {values[(row, *index)]}{at}{where}"
            return Found(what, data.origin.file, "mend the number in the file, or leave the example out", line)
    return None


def _in_weights(program: Program) -> Found | None:
    weights = given_weights(program)
    for tensor in program.tensors if weights is not None else ():
        for block in Block((0,) * len(tensor.shape), tensor.shape).by_rows(_AT_ONCE):
            assert weights is not None
            part = weights.read(tensor, block, torch.float32)
            # A state may be infinite, as a mask is.
            broken = ~part.isfinite() if isinstance(tensor, Parameter) else part.isnan()
            if broken.any():
                what = f"`{tensor.path}` {_first(part, broken, block.offsets)} in the weights that the run began with"
                return Found(what, weights.path, "mend the file, or begin with other weights")
    return None


def _in_checkpoint(saved: SavedRun) -> Found | None:
    for name, offsets, part in saved.parts():
        broken = part.isnan()
        if broken.any():
            what = f"`{name}` {_first(part, broken, offsets)} in the checkpoint that the run goes on from"
            return Found(what, saved.folder, "go on from an earlier checkpoint, or start anew by --overwrite")
    return None


def _first(part: Tensor, broken: Tensor, offsets: Sequence[int]) -> str:
    """The first of the numbers that are broken, and where it is in the whole."""
    at = tuple(int(i) for i in broken.nonzero()[0])
    index = [i + start for i, start in zip(at, offsets, strict=True)]
    return f"is {part[at].item()}" + (f" at {index}" if index else "")
