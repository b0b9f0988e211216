"""The records of real ranks that ran an emitted program -> the same results that simulated ranks
give.

The emitter's names tell which form of which value a local variable is. A value that has no line of
its own (a product that takes in its bias) is not seen; a name that stands for the tensor of another
has no gradient apart from it. A place is a rank at a microbatch, as in the plan's meshes (see
coordinates.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.emit import Emission, emission
from shardlang.emit.forward import Forward
from shardlang.emit.scene import calls_of
from shardlang.emit.scope import FileContents
from shardlang.emit.stages import LAYERS
from shardlang.frozen.records import remembered
from shardlang.interpret.ranks.coordinates import MeshPositions
from shardlang.interpret.ranks.ranks import Locals, RankResults
from shardlang.interpret.verify.compare import forms_of
from shardlang.plan.fusions import fusions
from shardlang.plan.plan import MoveKind, Plan, Step
from shardlang.plan.reads import Form, final_form, made_form, makes, steps_for
from shardlang.runtime.launch.observe import RecordedCall, StepRecord
from shardlang.step.blocks.call import BlockCall as LayerCall

Named = Mapping[str, Tensor]
ONCE = ("before_step", "conclude")


@dataclass(frozen=True)
class Home:
    """Where the variable of a form is: the stage, the file and the functions that may have it,
    whether they run once a step, its name, the layer, and in which of several calls by one rank."""

    stage: int
    file: str
    functions: tuple[str, ...]
    once: bool
    name: str
    layer: str = ""
    call: int = 0


@remembered
def homes(plan: Plan) -> dict[Form, Home]:
    """The forms of local variables, in order of computation; shared ones in the first stage."""
    work = _Homes(emission(plan))
    for forward, module in zip(work.made.forwards, work.made.modules, strict=True):
        work.add(forward, f"{module}.py")
    for conversion in plan.conversions:  # no line makes a view: it is called as what it is a view of
        if conversion.move.kind is MoveKind.VIEW and (conversion.value, conversion.parent) in work.found:
            work.found.setdefault((conversion.value, conversion.id), work.found[conversion.value, conversion.parent])
    return {form: work.found[form] for form in forms_of(plan) if form in work.found}


@dataclass
class _Homes:
    """calls: how often a rank has called a function of a file for a layer so far, by stage
    coordinate."""

    made: Emission
    found: dict[Form, Home] = field(default_factory=dict)
    calls: Counter[tuple[int, str, str, str]] = field(default_factory=Counter)

    def add(self, forward: Forward, file: str) -> None:
        """The variables of the functions of one file, and of those that they call."""
        scope, plan = forward.scope, self.made.plan
        stage = scope.stage or 0
        at = plan.coordinates[stage]
        call = self._next(at, file, "", "")
        inside: list[LayerCall] = []
        own = {*forward.trained.steps_here, *forward.shown.steps_here}
        for form, (functions, once) in _functions(plan, scope, own).items():
            self._put(form, Home(stage, file, functions, once, scope.names.get(form, ""), "", call))
        for body in (forward.trained, forward.shown):
            inside.extend(call for item in body.items for call in calls_of(item))
        for layer in inside:
            self._layer(layer, stage, at, file)

    def _layer(self, call: LayerCall, stage: int, at: int, file: str) -> None:
        """The variables of a layer's function in one of its calls, by those of its first call."""
        functions = self.made.functions
        function, body = functions.made[call.block, True], functions.bodies[call.block, True]
        file, name = f"{LAYERS}.py" if function in self.made.shared else file, function.name
        number, made = self._next(at, file, name, call.path), makes(functions.plan)
        for mine, written in zip(functions.flow(call), functions.flow(body.call), strict=True):
            if isinstance(mine, LayerCall):
                self._layer(mine, stage, at, file)
            elif isinstance(written, Step):
                forms = zip(made[mine], made[written], strict=True)
                for form, known in forms:
                    self._put(form, Home(stage, file, (name,), False, body.names.get(known, ""), call.path, number))

    def _put(self, form: Form, home: Home) -> None:
        if home.name.isidentifier():
            self.found.setdefault(form, home)

    def _next(self, *where: Any) -> int:
        self.calls[where] += 1
        return self.calls[where] - 1


def _functions(plan: Plan, scope: FileContents, own: Set[Step]) -> dict[Form, tuple[tuple[str, ...], bool]]:
    """The functions of a file that have a form, and whether they run once a step; of what several
    make, the first of these lines. own: the steps that stand in `forward` itself."""
    steps = scope.phases
    totals, sums = ({(plan.conversions[at].value, at) for at in which} for which in (steps.totals, steps.sums))
    arguments = {(v, -1) for v in (*scope.received, *scope.fields)}
    made = (
        (_made(plan, steps.after) | sums, ("conclude",), True),
        (_made(plan, steps.ahead), ("before_microbatch",), False),
        (_made(plan, steps.known) | totals, ("before_step", "forward"), True),
        (_made(plan, [step for step in steps.body if step in own]) | arguments, ("forward",), False),
    )
    return {form: (functions, once) for forms, functions, once in made for form in forms}


@remembered
def due(plan: Plan) -> set[Form]:
    """The forms that an emitted program must have a variable of: those of loss and metrics, except
    products that take in their bias, numbers, which stand where they are read, and views of
    these."""
    wanted = [v for v in (plan.graph.loss, *plan.graph.metrics.values()) if v is not None]
    without = {plan.graph.ops[plan.ops[f.product].op].results[0] for f in fusions(plan).values()}
    without.update(value.id for value in plan.graph.values if value.constant is not None)
    without.update(plan.graph.params)
    made = _made(plan, steps_for(plan, [final_form(plan, value) for value in wanted]))
    return {(value, at) for value, at in made if value not in without or made_form(plan, at) >= 0}


def _made(plan: Plan, steps: Iterable[Step]) -> set[Form]:
    return {form for step in steps for form in makes(plan)[step]}


@dataclass(frozen=True)
class StepRecords:
    """The records of all ranks for one step."""

    plan: Plan
    records: Sequence[StepRecord]

    @cached_property
    def grid(self) -> MeshPositions:
        return MeshPositions(self.plan)

    @cached_property
    def calls(self) -> dict[tuple[int, str, str, str, int], list[RecordedCall]]:
        """(rank, file, function, layer, microbatch) -> its calls; what runs once a step does so in
        any of the microbatches.

        Functions within a function count as it; of one that is computed again for backward the
        first call comes first."""
        found: dict[tuple[int, str, str, str, int], list[RecordedCall]] = {}
        for rank, record in enumerate(self.records):
            for call in sorted(record.calls, key=lambda c: c.inner):
                part = 0 if call.function in ONCE else call.microbatch
                found.setdefault((rank, call.file, call.function, call.layer, part), []).append(call)
        return found

    def at(self, form: Form) -> list[RecordedCall | None]:
        """The call that has the variable of a form, for each position."""
        home, found = homes(self.plan)[form], []
        for place in self.grid.positions:
            part = 0 if home.once else self.grid.microbatch(place)
            rank = self.grid.rank(place, home.stage)
            keys = [(rank, home.file, function, home.layer, part) for function in home.functions]
            lists = ([call for call in self.calls.get(key, ()) if home.name in call.values] for key in keys)
            found.append(next((calls[home.call] for calls in lists if len(calls) > home.call), None))
        return found

    def results(self) -> RankResults:
        """All that was seen; forms in the order of the plan."""
        forms: dict[Form, Locals] = {}
        gradients: dict[Form, Locals] = dict(self._leaves())
        unseen: set[Form] = set()
        first: dict[tuple[int, str], Form] = {}
        for form, home in homes(self.plan).items():
            calls = self.at(form)
            there = [call for call in calls if call is not None]
            if len(there) < len(calls):
                continue
            forms[form] = [call.values[home.name] for call in there]
            known = any(home.name in call.aliases for call in there)
            if known or first.setdefault((id(there[0]), home.name), form) != form:
                unseen.add(form)
            elif any(home.name in call.gradients for call in there):
                local = zip(there, forms[form], strict=True)
                gradients[form] = [call.gradients.get(home.name, torch.zeros_like(x)) for call, x in local]
        # What is not seen is not verified: that must not pass for agreement.
        missing = sorted(due(self.plan) - forms.keys())
        if missing and all(record.done for record in self.records):
            path, at = self.plan.graph.values[missing[0][0]].path, homes(self.plan).get(missing[0])
            raise InternalError(f"the emitted program computes `{path}` without a variable `{at and at.name}`")
        states = next(self.copies(self.plan.graph.states, lambda r: r.states), {})
        figures = next((r.figures for r in self.records if r.figures), {})
        return RankResults(forms, gradients, next(self.reduced(), {}), states, figures, frozenset(unseen))

    def _leaves(self) -> Iterator[tuple[Form, Locals]]:
        """Local gradients of parameters as functions read them: of those that ranks store whole, in
        one stage, and whose gradient each microbatch gives (one that is the same in all is taken
        from the first alone)."""
        for value in self.plan.graph.params:
            stages, path = self.grid.stages(value), self.plan.graph.values[value].path
            time = self.plan.meshes[self.plan.produced[value].mesh].time
            planned = self.plan.params.get(value)
            each = time is None or (planned is not None and time.name in planned.reduce_axes)
            if len(stages) > 1 or not each:
                continue
            at = zip(self.grid.positions, self._of_stage(stages[0]), strict=True)
            local = [r.gradients.get(self.grid.microbatch(place), {}).get(path) for place, r in at]
            known = next((x for x in local if x is not None), None)
            if known is not None:
                yield (value, -1), [torch.zeros_like(known) if x is None else x for x in local]

    def _of_stage(self, stage: int) -> list[StepRecord]:
        """The record of the rank at each position, in a stage."""
        return [self.records[self.grid.rank(place, stage)] for place in self.grid.positions]

    def reduced(self) -> Iterator[dict[int, Locals]]:
        """Reduced gradients, of each stage that has a parameter; the runtime takes one that never
        came for zeros."""
        for at, kept in enumerate(list(self.parameters())):
            found = {}
            for value in (self.plan.graph.values[v] for v in kept if self.plan.graph.values[v].gradient):
                local = zip(self._of_stage(self.grid.stages(value.id)[at]), kept[value.id], strict=True)
                found[value.id] = [r.reduced.get(value.path, torch.zeros_like(x)) for r, x in local]
            yield found

    def parameters(self) -> Iterator[dict[int, Locals]]:
        """The part that each rank stores of each parameter after the step; a further one for each
        further stage that has it."""
        return self.copies(self.plan.graph.params, lambda r: r.parameters)

    def copies(self, values: Sequence[int], of: Callable[[StepRecord], Named]) -> Iterator[dict[int, Locals]]:
        """The ranks' parts of some values, for each position; first in the first stage of each,
        then in its second, ..."""
        for at in range(max((len(self.grid.stages(v)) for v in values), default=0)):
            found = {}
            for value in values:
                stages, path = self.grid.stages(value), self.plan.graph.values[value].path
                if at >= len(stages):
                    continue
                records = [of(record) for record in self._of_stage(stages[at])]
                if all(path in record for record in records):
                    found[value] = [record[path] for record in records]
            yield found
