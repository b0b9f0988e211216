"""A program -> the collectives that the ranks of a coordinate issue in a step, in order, by what they are for: values
and gradients as its plan says them, parameters as its text does.

Lines stand for what autograd and the runtime make of them: backward goes through lines from the last to the first and
runs their duals, and first runs again what is computed again. Tests hold this to what real ranks issue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from shardlang.emit.emit import Emission
from shardlang.emit.statements import StatementWriter
from shardlang.folds.peak.reductions import Buckets, sizes_of
from shardlang.matched.lines import Again, AxisGroup, Items, Line, Repeated, lines_of
from shardlang.matched.planned import Planned
from shardlang.matched.read_back.program import Read, Variable
from shardlang.matched.read_back.settings import schedule, units
from shardlang.matched.table import CONVERSIONS, KEEPING
from shardlang.plan.plan import ParamPlan, Plan, Step
from shardlang.step.gradient_sums import GradientSum, gradient_sums
from shardlang.step.parameters import local_bytes, part_bytes, stored_type
from shardlang.step.passes import passes
from shardlang.step.saved_activations import saved_activations
from shardlang.step.stages import coordinates_of
from shardlang.types.dim import BYTES

VALUES, GRADIENTS, PARAMETERS, MESSAGES = "values", "gradients", "parameters", "messages"


@dataclass(frozen=True, slots=True)
class Issued:
    """A collective: what it is for, its kind and axes, and the elements that a rank gives it: of a
    sum that is cut those for all members, 0 where the operator alone knows. A message has the
    coordinate that it goes to in place of axes."""

    purpose: str
    kind: str
    axes: tuple[str, ...]
    elements: int = 0


Actions = Sequence[tuple[str, int]]  # kind, stage


@dataclass
class Lines(Planned):
    """The plan's lines; steps: id of each -> the step of the plan that it is of, and the line itself."""

    steps: dict[int, tuple[Step, Line]] = field(default_factory=dict)

    def _steps(self, writer: StatementWriter, steps: Sequence[Step]) -> Iterator[Line]:
        for _, mine in writer.statements(steps) if steps else ():
            for step in mine:
                for line in self._of_step(step, writer.training):
                    self.steps[id(line)] = step, line
                    yield line

    def goes_back(self, line: Line) -> bool:
        """Whether a gradient goes through a line."""
        return id(line) in self.steps and passes(self.plan)[0].takes(self.steps[id(line)][0])

    def runs(self, line: Line) -> tuple[int, int]:
        """The sums of statistics within an operator, forward and backward."""
        if id(line) not in self.steps:  # of figures
            return 1, 0
        planned = self.plan.ops[self.steps[id(line)][0].index]
        op = self.plan.graph.ops[planned.op]
        axes = {axes: op.rule.factors[factor].statistics for factor, axes, *_ in planned.inside}
        times = op.attrs.get("chunks") or 1
        forward, backward = axes.get(line.group.axes, ((1,), ()))
        return len(forward) * times, len(backward) * times

    def again(self, item: Line | Repeated | Again) -> bool:
        """Whether backward runs any of it again."""
        facts = saved_activations(self.plan)
        return any(facts.runs_again(self.steps[id(line)][0]) for line in lines_of((item,)))


def step(emission: Emission, read: Read, here: int) -> list[Issued]:
    """The collectives of a step at a coordinate: those of each purpose are in order."""
    plan, actions = emission.plan, actions_of(emission.plan, read, here)
    values = _values(Lines(emission), read, here, actions)
    return [
        *values, *_messages(plan, read, here, actions), *_gradients(plan, here, actions),
        *_parameters(plan, read, here, actions),
    ]  # fmt: skip


def actions_of(plan: Plan, read: Read, here: int) -> Actions:
    """The passes of a step at a coordinate."""
    rows = schedule(read)
    if rows:
        return [(action.kind, action.stage) for action in rows[here].actions]
    return [(kind, 0) for _ in range(plan.microbatches) for kind in "FB"]


def _values(lines: Lines, read: Read, here: int, actions: Actions) -> Iterator[Issued]:
    stages = [at for at, coordinate in enumerate(lines.plan.coordinates) if coordinate == here]
    functions, issue = {at: lines.functions(at) for at in stages}, _Issue(lines, read.texts.degree)
    for at in stages:
        for _ in range(lines.plan.microbatches):
            yield from issue.forward(functions[at].get("before_microbatch", ()))
        yield from issue.forward(functions[at].get("before_step", ()))
    for kind, at in actions:
        received = any(_gradient(given) for given in read.stages[at].receives)
        if kind == "F":
            yield from issue.forward(functions[at]["forward"])
        elif kind == "B" or kind == ("I" if received else "W"):
            yield from issue.backward(functions[at]["forward"])
    for at in stages:
        yield from issue.forward(functions[at].get("conclude", ()))


def _gradient(given: Variable) -> bool:
    return bool(given.given.get("gradient"))


def _messages(plan: Plan, read: Read, here: int, actions: Actions) -> Iterator[Issued]:
    """The values and gradients that go to other coordinates."""
    for kind, at in actions:
        to, into = (at + 1, at + 1) if kind == "F" else (at - 1, at)
        if kind == "W" or not 0 <= to < len(read.stages) or plan.coordinates[to] == here:
            continue
        for given in read.stages[into].receives:
            if kind == "F" or _gradient(given):
                yield Issued(MESSAGES, "send", (str(plan.coordinates[to]),), given.local.most)


def _buckets(plan: Plan, here: int) -> list[list[ParamPlan]]:
    """Those of a coordinate, in the order in which they start."""
    mine = [v for v in plan.graph.params if plan.graph.values[v].gradient and here in coordinates_of(plan, v)]
    sizes = {v: sizes_of(plan, plan.params[v]) for v in mine}
    found = Buckets(plan, list(plan.graph.in_turns(mine)), sizes).members
    return [[plan.params[v] for v, _ in members] for members in found]


def _gradients(plan: Plan, here: int, actions: Actions) -> Iterator[Issued]:
    """The sums of buckets: each in the last backward that gives to it or, if it asks for that, in
    each; those that wait for other coordinates at the end; then second parts."""
    sums = [(plan.stages_of(bucket[0].value), each) for bucket in _buckets(plan, here) for each in _sums(plan, bucket)]
    for at, (kind, stage) in enumerate(actions):
        later = {other for k, other in actions[at + 1 :] if k in "BW"}
        for stages, (each, _, issued) in sums:
            due = kind in "BW" and stage in stages and not each.last
            if due and (each.each or later.isdisjoint(stages)):
                yield issued
    for second in (False, True):
        yield from (issued for _, (each, rows, issued) in sums if each.last and rows is second)


def _sums(plan: Plan, bucket: Sequence[ParamPlan]) -> Iterator[tuple[GradientSum, bool, Issued]]:
    """The sums of a bucket, and whether they are of rows that were cut before: of as many as the first member has."""
    first = bucket[0]
    part = sum(part_bytes(plan, p, stored_type(plan, p)) for p in bucket) // BYTES[stored_type(plan, first)]
    whole = sum(local_bytes(plan, p) for p in bucket) // BYTES[stored_type(plan, first)]
    some = {*first.zero_axes} & {*first.reduce_axes}
    for each in gradient_sums(plan)[first.value]:
        rows = first.zero > 0 and each.collective == "all_reduce" and (not some or some == {*first.zero_axes})
        size = (
            whole if not first.zero else part * (1 if rows else plan.meshes[first.stored.mesh].degree(first.zero_axes))
        )
        axes = tuple(axis for axis in each.axes if plan.pipeline is None or axis != plan.pipeline.axis)
        yield each, rows, Issued(GRADIENTS, each.collective, axes, size)


def _parameters(plan: Plan, read: Read, here: int, actions: Actions) -> Iterator[Issued]:
    """The gathers of ZeRO 3 in the passes of a step, then of the rows that were updated."""
    there, kept = set[str](), set[str]()
    passes: dict[tuple[str, int], list[set[str]]] = {}
    for at in range(len(read.stages)):
        for kind, paths in units(read, at):
            passes.setdefault((kind, at), []).append({*paths})
    for action in actions:
        for unit in passes.get(action, ()):
            new = {path for path in unit if read.declared[path].given.get("keep")} - kept
            fleeting = {path for path in unit if not read.declared[path].given.get("keep")}
            kept |= new
            again = set() if fleeting <= there else fleeting
            there = fleeting if again else there
            yield from _gathered(plan, new | again)
    for bucket in _buckets(plan, here):
        if 0 < bucket[0].zero < 3:
            yield Issued(PARAMETERS, "all_gather", bucket[0].zero_axes, sum(part_bytes(plan, p) for p in bucket))


def _gathered(plan: Plan, paths: set[str]) -> Iterator[Issued]:
    """One gather for each group and type."""
    found: dict[tuple[tuple[str, ...], str], int] = {}
    values = [plan.graph.values[v] for v in plan.graph.params]
    for value in (value for value in values if value.path in paths):
        axes, dtype = plan.params[value.id].zero_axes, value.type.dtype
        elements = part_bytes(plan, plan.params[value.id]) // BYTES[dtype]
        found[axes, dtype] = found.get((axes, dtype), 0) + elements
    for (axes, _), elements in found.items():
        yield Issued(PARAMETERS, "all_gather", axes, elements)


@dataclass(frozen=True)
class _Issue:
    """Lines -> collectives of values. degree: ranks of a group."""

    lines: Lines
    degree: Callable[[AxisGroup], int]

    def forward(self, items: Items) -> Iterator[Issued]:
        for item in items:
            match item:
                case Line():
                    yield from self._line(item, 0)
                case Repeated():
                    for _ in range(item.times):
                        yield from self.forward(item.items)
                case Again():
                    yield from self.forward(item.items)

    def backward(self, items: Items) -> Iterator[Issued]:
        for item in reversed(items):
            match item:
                case Line() if self.lines.goes_back(item):
                    yield from self._line(item, 1)
                case Repeated():
                    for _ in range(item.times):
                        yield from self.backward(item.items)
                case Again():
                    tail = len(item.items)
                    while tail and not self.lines.again(item.items[tail - 1]):
                        tail -= 1
                    yield from self.backward(item.items[tail:])
                    yield from self.forward(item.items[:tail])
                    yield from self.backward(item.items[:tail])

    def _line(self, line: Line, way: int) -> Iterator[Issued]:
        if line.what == KEEPING:
            return
        if line.what not in CONVERSIONS:
            yield from [Issued(VALUES, "all_reduce", line.group.axes)] * self.lines.runs(line)[way]
            return
        kind, given = CONVERSIONS[line.what][way], line.made if way else line.given
        if kind and given is not None and self.degree(line.group) > 1:
            # Members' parts travel as long as the longest.
            padded = line.given if way and kind == "reduce_scatter" else line.made
            apart = padded.most * self.degree(line.group) if kind == "reduce_scatter" and padded else given.most
            yield Issued(VALUES, kind, line.group.axes, apart)
