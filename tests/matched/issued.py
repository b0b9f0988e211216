"""A program -> the collectives that the ranks of a coordinate issue in a step, in order, by what they are for: values
as its plan says them, gradients and parameters as its text does.

Lines stand for what autograd and the runtime make of them: backward goes through lines from the last to the first and
runs their duals, and first runs again what is computed again. Tests hold this to what real ranks issue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from shardlang.emit.emit import Emission
from shardlang.emit.statements import StatementWriter
from shardlang.matched.lines import Again, AxisGroup, Items, Line, Repeated, Uneven, lines_of
from shardlang.matched.planned import Planned
from shardlang.matched.read_back.buckets import EmittedBucket, buckets
from shardlang.matched.read_back.program import Read
from shardlang.matched.read_back.settings import listed, schedule, units
from shardlang.matched.table import CONVERSIONS, KEEPING
from shardlang.plan.plan import Step
from shardlang.step.saved_activations import saved_activations
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

    def _steps(self, writer: StatementWriter, steps: Sequence[Step], gradient: bool) -> Iterator[Line]:
        for _, mine in writer.statements(steps) if steps else ():
            for step in mine:
                for line in self._of_step(step, gradient, writer.training):
                    self.steps[id(line)] = step, line
                    yield line

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
    actions, parts = actions_of(read, here), (_messages, _gradients, _parameters)
    values = _values(Lines(emission), read, here, actions)
    return [*values, *(one for part in parts for one in part(read, here, actions))]


def microbatches(read: Read) -> int:
    """The parts of a batch that a step goes through."""
    axes = [axis for _, axes in read.text.meshes.values() for axis in axes.items()]
    return next((size for axis, size in axes if axis in read.text.times), 1)


def _rows(read: Read, path: str) -> tuple[int, int]:
    """The rows that a rank would have of a parameter without ZeRO, and the elements of one."""
    sizes = read.text.declared[path].local.sizes or (1,)
    first, *rest = (max(size.sizes) if isinstance(size, Uneven) else size for size in sizes)
    return first, math.prod(rest)


def actions_of(read: Read, here: int) -> Actions:
    """The passes of a step at a coordinate."""
    rows = schedule(read)
    if rows:
        return [(action.kind, action.stage) for action in rows[here].actions]
    return [(kind, 0) for _ in range(microbatches(read)) for kind in "FB"]


def _values(lines: Lines, read: Read, here: int, actions: Actions) -> Iterator[Issued]:
    stages = [at for at, coordinate in enumerate(read.coordinates) if coordinate == here]
    functions, issue = {at: lines.functions(at) for at in stages}, _Issue(lines, read.text.degree)
    for at in stages:
        for _ in range(microbatches(read)):
            yield from issue.forward(functions[at].get("before_microbatch", ()))
        yield from issue.forward(functions[at].get("before_step", ()))
    for kind, at in actions:
        received = any(given.gradient for given in read.stages[at].receives)
        if kind == "F":
            yield from issue.forward(functions[at]["forward"])
        elif kind == "B" or kind == ("I" if received else "W"):
            yield from issue.backward(functions[at]["forward"])
    for at in stages:
        yield from issue.forward(functions[at].get("conclude", ()))


def _messages(read: Read, here: int, actions: Actions) -> Iterator[Issued]:
    """The values and gradients that go to other coordinates."""
    for kind, at in actions:
        to, into = (at + 1, at + 1) if kind == "F" else (at - 1, at)
        if kind == "W" or not 0 <= to < len(read.stages) or read.coordinates[to] == here:
            continue
        for given in read.stages[into].receives:
            if kind == "F" or given.gradient:
                yield Issued(MESSAGES, "send", (str(read.coordinates[to]),), given.local.most)


def _gradients(read: Read, here: int, actions: Actions) -> Iterator[Issued]:
    """The sums of buckets: each in the last backward that gives to it or, if it asks for that, in
    each; those that wait for other coordinates at the end; then second parts."""
    mine = buckets(read, here)
    waits = [len(b.how.coordinates) > 1 and (not b.how.shard or bool(_before(b))) for b in mine]
    for at, (kind, stage) in enumerate(actions):
        later = {other for k, other in actions[at + 1 :] if k in "BW"}
        for bucket, waiting in zip(mine, waits, strict=True):
            due = kind in "BW" and stage in bucket.how.stages and not waiting
            if due and (bucket.how.each or later.isdisjoint(bucket.how.stages)):
                yield from _first(read, bucket)
    for bucket, waiting in zip(mine, waits, strict=True):
        yield from _first(read, bucket) if waiting else ()
    for bucket in mine:
        yield from _second(read, bucket)


def _before(bucket: EmittedBucket) -> tuple[str, ...]:
    """The axes over which gradients are summed before their rows are cut: where only some of those
    that cut are pending."""
    shared = {*bucket.how.shard} & {*bucket.how.sum}
    return bucket.how.sum if shared and shared != {*bucket.how.shard} else ()


def _wide(read: Read, bucket: EmittedBucket) -> int:
    """Elements of the rows of the first member, the most that one has."""
    ranks = read.text.degree(AxisGroup(bucket.how.mesh, bucket.how.shard))
    return sum(-(-first // ranks) * rest for first, rest in (_rows(read, path) for path in bucket.paths))


def _first(read: Read, bucket: EmittedBucket) -> Iterator[Issued]:
    how, ranks = bucket.how, read.text.degree(AxisGroup(bucket.how.mesh, bucket.how.shard))
    if bucket.rows:
        yield Issued(GRADIENTS, "rows", how.sum)
    elif not how.shard:
        yield Issued(GRADIENTS, "all_reduce", how.sum, sum(bucket.elements))
    elif before := _before(bucket):
        yield Issued(GRADIENTS, "all_reduce", before, _wide(read, bucket) * ranks)
    if how.shard and {*how.shard} <= {*how.sum}:
        yield Issued(GRADIENTS, "reduce_scatter", how.shard, _wide(read, bucket) * ranks)


def _second(read: Read, bucket: EmittedBucket) -> Iterator[Issued]:
    """The sum over what further axes the rows are pending."""
    how = bucket.how
    over = tuple(axis for axis in how.sum if axis not in how.shard)
    if how.shard and not _before(bucket) and read.text.degree(AxisGroup(how.mesh, over)) * len(how.coordinates) > 1:
        yield Issued(GRADIENTS, "all_reduce", over, _wide(read, bucket))


def _parameters(read: Read, here: int, actions: Actions) -> Iterator[Issued]:
    """The gathers of ZeRO 3 in the passes of a step, then of the rows that were updated."""
    there, kept = set[str](), set[str]()
    passes: dict[tuple[str, int], list[set[str]]] = {}
    for at in range(len(read.stages)):
        for kind, paths in units(read, at):
            passes.setdefault((kind, at), []).append({*paths})
    for action in actions:
        for unit in passes.get(action, ()):
            new = {path for path in unit if read.text.declared[path].given.get("keep")} - kept
            fleeting = {path for path in unit if not read.text.declared[path].given.get("keep")}
            kept |= new
            again = set() if fleeting <= there else fleeting
            there = fleeting if again else there
            yield from _gathered(read, new | again)
    for bucket in buckets(read, here):
        if bucket.how.shard and not bucket.how.stored:
            size = sum(_bytes(read, path) for path in bucket.paths)
            yield Issued(PARAMETERS, "all_gather", bucket.how.shard, size)


def _gathered(read: Read, paths: set[str]) -> Iterator[Issued]:
    """One gather for each group and type."""
    found: dict[tuple[tuple[str, ...], str], int] = {}
    for path in (path for path in read.text.declared if path in paths):
        axes, local = listed(read.text.declared[path].given["zero"][1]), read.text.declared[path].local
        found[axes, local.dtype] = found.get((axes, local.dtype), 0) + _row_elements(read, path)
    for (axes, _), elements in found.items():
        yield Issued(PARAMETERS, "all_gather", axes, elements)


def _row_elements(read: Read, path: str) -> int:
    declared = read.text.declared[path]
    mesh = read.text.meshes[declared.given.get("mesh", "mesh")][0]
    ranks = read.text.degree(AxisGroup(mesh, listed(declared.given["zero"][1])))
    first, rest = _rows(read, path)
    return -(-first // ranks) * rest


def _bytes(read: Read, path: str) -> int:
    return _row_elements(read, path) * BYTES[read.text.declared[path].local.dtype]


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
                case Line() if item.gradient:
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
