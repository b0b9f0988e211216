"""A deep plan -> the same with few layers: of a run of layers that are alike it has four.

Steps after a run read the last of the four in place of the last of all. So all that is found of the
first, the second and the last holds for the first of the run, for each between, and for the last.
The third is there to be compared with the second (course.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import groupby, pairwise

from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import count
from shardlang.plan.blocks.call import is_below
from shardlang.plan.blocks.kinds import kinds_of
from shardlang.plan.plan import OperandUse, Plan, PlannedOp, Step
from shardlang.plan.reads import Form, inputs, makes

LEFT = 4


@dataclass(frozen=True, slots=True)
class Run:
    """Windows of steps that are alike. begin: the place in `Plan.steps` of the first step of the
    first; period: the steps of each."""

    begin: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.begin + self.count * self.period

    def dropped(self) -> range:
        """The places of steps that the shallow plan lacks."""
        return range(self.begin + LEFT * self.period, self.end)


@dataclass(frozen=True)
class Shallow:
    """plan: with few layers. places: of each of its steps, in the steps of the `whole` plan.

    told: step -> window, where the plan itself tells runs of layers once; times: how many layers
    each window is, and pairs: the windows of runs with those before."""

    whole: Plan
    plan: Plan
    runs: Sequence[Run] = ()
    places: Sequence[int] = ()
    at: Mapping[Step, int] = field(default_factory=dict)
    told: Mapping[Step, int] = field(default_factory=dict)
    times: Mapping[int, int] = field(default_factory=dict)
    pairs: Sequence[tuple[int, int]] = ()

    def place(self, step: Step) -> int:
        """The place in the whole plan of a step of the shallow one."""
        return self.places[self.at[step]] if self.runs else self.at[step]

    def window(self, step: Step) -> int:
        """The number of the window that a step is in; -1 for none."""
        if self.told:
            return self.told[step]
        place = self.place(step) if self.runs else -1
        for number, run in enumerate(self.runs):
            if run.begin <= place < run.begin + LEFT * run.period:
                return LEFT * number + (place - run.begin) // run.period
        return -1

    def later(self, window: int) -> range:
        """The windows of the whole plan that one of the shallow plan stands for: by how many each
        is later than itself."""
        if window < 0 or self.told:
            return range(self.times.get(window, 1))
        count = self.runs[window // LEFT].count
        return (range(1), range(count - 2), range(0), range(count - LEFT, count - LEFT + 1))[window % LEFT]

    def original(self, step: Step, later: int) -> Step:
        """The step of the whole plan: so many windows later than the step of the shallow one."""
        place, window = self.place(step), self.window(step)
        if window >= 0 and self.runs:
            last = self.runs[window // LEFT].count - LEFT if window % LEFT == LEFT - 1 else 0
            place += self.runs[window // LEFT].period * (later or last)
        return self.whole.steps[place]


def unfolded(plan: Plan) -> Shallow:
    """The plan as it is."""
    return Shallow(plan, plan, at={step: at for at, step in enumerate(plan.steps)})


def shallow(plan: Plan) -> Shallow:
    """The plan with four layers of each run."""
    if plan.graph.in_runs:
        return _told(plan)
    looked = _Alike(plan)
    runs = [run for run in looked.runs() if looked.apart(run)]
    if not runs:
        return unfolded(plan)
    gone = {place for run in runs for place in run.dropped()}
    places = [place for place in range(len(plan.steps)) if place not in gone]
    values, conversions = dict[int, int](), dict[int, int]()
    for run in runs:  # what the last window makes -> what stands for it
        for place in range(run.end - run.period, run.end):
            made = zip(looked.made[place], looked.made[place - (run.count - LEFT) * run.period], strict=True)
            for (value, at), (instead, at_instead) in made:
                if at < 0:
                    values[value] = instead
                else:
                    conversions[at] = at_instead

    def read(use: OperandUse) -> OperandUse:
        value, at = values.get(use.value, use.value), conversions.get(use.conversion, use.conversion)
        return use if (value, at) == (use.value, use.conversion) else replace(use, value=value, conversion=at)

    ops, steps, moved = list[PlannedOp](), list[Step](), list(plan.conversions)
    for step in (plan.steps[place] for place in places):
        if step.kind == "op":
            planned = plan.ops[step.index]
            operands = tuple([read(use) for use in planned.operands])
            steps.append(Step("op", len(ops)))
            ops.append(planned if operands == planned.operands else replace(planned, operands=operands))
        else:
            c = moved[step.index]
            value, parent = values.get(c.value, c.value), conversions.get(c.parent, c.parent)
            moved[step.index] = c if value == c.value else replace(c, value=value, parent=parent)
            steps.append(step)
    less = replace(plan, ops=tuple(ops), conversions=tuple(moved), steps=tuple(steps))
    pairs = [(LEFT * run + 1, LEFT * run + 2) for run in range(len(runs))]
    return Shallow(plan, less, runs, places, {step: at for at, step in enumerate(steps)}, pairs=pairs)


def _told(plan: Plan) -> Shallow:
    """A plan that tells runs once: the layers of arrays that have one are windows, from the first
    operator of each on."""
    calls, told = plan.graph.calls, dict[Step, int]()
    times = [count(call.path) for call in calls]
    arrays = {(call.within, call.path.rpartition("[")[0]) for call, n in zip(calls, times, strict=True) if n > 1}
    outer: dict[int, int] = {-1: -1}
    for at, call in enumerate(calls):
        mine = call.path.endswith("]") and (call.within, call.path.rpartition("[")[0]) in arrays
        outer[at] = outer[call.within] if outer[call.within] >= 0 or not mine else at
    window = -1
    for step in plan.steps:
        if step.kind == "op":
            window = outer[plan.graph.ops[plan.ops[step.index].op].within]
        told[step] = window
    order = [window for window, _ in groupby(told.values()) if window >= 0]
    pairs = [both for both in pairwise(order) if times[both[1]] > 1]
    return replace(unfolded(plan), told=told, times=dict(enumerate(times)), pairs=pairs)


class _Alike:
    """Finds the runs of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.kinds = plan, kinds_of(plan)

    @cached_property
    def made(self) -> Sequence[Sequence[Form]]:
        return list(makes(self.plan).values())

    @cached_property
    def read(self) -> Sequence[Sequence[Form]]:
        return list(inputs(self.plan).values())

    @cached_property
    def makers(self) -> Mapping[Form, int]:
        """Form -> the place of the step that makes it."""
        return {form: place for place, forms in enumerate(self.made) for form in forms}

    @cached_property
    def groups(self) -> Mapping[int, int]:
        """Operator (id) -> the group that it is computed again with."""
        return {op: number for number, group in enumerate(self.plan.recompute) for op in group.ops}

    def runs(self) -> list[Run]:
        """From the first to the last."""
        found, starts = list[Run](), self._starts()
        for (place, call), (after, _) in pairwise(starts):
            last = found[-1] if found else None
            if last is not None and last.end == place and self._same(last, place, call):
                found[-1] = replace(last, count=last.count + 1)
            elif last is None or last.end <= place:
                self._row = self._described(place, after - place, call)
                found.append(Run(place, after - place, 1))
        if starts and found and found[-1].end == starts[-1][0] and self._same(found[-1], *starts[-1]):
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        return [run for run in found if run.count > LEFT]

    def _starts(self) -> list[tuple[int, int]]:
        """The place of the first operator of each layer of an array, in order, and its call: of
        arrays in each other the outermost that is long."""
        plan, calls = self.plan, self.plan.graph.calls
        arrays = [(c.within, c.path.rpartition("[")[0]) if c.path.endswith("]") else None for c in calls]
        long = Counter(arrays)
        outer: dict[int, int] = {-1: -1}
        for at, call in enumerate(calls):
            here = at if arrays[at] is not None and long[arrays[at]] > LEFT else -1
            outer[at] = outer[call.within] if outer[call.within] >= 0 else here
        first: dict[int, int] = {}
        for place, step in enumerate(plan.steps):
            if step.kind == "op":
                first.setdefault(outer[plan.graph.ops[plan.ops[step.index].op].within], place)
        first.pop(-1, None)
        on = {call: (arrays[call], self._stage(place)) for call, place in first.items()}
        together = Counter(on.values())  # within one stage
        return [(place, call) for call, place in first.items() if together[on[call]] > LEFT]

    def _stage(self, place: int) -> int:
        return self.plan.stage(self.plan.ops[self.plan.steps[place].index].op)

    def _same(self, run: Run, place: int, call: int) -> bool:
        if place + run.period > len(self.plan.steps):
            return False
        row = self._described(place, run.period, call)
        return row == self._row

    def _described(self, begin: int, period: int, call: int) -> list[object]:
        """The work of a window, as it is seen from there."""
        plan, kinds, path = self.plan, self.kinds, self.plan.graph.calls[call].path
        row, own, group = list[object](), dict[int, int](), -1
        for place in range(begin, begin + period):
            step = plan.steps[place]
            row.append(kinds.step(step))
            if step.kind == "op":
                op = plan.ops[step.index].op
                if (at := self.groups.get(op, -1)) >= 0:
                    group = at if group < 0 else group
                    row.append((at - group, plan.recompute[at].drops, plan.recompute[at].to_host))
                row.append(plan.stage(op))
            for form in self.read[place]:
                maker = self.makers.get(form)
                if maker is None:
                    row.append(self._given(form, own, path))
                else:
                    row.append(maker - begin if maker >= begin - period else (maker,))
            row += [kinds.form(form)[0] for form in self.made[place]]
        return row

    def _given(self, form: Form, own: dict[int, int], path: str) -> object:
        """A form that no step makes."""
        value, param = form[0], self.plan.params.get(form[0])
        if param is None or param.sparse or not is_below(self.plan.graph.values[value].path, path):
            return repr(constant) if (constant := self.plan.graph.values[value].constant) is not None else form
        facts = param.reduce_axes, param.zero, param.zero_axes, param.keep
        return own.setdefault(value, len(own)), self.kinds.form(form)[0], facts

    def apart(self, run: Run) -> bool:
        """Whether nothing later reads a window before the last."""
        plan, inside = self.plan, range(run.begin, run.end - run.period)
        shown = [plan.graph.loss, *plan.graph.metrics.values()]
        if any(v is not None and self.makers.get((v, -1), -1) in range(run.begin, run.end) for v in shown):
            return False
        later = (form for forms in self.read[run.end :] for form in forms)
        return not any(self.makers.get(form, -1) in inside for form in later)
