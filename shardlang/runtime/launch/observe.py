"""Watches an emitted program as a rank runs it: what each function computed, its gradients, what
became of parameters.

The program is not changed: a trace of Python's calls tells when one of its functions returns, and
its local variables are then what its lines have computed; hooks take their gradients during
backward. `trial` is a run of some steps that is written down, a file for each step and rank. It
does not know the expected values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from shardlang.facts.figures import BESIDE
from shardlang.runtime.citations import tracing
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.train import TrainingRun, require_ranks
from shardlang.runtime.tree import layer_of

Named = dict[str, Tensor]


@dataclass
class RecordedCall:
    """One call of an emitted function: its local tensors by name, and their gradients.

    file: of the emitted program ("main.py"). layer: the path of the layer whose function it is; ""
    for the whole model. inner: of a function within `function`. aliases: names of a tensor that an
    earlier name (or a parameter) stands for already: its gradient is counted there."""

    file: str
    function: str
    microbatch: int
    layer: str = ""
    inner: bool = False
    values: Named = field(default_factory=dict)
    gradients: Named = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)


@dataclass
class StepRecord:
    """The values of one rank in one step.

    gradients: of parameters, local, by microbatch. reduced: of what the rank stores of each
    parameter, as the optimizer is given it, before clipping. parameters, states: as stored, after
    the step (step 0: as they begin). figures: the loss and the metrics that the run reports. done:
    the step came to its end."""

    step: int
    calls: list[RecordedCall] = field(default_factory=list)
    gradients: dict[int, Named] = field(default_factory=dict)
    reduced: Named = field(default_factory=dict)
    parameters: Named = field(default_factory=dict)
    states: Named = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    done: bool = False


def copied(tensors: Mapping[str, Tensor]) -> Named:
    return {name: x.detach().to("cpu", copy=True) for name, x in tensors.items()}


class Observer:
    """Traces the calls of a program's own functions, and hooks their values, into `record`."""

    def __init__(self, files: frozenset[str]) -> None:
        self.files = files
        self.record = StepRecord(0)
        self.leaves: set[int] = set()

    def begin(self, step: int, leaves: Mapping[str, Tensor]) -> None:
        """A new record. leaves: the parameters that the functions read, by path."""
        self.record = StepRecord(step)
        self.leaves = {id(leaf) for leaf in leaves.values()}

    def on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        """Python's trace function: looks only at functions of an emitted file, as they end."""
        code = frame.f_code
        if code.co_filename not in self.files or code.co_name.startswith("<"):
            return None
        frame.f_trace_lines = False
        return self.on_return

    def on_return(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            self._take(frame)
        return self.on_return

    def _take(self, frame: FrameType) -> None:
        """All tensors and numbers that the function's names stand for; each is bound once, so
        nothing has been overwritten. A number is one of the program's own, joined to a pending sum.
        """
        code = frame.f_code
        function, inner, _ = code.co_qualname.partition(".<locals>.")
        around: FrameType | None = frame
        while around is not None and (around.f_code.co_name, around.f_code.co_filename) != (function, code.co_filename):
            around = around.f_back
        if around is None:  # called again in backward, outside of its function
            return
        at = layer_of(around.f_locals)
        call = RecordedCall(Path(code.co_filename).name, function, world.microbatch, at, bool(inner))
        self.record.calls.append(call)
        seen = set(self.leaves)
        for name, x in frame.f_locals.items():
            if isinstance(x, (int, float)):
                call.values[name] = torch.tensor(x, dtype=torch.float64)
            if not isinstance(x, Tensor):
                continue
            call.values[name] = x.detach().to("cpu", copy=True)
            if id(x) in seen:
                call.aliases.append(name)
            elif x.requires_grad:
                seen.add(id(x))
                x.register_hook(partial(_keep, call.gradients, name))

    def on_gradient(self, path: str, gradient: Tensor) -> None:
        """A hook: the gradient of a parameter, of the current microbatch. It comes in two parts if
        backward goes to inputs and parameters apart."""
        found, part = self.record.gradients.setdefault(world.microbatch, {}), _copied(gradient)
        found[path] = found[path] + part if path in found else part


def _keep(found: Named, name: str, gradient: Tensor) -> None:
    """A hook: adds a part of a value's gradient. All of it comes again, number for number, where
    the second half of a backward begins."""
    part = _copied(gradient)
    if name not in found:
        found[name] = part
    elif not torch.equal(found[name].nan_to_num(), part.nan_to_num()):
        found[name] = found[name] + part


def _copied(gradient: Tensor) -> Tensor:
    return _whole(gradient.detach()).to("cpu", copy=True)


def _whole(gradient: Tensor) -> Tensor:
    """A gradient with all of its elements: of rows, zeros in the others."""
    return gradient.to_dense() if gradient.is_sparse else gradient


class FigureLog(Log):
    """Takes in the figures of each step in place of showing them."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.steps: dict[int, dict[str, float]] = {}

    def step(
        self, step: int, epoch: int, figures: Mapping[str, float], seconds: float,
        hosted: Mapping[str, float] | None = None, whole: bool = True,
    ) -> None:  # fmt: skip
        self.steps[step] = {name: float(figures[name]) for name in figures if name not in BESIDE}

    def evaluation(self, epoch: int, step: int, figures: Mapping[str, float], by_step: bool = False) -> None:
        """Nothing: a trial has no evaluations."""


@dataclass
class RecordedRun:
    """A recorded run of `steps` steps, written to `folder`: `3-of-1.pt` is the record of rank 1 in
    step 3.

    files: the emitted files. Called in each rank in the place of `train.run`."""

    steps: int
    folder: Path
    files: frozenset[str]

    def __call__(self, program: RunProgram, data: Mapping[str, Dataset], log: Log, save_weights: Path | None) -> None:
        require_ranks(program, world.size)
        figures = FigureLog()
        run = TrainingRun(replace(program, eval=None), data, figures)
        run.shown = dict  # what the ranks sum up, also where a run only makes metrics of it
        observer = Observer(self.files)
        self._watch(run, observer)
        # The length of the whole run stays what it is: schedules of the learning rate depend on it.
        run.total = min(self.steps, run.total)
        try:
            with tracing(observer.on_call):
                run.train()
        finally:
            self._write(observer.record)
            if world.rank == 0:
                torch.save(figures.steps, self.folder / "figures.pt")

    def _watch(self, run: TrainingRun, observer: Observer) -> None:
        """Puts the taking of records around the model's update, which ends each step."""
        model, total, update = run.model, run.total, run.model.update
        hooked = {path: leaf for path, leaf in model.leaves.items() if leaf.requires_grad and path not in model.stored}
        for path, leaf in hooked.items():
            leaf.register_hook(partial(observer.on_gradient, path))
        observer.record = StepRecord(0, parameters=copied(model.trained), states=copied(model.states), done=True)
        self._write(observer.record)

        def observed(step: int, _: int) -> None:
            record = observer.record
            record.reduced = copied({p: _whole(x.grad) for p, x in model.trained.items() if x.grad is not None})
            update(step, total)
            record.parameters, record.states = copied(model.trained), copied(model.states)
            record.done = True
            self._write(record)
            observer.begin(step + 1, hooked)

        model.update = observed
        observer.begin(1, hooked)

    def _write(self, record: StepRecord) -> None:
        path = self.file(record.step, world.rank)
        if record.step <= self.steps and not path.exists():
            torch.save(asdict(record), path)

    def file(self, step: int, rank: int) -> Path:
        return self.folder / f"{step}-of-{rank}.pt"

    def read(self, step: int, rank: int) -> StepRecord | None:
        """The record of a rank, once it has run; None where it has not come so far."""
        if not self.file(step, rank).exists():
            return None
        found = torch.load(self.file(step, rank), weights_only=True)
        record = StepRecord(**{**found, "calls": [RecordedCall(**call) for call in found["calls"]]})
        figures = self.folder / "figures.pt"
        record.figures = torch.load(figures, weights_only=True).get(step, {}) if figures.exists() else {}
        return record
