"""The training loop of one rank: batches through forward, backward and update, then evaluation,
figures and weights.

The loop is the same for every layout: what is communicated is in the emitted `forward` and in the
model's buckets. Starting the ranks is in launcher.py."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shardlang.checkpoints.index import INDEX
from shardlang.errors import RunError
from shardlang.runtime import compiled
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.primitives import exchanged
from shardlang.runtime.comm.record import record
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.data.loader import Batch, Loader, load, require_end
from shardlang.runtime.device import kind_of
from shardlang.runtime.events.start import loaded_files, settings, stream_of
from shardlang.runtime.events.stream import Asking
from shardlang.runtime.events.told import first_line, last_line
from shardlang.runtime.garbage import collected
from shardlang.runtime.logs import Log, taken
from shardlang.runtime.program import RunProgram, load_own, numbers_of
from shardlang.runtime.speed import Speed
from shardlang.runtime.state.best import Best
from shardlang.runtime.state.checkpoints import Checkpoints, SavedRun
from shardlang.runtime.state.weights import save
from shardlang.runtime.step import not_finite
from shardlang.runtime.step.asked import StepRequests
from shardlang.runtime.step.loss_scale import LossScale
from shardlang.runtime.step.profile import StepTrace
from shardlang.runtime.step.resume import checkpoints, facts, other_evaluation, resume
from shardlang.runtime.step.resume import save as save_checkpoint
from shardlang.runtime.step.stepper import Stepper
from shardlang.runtime.step.totals import Waiting, shown
from shardlang.runtime.step.watched import first
from shardlang.terminal.signals import SavedAndEnded

# Seconds for which a step's figures may be held back: what a live line does not show either.
_PAUSE = 0.1
# So many steps of a start may compile blocks.
_COMPILED = 2


def datasets(program: RunProgram) -> dict[str, Dataset]:
    """The data of a program, read; RunError where it cannot be, or is too little for one step."""
    load_own(program)
    read = {"data": load(program.data, program.base)}
    if program.epochs is not None:
        require_end(read["data"], "`epochs` asks for a number of them")
    if program.eval is not None:
        read["eval"] = load(program.eval, program.base, read["data"])
        require_end(read["eval"], "an evaluation goes through all examples")
    if (length := read["data"].length) < (batch := program.data.batch):
        fact = f"an epoch has no step: the source has {length} examples, and a batch is {batch}"
        help = f"a batch of at most {length}" if length else ""
        raise RunError("SH505", fact, file=next(iter(program.data.files), None), help=help)
    return read


class TrainingRun(Stepper):
    """One rank's run of a program over its data."""

    def __init__(self, program: RunProgram, data: Mapping[str, Dataset], log: Log) -> None:
        super().__init__(program, _PAUSE)
        self.log = log
        self.notes = [note for dataset in data.values() for note in dataset.notes]
        self.loader = Loader(program, program.data, data["data"])
        self.test = Loader(program, program.eval, data["eval"]) if program.eval is not None else None
        self.total = program.steps if program.steps is not None else (program.epochs or 0) * self.loader.batches
        self.checkpoints = checkpoints(program)
        self.asked, self.asking, self.stopped = StepRequests(), Asking(), False
        self.best = Best(program.evaluation)
        self.facts = facts(program, data["data"].length, data["eval"].length if self.test is not None else None)
        self.saved: SavedRun | None = None
        self._waiting: list[Waiting] = []
        # Milliseconds on the host by name, of steps whose figures are waited for; the last step
        # that had them.
        self._timed: dict[int, dict[str, float]] = {}
        self.shown: Callable[[Mapping[str, float]], dict[str, float]] = partial(shown, program)
        self._begun = self._logged = self._written = 0  # _written: a step of which there is a checkpoint
        self.kind = kind_of(world.device)
        self._restart()

    def _restart(self) -> None:
        """The next step's time begins now, for the host and for the device."""
        self._clock, self._moment = time.perf_counter(), self.kind.moment()

    def train(self, save_weights: Path | None = None) -> None:
        """All epochs, with an evaluation after each, or as often as is set, and at the end. Then
        the weights are saved, if that is asked for."""
        for line in (first_line(self.program, self.total), *load_own(self.program), *self.notes):
            self.log.note(line)
        self._resume()
        self.profile = StepTrace(self.program, self.total, self.step)
        self.speed = self._speed()
        every = (self.program.log or {"steps": 0})["steps"]
        self.log.start(self.total, self.loader.batches, self.speed, self.step, every)
        self._tell()
        self.figures.asks = self.log.asks
        self._restart()
        with numbers_of(self.program), collected(self.kind.collects) as self.tidy:
            self._epochs()
        if self.checkpoints is not None:
            with record.during("saving"):
                self.checkpoints.finish()
        self._require_finite()
        for line in self.speed.compared(exchanged) if self.kind.measures else ():
            self.log.note(line)
        if skipped := self.model.gradients.skipped:
            self.log.note(f"{skipped} of {self.step} steps updated nothing, as their gradients were not finite")
        why = "stopped" if self.stopped else "no better" if self.best.over else "finished"
        self.log.ended(why)
        self.log.end()
        if save_weights is not None:
            self.save(save_weights)
        best = self.best.so_far or self.log.lowest
        ended = "ended early" if why == "no better" else why
        self.log.note(last_line(self.program, f"{ended} after {self.log.taken}", best, save_weights, self.best.step))

    def _tell(self) -> None:
        """Rank 0 tells those who want to know what the run is, and of checkpoints."""
        if world.rank == 0 and (stream := stream_of(self.program)) is not None:
            self.asking = stream.asking
            for line in loaded_files(self.program):
                self.log.note(line)
            self.log.begin(stream, settings(self.program, self.total))
            if self.checkpoints is not None:
                self.checkpoints.told = lambda step, to: self.log.event("checkpoint", step, {"folder": str(to)})

    def _speed(self) -> Speed:
        program = self.program
        coordinate = program.mesh[program.stage_axis].index if program.pipeline is not None else 0
        planned = program.work.memory[coordinate] if program.work.memory else 0
        memory = partial(self.kind.peak_memory, world.device)
        return Speed(program.data.batch, program.work, world.size, memory, planned)

    def _epochs(self) -> None:
        epoch, within = divmod(self.step, self.loader.batches)
        due = self.saved is not None and self.saved.facts.get("evaluates") is True
        if self.step and (due or self._ends_with_evaluation()):
            # The checkpoint was written before this evaluation.
            self._evaluate(epoch + bool(within))
        while self.step < self.total and not self._over:
            epoch += 1
            self._epoch(epoch)
        self._report()

    @property
    def _over(self) -> bool:
        """Whether the run ends before its last step."""
        return self.best.over or self.stopped

    def _ends_with_evaluation(self) -> bool:
        """Whether an evaluation follows this step."""
        every = self.program.evaluation.every or self.loader.batches
        return self.test is not None and (self.step % every == 0 or self.step == self.total or self.stopped)

    def _resume(self) -> None:
        """Goes on from the latest checkpoint, if that is asked for and there is one."""
        if self.program.resume:
            self._go_on()
        elif self.program.overwrite and self.checkpoints is not None:
            if gone := self.checkpoints.clear():
                many = f"{gone} checkpoint{'s' * (gone > 1)}"
                self.log.note(f"{many} of an earlier run removed from {self.checkpoints.folder}: this run begins anew")
            self.checkpoints.put_aside(-1, self.log.note)
        if self.checkpoints is not None and self.step < self.total:
            every = self.program.evaluation.every or self.loader.batches
            self.checkpoints.require_way(self.total, self.step, every if self.best.figure else None)

    def _go_on(self) -> None:
        if self.checkpoints is None:
            help = 'add `checkpoint = every(100, keep = 4, to = "checkpoints")` to `train`'
            raise RunError("SH508", "there is no checkpoint to go on from: the program sets none", help=help)
        self.saved = resume(self.model, self.checkpoints.offered(), self.facts, self.log.note)
        if self.saved is None:
            self.log.note(f"no checkpoint in {self.checkpoints.folder}: the run starts anew")
            return
        latest, self.step = self.saved.folder, self.saved.step
        self.checkpoints.put_aside(self.step, self.log.note)
        for line in other_evaluation(self.facts, self.saved):
            compares = f"; `best` compares `{self.best.figure}` of both" if self.best.figure else ""
            self.log.note(f"{line}{compares}")
        self._take_best(self.saved, self.checkpoints)
        self._logged = self._written = self.step
        if self.step < self.total:
            self.log.note(f"goes on after step {self.step}, from {latest}")
            return
        more = f"steps={2 * self.step}" if self.program.steps else f"epochs={self.step // self.loader.batches + 1}"
        self.log.note(
            f"finished: {latest} is of step {self.step}, and the last step is {self.total}; "
            f"to train further: --resume --set train.{more}"
        )

    def _take_best(self, saved: SavedRun, to: Checkpoints) -> None:
        """Takes over the best evaluation so far, if it is of the same figure."""
        kept = saved.facts.get("best")
        if kept is None or not self.best.figure:
            return
        try:
            same = self.best.resumed(kept)
        except (KeyError, TypeError) as error:
            raise RunError("SH508", f"the index is damaged: {error!r}", file=saved.folder / INDEX) from None
        if same:
            to.best = self.best.step if self.best.value is not None else None
        else:
            self.log.note(f"looks for the best `{self.best.figure}` from here on: the checkpoint has another figure")

    def _epoch(self, epoch: int) -> None:
        for batch in self.loader.epoch(epoch, self.step % self.loader.batches):
            if self.step == self.total or self._over:
                return
            self.begin()
            with self.profile.step(self.step, self.log):
                self._step(epoch, batch)
            asked = self._asked()
            if self.checkpoints is not None:
                self._save(self.checkpoints, asked)
            if self._ends_with_evaluation() or "evaluate" in asked:
                self._report()
                self._evaluate(epoch, asked=not self._ends_with_evaluation())

    def _asked(self) -> frozenset[str]:
        """The requests of signals and callbacks after this step, the same on all ranks."""
        if self.checkpoints is None and not self.program.asks:
            return frozenset()
        asked = self.asked.after(self.step, self.asking.taken())
        if self.checkpoints is None:
            asked -= {"save"}
        for each, lacking in (("checkpoint", self.checkpoints is None), ("evaluate", self.test is None)):
            if lacking and each in asked:
                self.log.note(f"a callback asks for `{each}`, which the program does not set; the run goes on")
        if "stop" in asked and self.step < self.total:
            self.stopped = True
            self.log.note(f"ends after step {self.step}, as a callback asks")
        return asked

    def _save(self, to: Checkpoints, asked: frozenset[str]) -> None:
        """Writes a checkpoint if one is due or asked for, and ends the run if it is to save and
        end. RunError where an earlier one cannot be written."""
        to.check()
        last = "save" in asked
        if not asked - {"evaluate"} and not to.due(self.step, self.total):
            return
        self._report()  # a loss that is not finite ends the run before it is kept
        with record.during("saving"):
            self._write(to, self._kept(), self._ends_with_evaluation())
            if last:
                to.wait()
        if last and self.step < self.total:
            again = "--resume in place of --overwrite" if self.program.overwrite else "--resume"
            self.log.note(f"saved after step {self.step}: the same command with {again} goes on from there")
            self.log.ended("saved")
            raise SavedAndEnded(str(self.step))

    def _step(self, epoch: int, batch: Batch) -> None:
        """One step. Its figures are summed while backward runs, with those of the next steps where
        these are short, and read a step later, so that nothing waits for them."""
        held = self.figures.held
        figures, gradients = self.passes.step(batch), self.model.gradients
        gradients.wanted = self._tells(held)
        with self.profile.part("update"):
            updated = self.model.update(self.step, self.total)
        norm = self.kind.fetched(gradients.norm) if gradients.norm is not None else None
        if not updated:
            self._left_out(gradients.scale)
        elapsed, begin = time.perf_counter() - self._clock, self._moment
        self._restart()
        self._begun += 1
        if self._begun > _COMPILED * compiled.Compiling.on:
            record.took(elapsed)
        self._report(held)
        lr = self.model.lr
        more = {} if lr is None else {"lr": self.model.rates.at(lr, self.step, self.total)}
        if gradients.skips:
            more["skipped"] = gradients.skipped
        self._waiting.append(Waiting(self.step, epoch, (begin, self._moment), figures, more, norm, self.shown))
        self.tidy(self.step)
        if self._logs():
            self._timed[self.step] = taken(self.step - self._logged)
            self._logged = self.step

    def _logs(self) -> bool:
        """Whether each rank's log has a line of this step."""
        return self.program.log is not None and self.step % self.program.log["steps"] == 0

    def _tells(self, held: int) -> bool:
        """Whether the norm of this step's gradients is told though nothing in the step needs it:
        where all wants are, where figures begin to be summed, and where something is kept or stays
        on the screen. The same on all ranks."""
        if not held or self.figures.each or self.log.stays(self.step):
            return True
        due = self.checkpoints is not None and self.checkpoints.due(self.step, self.total)
        return due or self._ends_with_evaluation()

    def _left_out(self, scale: LossScale | None) -> None:
        """Says that the step updates nothing, and by what the loss is multiplied from now on;
        RunError where that is below 1."""
        if scale is None:
            self.log.note(f"step {self.step} updates nothing: a gradient is not finite")
            return
        if (factor := scale.factor) < 1.0:
            fact = f"the gradients of step {self.step} are not finite in f16, even with the loss as it is"
            raise RunError("SH506", fact, help="`precision = bf16`, whose numbers may be as large as those of f32")
        fact = f"step {self.step} updates nothing: a gradient is too large for f16"
        self.log.note(f"{fact}; from now on the loss is multiplied by {factor:g}")

    def _report(self, held: int = 0) -> None:
        """Passes on the figures of unreported steps, except the last `held`."""
        while len(self._waiting) > held:
            done = self._waiting.pop(0)
            step, epoch, (figures, norm) = done.step, done.epoch, done.wait()
            when = f"at step {step} (epoch {epoch})"
            if not math.isfinite(figures["loss"]):
                raise self._wrong(step, f"the loss is {figures['loss']} {when}")
            if not math.isfinite(norm) and not self.model.gradients.skips:
                raise self._wrong(step, f"the gradients are not finite {when}: their norm is {norm}")
            seconds, told = self.kind.between(*done.moments), done.norm is not None
            self.log.step(step, epoch, figures, seconds, self._timed.pop(step, None), told)

    def _wrong(self, step: int, fact: str) -> RunError:
        """The message about what is not finite in a step; all ranks ask for it."""
        return not_finite.error(self.program, self.loader, self.saved, step, fact, partial(first, self, step))

    def _require_finite(self) -> None:
        """RunError where a parameter that was trained is not finite at the end."""
        if self._begun and (found := not_finite.in_parameters(self.model)) is not None:
            raise self._wrong(self.step, f"{found} after step {self.step}")

    def _evaluate(self, epoch: int, asked: bool = False) -> None:
        """asked: besides those that are set, so that it has no part in which is best."""
        if self.test is None or self.program.finish is None:
            return
        with record.during("evaluating"), self.model.averaged() if self.program.evaluation.ema else nullcontext():
            figures = self.evaluation(self.test.once())
        self.log.evaluation(epoch, self.step, figures, asked or self.program.evaluation.every is not None)
        if not all(map(math.isfinite, figures.values())):
            for note in not_finite.notes(self.test):
                self.log.note(note)
        if not asked:
            self._judge(figures)
        self._restart()

    def _write(self, to: Checkpoints, best: Mapping[str, Any] | None, evaluates: bool) -> None:
        """A checkpoint of this step, from which a run goes on with an evaluation if this one
        `evaluates`, however often it is set to then. best: before that evaluation."""
        evaluates, self._written = evaluates and self.test is not None, self.step
        save_checkpoint(self.model, to, {**self.facts, "evaluates": evaluates}, self.step, best)

    def _kept(self) -> dict[str, Any] | None:
        return self.best.kept() if self.best.figure else None

    def _judge(self, figures: Mapping[str, float]) -> None:
        """Keeps the checkpoint of the best evaluation, and says so where the run ends for lack of a
        better one. A checkpoint that is written then has the best before this evaluation, because a
        run that goes on from there makes it again."""
        before, best = self._kept(), self.best
        better = best.told(figures, self.step)
        to = self.checkpoints
        if to is not None:
            to.best = best.step if best.value is not None else None
            if (better or best.over) and self._written != self.step:
                with record.during("saving"):
                    self._write(to, before, True)
        if best.over and self.step < self.total:
            self.log.note(f"ends after step {self.step}: {best.why_over}")

    def save(self, path: Path) -> None:
        """Writes the weights whole; all ranks take part."""
        with torch.no_grad():
            save(self.program, path, self.model.blocks())


def require_ranks(program: RunProgram, size: int) -> None:
    """RunError where a program, which is laid out for one number of ranks, is started on
    another."""
    if program.ranks != size:
        fact = f"the program is laid out for {program.ranks} ranks and was started on {size}"
        help = f"torchrun --nproc-per-node {program.ranks} main.py, or compile it with --ranks {size}"
        raise RunError("SH503", fact, help=help)


def run(program: RunProgram, data: Mapping[str, Dataset], log: Log, save_weights: Path | None) -> None:
    """The whole run of this rank, once connected."""
    require_ranks(program, world.size)
    training = TrainingRun(program, data, log)
    with compiled.told():
        training.train(save_weights)
