"""A stage's part of a microbatch -> the memory that its forward and its backward take, as torch's
autograd runs them.

Forward keeps what backward reads, and what names of the program hold. Backward goes from the last
operator to the first: the gradient of a value lives until all that reads it has given its part and
what makes it has taken it; what an operator has kept goes with it. Values that are computed again
are there from the first that asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardlang.folds.peak.casts import cast_together
from shardlang.folds.peak.flowing import FLOWING, Backward, FlowingGradient
from shardlang.folds.peak.frames import Frames
from shardlang.folds.peak.ledger import OVER, USED, WHOLE, Event, Ledger
from shardlang.folds.peak.moves import move_work
from shardlang.graph.graph import Kind
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.working_memory import WorkingMemory
from shardlang.plan.plan import Step
from shardlang.plan.reads import Form, final_form, form, inputs, layout_of, makes, transfers
from shardlang.step.parameters import gradient_bytes
from shardlang.step.passes import StagePasses
from shardlang.step.saved_activations import form_bytes, fused
from shardlang.step.units import PassWay, PassWork, received

KEPT, NAMED, MESSAGES = "activations", "values", "messages"


class StagePass:
    """Both passes of a stage."""

    def __init__(self, passes: StagePasses, windows: Sequence[int]) -> None:
        self.plan, self.passes, self.steps, self.windows = passes.plan, passes, passes.steps, windows
        self.facts, self.units, self.kept = passes.facts, passes.units, passes.kept
        self.frames = Frames(passes)
        self.fused = fused(self.plan)
        self._sizes: dict[tuple[int, int], int] = {}
        together = cast_together(self.plan, passes.stage, self.steps)
        self.together = {read: at for read, at in together.items() if passes.takes(self.steps[at])}
        self.ends = self.frames.of_forward()

    def size(self, form: Form) -> int:
        """Bytes of a form on the device."""
        value, layout = self.plan.graph.values[form[0]], layout_of(self.plan, form)
        key = id(value.type), id(layout)
        if key not in self._sizes:
            self._sizes[key] = form_bytes(self.plan, form)
        return 0 if form[0] in self.plan.memory_of else self._sizes[key]

    def _gradient(self, form: Form) -> int:
        """Bytes of the gradient of a form: of a table that a batch looks up, rows."""
        param = self.plan.params.get(form[0])
        return gradient_bytes(self.plan, param) if param is not None and param.sparse else self.size(form)

    # --- forward

    def forward(self) -> Ledger:
        """From the fields of the batch, or what is received, to the loss, or what is sent."""
        ledger = Ledger()
        self._run(ledger, "forward", range(len(self.steps)), self.kept.of[-1])
        ledger.note(Event(OVER, -1))
        return ledger

    def _run(self, ledger: Ledger, doing: str, numbers: Sequence[int], kept: Mapping[Any, int]) -> None:
        """Computes steps; what they make is `kept`, or dropped with its name."""
        named: dict[Any, int] = {}
        for before, at in zip([-1, *numbers], numbers, strict=False):
            if doing == "forward":
                self._over(ledger, before, at)
            step, work = self.steps[at], self._work(at)
            self._use(ledger, at, self.passes.parameters(PassWork(PassWay.FORWARD, (at,))))
            made: dict[Any, int] = {f: self.size(f) for f in makes(self.plan)[step] if self._is_memory(step, f)}
            more = ("made by", self.plan.ops[step.index].op) if step.kind == "op" else None
            if doing == "forward" and self.kept.home.get(more, -1) in self.units.to_host.values():
                made[more] = self.kept.of[self.kept.home[more]][more]
            there = sum(made.values()) + kept.get(more, 0)
            ledger.look(doing, at, max(there, work.forward))
            ledger.add(KEPT, kept.get(more, 0))
            for at_form, size in made.items():
                ledger.add(KEPT if at_form in kept else NAMED, size)
                if at_form not in kept:
                    named[at_form] = size
            ledger.meanwhile(work.forward - there)
            for gone in (self.ends if doing == "forward" else self.frames.ends).get(at, ()):
                ledger.add(NAMED, -named.pop(gone, 0))
        for at_form, size in named.items():  # of all layers of a run: `forward` ends outside of it
            ledger.add(NAMED, -size * (self.facts.times(at_form) if doing == "forward" else 1))

    def _over(self, ledger: Ledger, before: int, at: int) -> None:
        """Notes that another window begins."""
        if self.windows[at] != (-1 if before < 0 else self.windows[before]):
            ledger.note(Event(OVER, self.windows[at]))

    def _use(self, ledger: Ledger, at: int, values: Iterable[int]) -> None:
        """Notes the use of parameters that ZeRO 3 gathers."""
        for value in values:
            if self.plan.params[value].zero == 3:
                forms = inputs(self.plan)[self.steps[at]]
                read = next(n for n, form in enumerate(forms) if self.facts.memory(form)[0] == value)
                ledger.note(Event(USED, at, read))

    def _is_memory(self, step: Step, form: Form) -> bool:
        return self.facts.memory(form) == form and not (step.kind == "op" and step.index in self.fused)

    def _work(self, at: int) -> WorkingMemory:
        step = self.steps[at]
        if step.kind == "op":
            op = self.plan.ops[step.index].op
            return REGISTRY[self.plan.graph.ops[op].operator].work(self.facts.locals[op])
        conversion = self.plan.conversions[step.index]
        mesh, before = self.plan.meshes[conversion.to.mesh], (conversion.value, conversion.parent)
        if mesh.degree(mesh.ranked(conversion.move.axes)) == 1 and conversion.move.axes:
            return WorkingMemory(passes=(0,))
        shape = self.plan.local_shape(before[0], layout_of(self.plan, before))
        return move_work(conversion.move, self.size(before), self.size((conversion.value, step.index)), shape)

    # --- backward

    def backward(self) -> Ledger:
        """From the gradient of the loss, or those received, to the parameters and what is sent."""
        ledger = Ledger()
        now, before = Backward(ledger, open_=dict(self.kept.of[-1])), -1
        for at in (at for work in self.passes.backward if work.way is PassWay.BACK for at in work.steps):
            now.readers.update(v for v, c in inputs(self.plan)[self.steps[at]] if c < 0)
        self._begin(now)
        for at, works in self._backward():
            self._over(ledger, before, at)
            for work in works:
                self._again(now, work)
            self._step(now, at)
            before = at
        for root, rest in now.open_.items():
            ledger.add(KEPT, -rest * self.facts.times(root))
        for memory in {id(memory): memory for memory in now.flowing.values()}.values():
            ledger.add(FLOWING, -memory.size)
        ledger.add(FLOWING, -ledger.parts[FLOWING])
        ledger.note(Event(OVER, -1))
        return ledger

    def _backward(self) -> Iterator[tuple[int, list[PassWork]]]:
        """The steps that backward goes through, each with the works before it."""
        asked = list[PassWork]()
        for work in self.passes.backward:
            if work.way is PassWay.BACK:
                yield work.steps[0], asked
                asked = []
            else:
                asked.append(work)

    def _begin(self, now: Backward) -> None:
        """The gradients that it begins with."""
        plan = self.plan
        seeds: list[Form] = []
        loss = plan.graph.loss
        if loss is not None and plan.stage(plan.graph.producers.get(loss, 0)) == self.passes.stage:
            seeds.append(final_form(plan, loss))
        for use in (
            planned.operands[0] for planned in transfers(plan) if plan.stage(planned.op) == self.passes.stage + 1
        ):
            if plan.graph.values[use.value].gradient:
                seeds.append(form(use))
        for seed in seeds:
            # What has been received is held until the end.
            now.flowing[seed] = FlowingGradient(self.size(seed), 1 + (plan.pipeline is not None))
            now.ledger.add(FLOWING, self.size(seed))
        now.ledger.look("backward", -1)

    def _step(self, now: Backward, at: int) -> None:
        step, ledger = self.steps[at], now.ledger
        taken = [now.flowing.pop(form) for form in makes(self.plan)[step] if form in now.flowing]
        if received(self.plan, step):
            for memory in taken:
                now.drop(memory)
                ledger.add(MESSAGES, memory.size)
            return
        work, new = self._work(at), Counter[Form]()
        results = []
        if taken:
            for number, form in enumerate(inputs(self.plan)[step]):
                if self._wants(form):
                    passed = number in work.passes
                    memory = taken[0] if passed else FlowingGradient(self._gradient(form))
                    results.append((form, memory, number in work.views))
                    taken[0].held += passed
                    new[form] += 0 if passed else self._gradient(form)
            made = sum(new.values())
            if step.kind == "op":
                self._use(ledger, at, self.passes.parameters(PassWork(PassWay.BACK, (at,))))
            rows = any(self.plan.params[v].sparse for v, _ in new if v in self.plan.params)
            ledger.look("backward", at, made if rows else max(made, work.backward))
            for _, memory, _ in results:
                ledger.add(FLOWING, memory.size if memory is not taken[0] else 0)
            ledger.meanwhile(0 if rows else work.backward - made)
        for memory in taken:
            now.drop(memory)
        for root in self.kept.freed.get(at, ()):
            ledger.add(KEPT, -now.open_.pop(root, 0))
        self._give(now, at, results)

    def _give(self, now: Backward, at: int, results: list[tuple[Form, FlowingGradient, bool]]) -> None:
        """The parts that a step has made come: (form, memory, whether it is a view)."""
        # By a node of its own a view comes after the others, and what a read takes on after that.
        for read, memory, view in sorted(results, key=lambda result: 2 * self._by_read(result[0]) + result[2]):
            if (at, read) in self.together:
                now.waiting.setdefault(self.together[at, read], []).append((at, read, memory, view))
            else:
                self._arrive(now, at, read, memory, view)
        for vector in now.waiting.pop(at, ()):
            self._arrive(now, *vector)

    def _wants(self, form: Form) -> bool:
        value = self.plan.graph.values[form[0]]
        return value.gradient and (form[1] >= 0 or value.kind in (Kind.RESULT, Kind.PARAM))

    def _by_read(self, form: Form) -> bool:
        """Whether a gradient goes through the read of a parameter: of a copy, or of what ZeRO 3
        gathers."""
        param = self.plan.params.get(form[0]) if form[1] < 0 else None
        return param is not None and (param.zero == 3 or gradient_bytes(self.plan, param) > self._gradient(form))

    def _arrive(self, now: Backward, at: int, form: Form, memory: FlowingGradient, view: bool) -> None:
        """A part of the gradient of a form."""
        param = self.plan.params.get(form[0])
        if param is None or form[1] >= 0:
            now.add(at, form, memory, view)
            return
        size, apart, low = gradient_bytes(self.plan, param), param.zero == 3, None
        if size > memory.size:  # of a copy: in the parameter's own type
            now.ledger.look("backward", at, size, FLOWING)
            now.ledger.add(FLOWING, size)
            low, memory, view = memory, FlowingGradient(size), False
        if low is not None and not apart:
            now.drop(low)
        now.add(at, form, memory, view, apart)
        if low is not None and apart:  # ZeRO 3 adds up while autograd still has it
            now.drop(low)
        now.readers[form[0]] -= 1
        if not now.readers[form[0]]:
            # From here on a bucket, or the optimizer, holds it. Where others have it too torch
            # makes a copy, and ZeRO 3 keeps what they have.
            whole = now.flowing.pop(form)
            whole.held -= apart
            now.drop(whole)
            own = 0 if apart and whole.held else size
            now.ledger.note(Event(WHOLE, at, inputs(self.plan)[self.steps[at]].index(form), own))

    def _again(self, now: Backward, work: PassWork) -> None:
        """Computes a unit again, or brings it from the host."""
        kept = self.kept.of.get(work.unit, {})
        if work.way is PassWay.AGAIN:
            self._run(now.ledger, "again", work.steps, kept)
            now.open_.update(kept)
            return
        for root, size in kept.items():
            now.ledger.add(KEPT, 0 if root in now.open_ else size)
            now.open_.setdefault(root, size)
