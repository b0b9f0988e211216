"""A stage's part of a microbatch -> the memory that its forward and its backward take, as torch's
autograd runs them.

Forward keeps what backward reads, and what names of the program hold. Backward goes from the last
operator to the first: the gradient of a value lives until all that reads it has given its part and
what makes it has taken it; what an operator has kept goes with it. Values that are computed again
are there from the first that asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlang.folds.peak.casts import cast_together, parameters_read
from shardlang.folds.peak.flowing import FLOWING, Backward, FlowingGradient
from shardlang.folds.peak.frames import Frames, Units
from shardlang.folds.peak.ledger import OVER, USED, WHOLE, Event, Ledger
from shardlang.folds.peak.moves import move_work
from shardlang.frozen.records import remembered
from shardlang.graph.graph import Kind
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.internal import TRANSFER
from shardlang.ops.working_memory import WorkingMemory
from shardlang.plan.fusions import fusions
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, final_form, form, inputs, layout_of, makes, transfers
from shardlang.step.parameters import gradient_bytes
from shardlang.step.saved_activations import form_bytes, saved_activations

KEPT, NAMED, MESSAGES = "activations", "values", "messages"


class StagePass:
    """Both passes of a stage."""

    def __init__(self, plan: Plan, stage: int, steps: Sequence[Step], windows: Sequence[int]) -> None:
        self.plan, self.stage, self.steps, self.windows = plan, stage, steps, windows
        self.facts = saved_activations(plan)
        self.frames = Frames(plan, self.steps)
        self.op_steps = makers_of(plan)
        of = self.facts.owners.group
        pairs = [(each.product, each.addition) for each in fusions(plan).values()]
        self.fused = {product for product, addition in pairs if of(plan.ops[product].op) == of(plan.ops[addition].op)}
        self.places = {step: at for at, step in enumerate(self.steps)}
        self.units = Units(plan, self.steps, self.frames)
        made = {form: at for at, step in enumerate(self.steps) for form in makes(plan)[step]}
        # Kept memory -> the unit that it is computed again with; -1: stays from forward on.
        self.home: dict[Any, int] = {}
        self.kept: dict[int, dict[Any, int]] = {-1: self._on_device(self.facts.kept.get((stage, -1), {}))}
        for (at, group), kept in self.facts.kept.items():
            for root, size in self._on_device(kept).items() if at == stage and group >= 0 else ():
                unit = self.home[root] = self._unit(group, root, made)
                self.kept.setdefault(unit, {})[root] = size
        self.home.update(dict.fromkeys(self.kept[-1], -1))
        self._sizes: dict[tuple[int, int], int] = {}
        for unit in self.units.again:  # what one hands to another is computed again for that
            for root in self._given(unit):
                if root in made and root not in self.home and self.units.of.get(made[root], unit) != unit:
                    maker = self.home[root] = self.units.of[made[root]]
                    self.kept.setdefault(maker, {})[root] = self.size(root)
        self.freed = self._freed()
        together = cast_together(plan, stage, steps)
        self.together = {read: at for read, at in together.items() if self._takes(steps[at])}
        self.ends = self.frames.ends_of_forward(self.units, self.kept)

    def _unit(self, group: int, root: Any, made: Mapping[Form, int]) -> int:
        """The unit that a kept memory of a group comes back with."""
        maker = self.places[Step("op", self.op_steps[root[1]])] if root[0] == "made by" else made.get(root, -1)
        return self.units.to_host.get(group, self.units.of.get(maker, -1))

    def _on_device(self, kept: Mapping[Any, int]) -> dict[Any, int]:
        """The bytes of what is kept on the device."""
        plan = self.plan
        if not plan.memory_of:
            return dict(kept)
        values = {root: plan.graph.ops[root[1]].results[0] if root[0] == "made by" else root[0] for root in kept}
        return {root: 0 if values[root] in plan.memory_of else size for root, size in kept.items()}

    def _freed(self) -> Mapping[int, Sequence[Any]]:
        """The number of a step -> the kept memories that nothing needs after its backward."""
        found: dict[Any, int] = {}
        ends: dict[int, int] = {}  # unit -> the same of all that is kept of it
        begins: dict[int, int] = {}  # unit -> the first that asks for it
        given: dict[int, int] = {}  # unit -> the same of what it gives to others, who let it go together
        outside: dict[int, list[Any]] = {}
        for at, step in enumerate(self.steps):
            for root in self._reads(step):
                found.setdefault(root, at)
                if (unit := self.home.get(root, -1)) >= 0:
                    ends[unit], begins[unit] = min(ends.get(unit, at), at), at
                    if self.units.of.get(at) != unit:
                        given[unit] = min(given.get(unit, at), at)
                        outside.setdefault(unit, []).append(root)
        for unit, roots in outside.items():
            found.update((root, min(found[root], given[unit])) for root in roots)
        for unit in sorted(self.units.again, reverse=True):
            for root in self._given(unit) if unit in ends else ():
                home = self.home.get(root)
                if home == -1:
                    found[root] = min(found.get(root, ends[unit]), ends[unit])
                elif home is not None and home != unit:
                    found.setdefault(root, begins[unit])
                    ends[home] = min(ends.get(home, ends[unit]), ends[unit])
                    begins[home] = max(begins.get(home, 0), begins[unit])
        freed: dict[int, list[Any]] = {}
        crossing = self._crossing()
        for root, at in found.items():
            if root not in crossing:
                freed.setdefault(at, []).append(root)
        return freed

    def _given(self, unit: int) -> Iterator[Any]:
        """The memories that a unit reads of others."""
        mine = [self.steps[at] for at in self.units.steps[unit]]
        own = {form for step in mine for form in makes(self.plan)[step]}
        roots = (self.facts.memory(form) for step in mine for form in inputs(self.plan)[step])
        yield from (root for root in roots if root not in own)

    def _crossing(self) -> set[Any]:
        """Memories of what stages receive and send, which are held to the end of a backward."""
        plan, found = self.plan, set[Any]()
        for planned in transfers(plan):
            forms = (plan.graph.ops[planned.op].results[0], -1), form(planned.operands[0])
            found.update(self.facts.memory(at) for at in forms)
        return found

    def _reads(self, step: Step) -> Sequence[Any]:
        """The memories that a step keeps for backward."""
        return self.facts.reads.get(self.plan.ops[step.index].op, ()) if step.kind == "op" else ()

    def size(self, form: Form) -> int:
        """Bytes of a form on the device."""
        if form[0] in self.plan.memory_of:
            return 0
        value, layout = self.plan.graph.values[form[0]], layout_of(self.plan, form)
        key = id(value.type), id(layout)
        if key not in self._sizes:
            self._sizes[key] = form_bytes(self.plan, form)
        return self._sizes[key]

    def _gradient(self, form: Form) -> int:
        """Bytes of the gradient of a form: of a table that a batch looks up, rows."""
        param = self.plan.params.get(form[0])
        return gradient_bytes(self.plan, param) if param is not None and param.sparse else self.size(form)

    # --- forward

    def forward(self) -> Ledger:
        """From the fields of the batch, or what is received, to the loss, or what is sent."""
        ledger = Ledger()
        self._run(ledger, "forward", range(len(self.steps)), self.kept[-1])
        ledger.note(Event(OVER, -1))
        return ledger

    def _run(self, ledger: Ledger, doing: str, numbers: Sequence[int], kept: Mapping[Any, int]) -> None:
        """Computes steps; what they make is `kept`, or dropped with its name."""
        named: dict[Any, int] = {}
        for before, at in zip([-1, *numbers], numbers, strict=False):
            if doing == "forward":
                self._over(ledger, before, at)
            step, work = self.steps[at], self._work(at)
            self._use(ledger, at, parameters_read(self.plan, step))
            made: dict[Any, int] = {f: self.size(f) for f in makes(self.plan)[step] if self._is_memory(step, f)}
            more = ("made by", self.plan.ops[step.index].op) if step.kind == "op" else None
            if doing == "forward" and self.home.get(more, -1) in self.units.to_host.values():
                made[more] = self.kept[self.home[more]][more]
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

    def _use(self, ledger: Ledger, at: int, values: Sequence[int]) -> None:
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
        now = Backward(ledger, open_=dict(self.kept[-1]))
        taking = [at for at, step in enumerate(self.steps) if self._takes(step)]
        for at in taking:
            now.readers.update(v for v, c in inputs(self.plan)[self.steps[at]] if c < 0)
        self._begin(now)
        for before, at in zip([-1, *taking[::-1]], taking[::-1], strict=False):
            self._over(ledger, before, at)
            self._step(now, at)
        for root, rest in now.open_.items():
            ledger.add(KEPT, -rest * self.facts.times(root))
        for memory in {id(memory): memory for memory in now.flowing.values()}.values():
            ledger.add(FLOWING, -memory.size)
        ledger.add(FLOWING, -ledger.parts[FLOWING])
        ledger.note(Event(OVER, -1))
        return ledger

    def _takes(self, step: Step) -> bool:
        """Whether a gradient goes through a step."""
        values = self.plan.graph.values
        return for_loss(self.plan, step) and any(values[value].gradient for value, _ in makes(self.plan)[step])

    def _begin(self, now: Backward) -> None:
        """The gradients that it begins with."""
        plan = self.plan
        seeds: list[Form] = []
        loss = plan.graph.loss
        if loss is not None and plan.stage(plan.graph.producers.get(loss, 0)) == self.stage:
            seeds.append(final_form(plan, loss))
        for use in (planned.operands[0] for planned in transfers(plan) if plan.stage(planned.op) == self.stage + 1):
            if plan.graph.values[use.value].gradient:
                seeds.append(form(use))
        for seed in seeds:
            # What has been received is held until the end.
            now.flowing[seed] = FlowingGradient(self.size(seed), 1 + (plan.pipeline is not None))
            now.ledger.add(FLOWING, self.size(seed))
        now.ledger.look("backward", -1)

    def _step(self, now: Backward, at: int) -> None:
        step, ledger = self.steps[at], now.ledger
        for root in self._reads(step):
            self._again(now, self.home.get(root, -1))
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
                self._use(ledger, at, self.facts.saved.get(self.plan.ops[step.index].op, [])[::-1])
            rows = any(self.plan.params[v].sparse for v, _ in new if v in self.plan.params)
            ledger.look("backward", at, made if rows else max(made, work.backward))
            for _, memory, _ in results:
                ledger.add(FLOWING, memory.size if memory is not taken[0] else 0)
            ledger.meanwhile(0 if rows else work.backward - made)
        for memory in taken:
            now.drop(memory)
        for root in self.freed.get(at, ()):
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

    def _stops_before(self, at: int) -> bool:
        """Whether torch ends before a step that is the last to save anything, since it saves only
        what it reads: that comes before it is computed."""
        step = self.steps[at]
        own = {("made by", self.plan.ops[step.index].op), *makes(self.plan)[step]} if step.kind == "op" else set()
        return own.isdisjoint(self._reads(step))

    def _again(self, now: Backward, unit: int) -> None:
        """Computes a unit again, or brings it from the host, if that has not been done."""
        if unit < 0 or unit in now.again:
            return
        now.again.add(unit)
        if unit not in self.units.again:
            for root, size in self.kept[unit].items():
                now.ledger.add(KEPT, 0 if root in now.open_ else size)
                now.open_.setdefault(root, size)
            return
        # First what its inputs are computed from.
        numbers = [at for at in self.units.steps[unit] if self.facts.runs_again(self.steps[at])]
        if numbers and not self.facts.owners.drops(self.facts.owners.of(self.steps[numbers[-1]])):
            del numbers[len(numbers) - self._stops_before(numbers[-1]) :]
        for read in (read for at in numbers for read in inputs(self.plan)[self.steps[at]]):
            self._again(now, self.home.get(self.facts.memory(read), -1))
        self._run(now.ledger, "again", numbers, self.kept[unit])
        now.open_.update(self.kept[unit])


@remembered
def makers_of(plan: Plan) -> Mapping[int, int]:
    """Operator (id) -> index into `Plan.ops`."""
    return {planned.op: at for at, planned in enumerate(plan.ops)}


def received(plan: Plan, step: Step) -> bool:
    """Whether a step takes a value from another stage."""
    return step.kind == "op" and plan.graph.ops[plan.ops[step.index].op].operator == TRANSFER


def for_loss(plan: Plan, step: Step) -> bool:
    """Whether the loss needs a step; else only metrics do."""
    if step.kind == "op":
        return plan.graph.ops[plan.ops[step.index].op].section == "loss"
    conversion = plan.conversions[step.index]
    return conversion.gradient or not plan.graph.values[conversion.value].gradient
