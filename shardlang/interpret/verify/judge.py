"""Three executions of a program held against each other: emitted on real ranks, planned on
simulated ranks, one device.

`start` runs the emitted program on real ranks and keeps what they recorded; `judge` then executes
the other two step by step and compares. Starting forks, so it must come before anything here has
computed: threads do not survive a fork."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.interpret.meaning import initial, whole
from shardlang.interpret.ranks import ranks
from shardlang.interpret.ranks.optimizers import Optimizers
from shardlang.interpret.ranks.ranks import CannotRun
from shardlang.interpret.ranks.stored import storage
from shardlang.interpret.verify.batches import Batches, drawn, own
from shardlang.interpret.verify.compare import Comparison, ValueDifference
from shardlang.interpret.verify.emitted import StepRecords
from shardlang.plan.plan import Plan
from shardlang.runtime.launch.devices import DeviceChoice
from shardlang.runtime.launch.launcher import launch_program, read_program
from shardlang.runtime.launch.observe import RecordedRun
from shardlang.runtime.program import Extent, RunProgram
from shardlang.runtime.step.model import given_weights

TYPES = {"f64": torch.float64, "f32": torch.float32}
# Of the greatest magnitude of a value. In float32 a sum of a thousand numbers is off by 1e-5 of its
# parts, and a gradient is what is left of larger parts.
TOLERANCES = {"f64": 1e-9, "f32": 1e-3}
Progress = Callable[[str], None]


@dataclass(frozen=True)
class VerifyJob:
    """plan: in the element type of the comparison (see elements.py), as the files in `folder` were
    emitted from it.

    base: the folder that the program's paths are relative to. random: draw batches even where there
    are data."""

    plan: Plan
    folder: Path
    base: Path
    dtype: str = "f64"
    steps: int = 3
    real: bool = True
    random: bool = False

    @property
    def records(self) -> Path:
        """Where real ranks write down what they compute."""
        return self.folder / "records"


@dataclass(frozen=True)
class StartedJob:
    """A job whose real ranks have run: its batches, and the recorded run (None without one)."""

    job: VerifyJob
    batches: Batches
    trial: RecordedRun | None
    failed: bool = False

    def records(self, step: int) -> StepRecords | None:
        """The records of all ranks of a step; None where one did not come so far."""
        found = [self.trial.read(step, rank) for rank in range(self.job.plan.ranks)] if self.trial is not None else []
        records = [record for record in found if record is not None]
        return StepRecords(self.job.plan, records) if records and len(records) == len(found) else None


@dataclass(frozen=True)
class Verdict:
    """simulated, emitted (None without real ranks): against one device. failed: a rank did."""

    simulated: Comparison
    emitted: Comparison | None
    drawn: str
    failed: bool = False

    @property
    def ok(self) -> bool:
        return self.difference is None and not self.failed

    @property
    def difference(self) -> ValueDifference | None:
        """The first, of either."""
        found = [r.difference for r in (self.simulated, self.emitted) if r is not None and r.difference is not None]
        return min(found, key=lambda d: (d.step, d.order), default=None)

    @property
    def culprit(self) -> str:
        """The one that differs from one device: "emitted", "plan", "both", or "" if all agree."""
        plan = self.simulated.difference is not None
        emitted = self.emitted is not None and self.emitted.difference is not None
        return "both" if plan and emitted else "plan" if plan else "emitted" if emitted else ""


def start(job: VerifyJob, progress: Progress = lambda _: None) -> StartedJob:
    """Reads the data and runs the real ranks, with output to stderr. RunError if it cannot."""
    main = (job.folder / "main.py").resolve()
    program = read_program(main)
    program.base, program.precision = job.base, job.dtype
    # What a trial trains is nobody's: it writes no checkpoints, and drops none.
    program.checkpoint, program.log = None, None
    graph = job.plan.graph
    batches, why = None, "--random-data"
    try:
        batches = None if job.random else own(program, graph)
    except RunError as error:
        why = f"{error.message}: {error.file}" if error.file is not None else error.message
    batches = batches or drawn(program, graph, job.steps, why)
    if not job.real:
        return StartedJob(job, batches, None)
    progress(f"training on {job.plan.ranks} real ranks")
    job.records.mkdir()
    files = frozenset(str(p.resolve()) for p in job.folder.glob("*.py"))
    trial = RecordedRun(min(job.steps, batches.total), job.records, files)
    code = launch_program(
        batches.program, main, job.plan.ranks, devices=DeviceChoice("cpu"), log_dir=job.folder / "logs", metrics=None,
        save_weights=None, work=trial, data=batches.data,
    )  # fmt: skip
    return StartedJob(job, batches, trial, code != 0)


class Judge:
    """Takes one device and the simulated ranks through the steps of a run, beside what real ranks
    have recorded. total: steps of the whole run."""

    def __init__(self, plan: Plan, seed: int, total: int, tolerance: float) -> None:
        self.plan, self.seed = plan, seed
        self.alone, self.together = Optimizers(plan, total), Optimizers(plan, total)
        self.simulated, self.emitted = (Comparison(plan, tolerance, Optimizers(plan, total)) for _ in range(2))

    def begin(self, params: Mapping[int, Tensor], seen: StepRecords) -> None:
        """Compares the parameters that real ranks begin with."""
        self.emitted.step = 0
        self.emitted.note(d for stored in seen.parameters() for d in self.emitted.stored(stored, params))

    def step(
        self, step: int, fields: Mapping[int, Tensor], params: dict[int, Tensor], seen: StepRecords | None = None
    ) -> dict[int, Tensor]:
        """The parameters and states with which all begin the next step: those that real ranks have,
        as long as there are any, else one device's. fields: the whole batch."""
        theirs = whole.run(self.plan.graph, fields, params, step=step, seed=self.seed)
        rows = self.alone.looked_up(theirs.parts_of)
        left = theirs
        if self.alone.leaves_out(self.alone.norm_of_wholes(params, theirs.gradients)):
            left = replace(theirs, states={v: params[v] for v in theirs.states})
        after = {**params, **left.states, **self.alone.whole(params, theirs.gradients, rows)}
        if seen is not None and not self.emitted.end:
            after = {**after, **self._emitted(step, seen, left, params, rows)}
        if not self.simulated.end:
            self._simulated(step, fields, theirs, params, rows)
        return after

    def _simulated(
        self, step: int, fields: Mapping[int, Tensor], theirs: whole.WholeResults, params: Mapping[int, Tensor],
        rows: Mapping[int, Tensor],
    ) -> None:  # fmt: skip
        comparison, kept = self.simulated, ranks.store(self.plan, params)
        comparison.step = step
        try:
            mine = ranks.run(self.plan, fields, kept, step=step, seed=self.seed)
        except CannotRun as failure:
            comparison.cannot(failure, theirs)
            return
        comparison.results(mine, theirs)
        if comparison.end:
            return
        stored, parts = mine.stored, self.together.looked_up(mine.parts_of)
        del mine  # of many ranks the values and gradients take more memory than what is stored
        expected = comparison.optimizers.from_ranks(params, stored, rows)
        comparison.note(comparison.stored(self.together.stored(kept, stored, parts), expected))

    def _emitted(
        self, step: int, seen: StepRecords, theirs: whole.WholeResults, params: Mapping[int, Tensor],
        rows: Mapping[int, Tensor],
    ) -> dict[int, Tensor]:  # fmt: skip
        """The parameters and states of real ranks after the step; nothing if none came so far."""
        comparison, mine = self.emitted, seen.results()
        comparison.step = step
        done = all(record.done for record in seen.records)
        comparison.results(mine, theirs, done)
        if not done or comparison.end:
            return {}
        # A parameter that several stages have was compared in the first of them so far.
        further = (comparison.stored(x, theirs.gradients, "stored gradient") for x in list(seen.reduced())[1:])
        expected = comparison.optimizers.from_ranks(params, mine.stored, rows)
        copies = list(seen.parameters())
        stored = (comparison.stored(x, {**params, **expected}) for x in copies)
        comparison.note(itertools.chain.from_iterable(itertools.chain(further, stored)))
        return {v: storage(self.plan, v).assembled(parts) for v, parts in {**copies[0], **mine.states}.items()}


def judge(started: StartedJob, progress: Progress = lambda _: None) -> Verdict:
    """Compares, to the relative error of the job's element type."""
    job, batches, real = started.job, started.batches, started.trial is not None
    judge = Judge(job.plan, batches.program.seed, batches.total, TOLERANCES[job.dtype])
    params = _initial(job, batches.program)
    if (seen := started.records(0)) is not None:
        judge.begin(params, seen)
    steps, step = min(job.steps, batches.total), 0
    sides = [judge.simulated, judge.emitted] if real else [judge.simulated]
    while step < steps and all(side.ok for side in sides) and not all(side.end for side in sides):
        step += 1
        progress(f"step {step} of {steps} on one device and {job.plan.ranks} simulated ranks")
        params = judge.step(step, batches.next(), params, started.records(step))
        for side in sides:
            side.alone = None  # one device's results take memory, and a verdict stays
    return Verdict(judge.simulated, judge.emitted if real else None, batches.drawn, started.failed)


def _initial(job: VerifyJob, program: RunProgram) -> dict[int, Tensor]:
    """Initial parameters and states, whole; from the program's file of weights if any."""
    graph, given = job.plan.graph, given_weights(program)
    if given is None:
        return initial.initial(graph, program.seed)
    tensors = {t.path: t for t in program.tensors}
    whole = ((v, tensors[graph.values[v].path]) for v in (*graph.params, *graph.states))
    return {v: given.read(t, Extent((0,) * len(t.shape), tuple(t.shape)), TYPES[job.dtype]) for v, t in whole}
