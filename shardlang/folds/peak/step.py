"""A plan -> for each coordinate along the axis of stages, the most bytes that a rank holds on its
device at one time of a step: when, at which operator, and what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property

from shardlang.facts.actions import Action
from shardlang.folds.peak.casts import cast_together
from shardlang.folds.peak.course import Section, follow, repeats, sections
from shardlang.folds.peak.flowing import FLOWING
from shardlang.folds.peak.gathers import COMING, Gathers, of_each
from shardlang.folds.peak.ledger import NONE, USED, Beside, Event, Rise, When
from shardlang.folds.peak.passes import KEPT, MESSAGES, NAMED, StagePass
from shardlang.folds.peak.reductions import BucketInFlight, Buckets, Gradients, ParameterBytes, sizes_of
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import InTurn
from shardlang.paths.patterns import SingleLayers
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, form, inputs, makes, transfers
from shardlang.step.blocks.kinds import kinds_of
from shardlang.step.messages import messages
from shardlang.step.parameters import all_held, of_alike
from shardlang.step.passes import passes
from shardlang.step.saved_activations import form_bytes, saved_activations
from shardlang.step.stages import coordinates_of, stages_by_coordinate
from shardlang.step.windows import Windows, windows
from shardlang.step.zero3_gathers import Brought, orders

# Parts that belong to one microbatch of a stage.
_OF_PASSES = (KEPT, NAMED, FLOWING)


@dataclass(frozen=True)
class Peak:
    """bytes: on the device. parts: what they are. doing: forward, again (forward within backward),
    backward, reduce or update; op: the operator (id) that it is at, -1: none; turn: of a run, in
    which of its layers. microbatch: -1: none."""

    bytes: int
    parts: Mapping[str, int]
    doing: str = ""
    op: int = -1
    microbatch: int = -1
    turn: int = 0


@remembered
def step_peaks(plan: Plan) -> tuple[Peak, ...]:
    """The peak of each coordinate; one where there are no stages."""
    return tuple([line.peak() for line in _line_of(plan)])


@remembered
def _line_of(plan: Plan) -> list[_Line]:
    """The coordinates."""
    return _lines(plan)


def steps_of_memory(plan: Plan, coordinate: int) -> Iterator[tuple[str, object, int]]:
    """All that comes and goes on a coordinate, from before the step to its peak: (what, whose,
    bytes, below 0 where it goes; `MEANWHILE` is there for a moment). Microbatches that begin and
    end between the first backward and the peak are left out, but for the first of each stage."""
    step_peaks(plan)
    return _line_of(plan)[coordinate].ops()


def peaks_by_action(plan: Plan, coordinate: int) -> list[Peak]:
    """The most that a rank of a coordinate holds in each action, in order; last the update."""
    lines = _lines(plan)
    found = lines[coordinate].seen = []
    lines[coordinate].peak()
    return found


def _lines(plan: Plan) -> list[_Line]:
    """The coordinates. SingleLayers where the plan tells a run once whose layers differ in this."""
    stages = _stages_of(plan)
    lines = [_Line(stages, at, row) for at, row in zip(stages_by_coordinate(plan), plan.actions, strict=True)]
    if not all(repeats(course, stages.windows) for kind in stages.courses.values() for course in kind):
        raise SingleLayers
    return lines


@dataclass(frozen=True)
class _Stages:
    """The passes of all stages, forward and backward; those of equal stages are worked out once."""

    plan: Plan
    windows: Windows
    rises: dict[object, tuple[Rise, BucketInFlight | None]] = field(default_factory=dict)
    courses: dict[object, tuple[list[Section], list[Section]]] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> Mapping[int, object]:
        """Stage -> what is equal for stages that differ only in which layers they have."""
        plan, turns = self.plan, self.windows.turns
        if plan.pipeline is None:
            return {0: ()}
        found: dict[int, object] = {}
        for stage, steps in ((stage, each.steps) for stage, each in passes(plan).items()):
            runs = [turns(self.windows.of[step]) for step in steps] if self.windows.runs else []
            waiting = sorted((at, to) for (at, _), to in cast_together(plan, stage, steps).items())
            found[stage] = kinds_of(plan).number((*self._wired(stage, steps), *runs, *waiting))
        return found

    def _wired(self, stage: int, steps: Sequence[Step]) -> Iterator[object]:
        """The work of each step, and the numbers of the values that it reads and makes, and of
        those that the next stage is given."""
        plan, kinds, owners = self.plan, kinds_of(self.plan), saved_activations(self.plan).owners
        numbers: dict[Form, int] = {}
        for step in steps:
            forms, group = [*inputs(plan)[step], *makes(plan)[step]], owners.of(step)
            yield kinds.step(step), group is not None, owners.to_host(group)
            yield from ((numbers.setdefault(at, len(numbers)), kinds.form(at)[0]) for at in forms)
        given = (form(each.operands[0]) for each in transfers(plan) if plan.stage(each.op) == stage + 1)
        yield "gives", *(numbers.get(each, -1) for each in given)

    @cached_property
    def there(self) -> Mapping[int, list[InTurn]]:
        """Coordinate (0 without stages) -> the parameters, states and fields on its device."""
        plan, found = self.plan, dict[int, list[InTurn]]()
        for value, turn in plan.graph.in_turns((*plan.params, *plan.graph.data)):
            if value in plan.produced and value not in plan.memory_of:
                for coordinate in coordinates_of(plan, value):
                    found.setdefault(coordinate, []).append((value, turn))
        return found

    @cached_property
    def sizes(self) -> Mapping[int, ParameterBytes]:
        """Parameter -> its bytes."""
        return of_alike(self.plan, sizes_of)

    def course(self, stage: int) -> tuple[list[Section], list[Section]]:
        """The passes of one."""
        kind = self.kinds.get(stage)
        if kind not in self.courses:
            of = passes(self.plan)[stage]
            both = StagePass(of, [self.windows.of[step] for step in of.steps])
            self.courses[kind] = sections(both.forward()), sections(both.backward())
        return self.courses[kind]


@remembered
def _stages_of(plan: Plan) -> _Stages:
    """Those of a plan, for all who follow its steps."""
    return _Stages(plan, windows(plan))


class _Line:
    """One coordinate's step."""

    def __init__(self, of: _Stages, stages: tuple[int, ...], actions: Sequence[Action]) -> None:
        self.plan, self.of, self.stages, self.actions = of.plan, of, stages, actions
        self.mine = stages
        self.kind = tuple([of.kinds.get(stage) for stage in self.mine])
        for stage in self.mine:
            of.course(stage)
        self.there = of.there.get(self.plan.coordinates[self.mine[0]], [])
        self._begin()
        self.best, self.best_at = Peak(NONE, {}), 0
        self.seen: list[Peak] | None = None

    def _begin(self) -> None:
        """Before a step. done: stages with a backward; sent: ZeRO's bucket that is under way."""
        self.done = set[int]()
        self.sent: BucketInFlight | None = None

    def always(self) -> Counter[str]:
        """The bytes that are there all the time."""
        plan = self.plan
        here = [all_held(plan)[value] for value, _ in self.there if value in plan.params]
        data = sum(form_bytes(plan, (v, -1)) for v, _ in self.there if v not in plan.params) * plan.microbatches
        return Counter(
            parameters=sum(each.itself for each in here), copies=sum(each.copy for each in here),
            optimizer=sum(each.optimizer for each in here), batch=data,
        )  # fmt: skip

    @cached_property
    def buckets(self) -> Buckets:
        values = self.plan.graph.values
        trained = (each for each in self.there if each[0] in self.plan.params and values[each[0]].gradient)
        return Buckets(self.plan, list(trained), self.of.sizes)

    def peak(self) -> Peak:
        parts, passes = self.always(), [(action.kind, action.stage) for action in self.actions]
        brought = orders(self.plan).line(passes)
        for at, (action, after) in enumerate(zip(self.actions, [*self.actions[1:], None], strict=True)):
            # What the next action receives is on its way.
            ahead = self._message(after) if after is not None else 0
            parts[MESSAGES] += ahead
            rise = self._rise(action, brought[at])
            self._see(parts, rise, action, at)
            if self._gives(action):
                parts[MESSAGES] = ahead
            parts.update(rise.left)
            parts[MESSAGES] -= ahead
        self._see(parts, self._update(), Action(0, "U", -1), len(self.actions))
        return self.best

    def _update(self) -> Rise:
        """The rows of ZeRO 1 and 2 that have been updated go to all ranks, of all parameters at
        once (runtime/state/zero.py): what has come is there until forward reads it."""
        beside = Beside()
        for size in self._published():
            beside.add(COMING, size)
        beside.look("update")
        return beside.over()

    def _published(self) -> Iterator[int]:
        """Bytes that come so."""
        for value, _ in self.buckets.trained:
            if 1 <= self.plan.params[value].zero <= 2:
                yield from of_each(self.plan)[value]

    def _message(self, action: Action) -> int:
        """Bytes that an action receives from another rank."""
        stage = action.stage + (not action.forward)  # the later one of the two
        if action.apart or stage == len(self.plan.coordinates) or not self.plan.crosses(stage):
            return 0
        return messages(self.plan)[stage][not action.forward]

    def _gives(self, action: Action) -> bool:
        """Whether an action sends anything to another rank, and lets go of what was sent before."""
        stage = action.stage + action.forward  # the later one of the two
        return not action.apart and stage < len(self.plan.coordinates) and self.plan.crosses(stage)

    # --- one by one

    def ops(self) -> Iterator[tuple[str, object, int]]:
        """As `steps_of_memory` gives them."""
        for value, _ in self.there:
            yield from self._always(value)
        brought = orders(self.plan).line([(action.kind, action.stage) for action in self.actions])
        self._begin()
        sent = list[int]()
        few, left = self._few(), Counter[str]()
        for at, action in enumerate(self.actions[: self.best_at + 1]):
            over, sent = (sent, []) if self._gives(action) else ([], sent)
            own = list[tuple[str, int]]()
            if at not in few:  # what it leaves beside its own
                found = dict(self._rise(action, brought[at]).left)
                if (made := found.pop(MESSAGES, 0)) == sum(over):  # which stand for those that it sends
                    sent += over
                else:
                    left[MESSAGES] += made - sum(over)
                    sent.append(made)
                left.update({part: size for part, size in found.items() if part not in _OF_PASSES})
                continue
            yield from ((part, None, size) for part, size in left.items())
            left.clear()
            ahead = self._message(self.actions[at + 1]) if at + 1 < len(self.actions) else 0
            self._rise(action, brought[at], own)
            yield MESSAGES, "ahead", ahead
            for part, size in own:
                yield part, (action.stage, action.microbatch) if part in _OF_PASSES else None, size
            yield from ((MESSAGES, None, -size) for size in over)
            sent += [size for part, size in own if part == MESSAGES]
            yield MESSAGES, "ahead", -ahead
        if self.best_at == len(self.actions):
            yield from ((COMING, None, size) for size in self._published())

    def _always(self, value: int) -> Iterator[tuple[str, object, int]]:
        """As `always`, tensor by tensor."""
        plan = self.plan
        if value not in plan.params:
            yield "batch", None, form_bytes(plan, (value, -1)) * plan.microbatches
            return
        held, left = all_held(plan)[value], all_held(plan)[value].optimizer
        yield "parameters", None, held.itself
        yield "copies", None, held.copy
        each = self.of.sizes[value].updated if value in self.of.sizes else left
        while left > 0:
            yield "optimizer", None, min(left, max(each, 1))
            left -= max(each, 1)

    def _few(self) -> set[int]:
        """The actions up to the peak, without pairs of a forward and its backward between the first
        backward and the peak; of each stage the first microbatch stays."""
        upto = self.actions[: self.best_at + 1]
        first = next((at for at, action in enumerate(upto) if not action.forward), len(upto))
        between = [(at, a) for at, a in enumerate(upto) if first < at < self.best_at and a.microbatch]
        kinds = Counter((a.stage, a.microbatch) for _, a in between)
        whole = Counter((a.stage, a.microbatch) for a in self.actions)
        gone = {at for at, a in between if kinds[a.stage, a.microbatch] == whole[a.stage, a.microbatch]}
        return {*range(len(upto))} - gone

    def _rise(self, action: Action, brought: Brought, ops: list[tuple[str, int]] | None = None) -> Rise:
        """The rise of an action: the same for the same of an equal coordinate. ops: takes up all
        that comes and goes in it."""
        # A backward that is cut in two is followed as if all of it was the first half.
        forward, rest = action.forward, action.apart
        first, last = action.stage not in self.done, action.microbatch == self.plan.microbatches - 1
        if not forward:
            self.done.add(action.stage)
        ends = action is self.actions[0], action is self.actions[-1]
        gathered = (*ends, *brought[1:]) if orders(self.plan).cut else ()
        under_way = None if forward else self.sent
        key = self.kind, self.mine.index(action.stage), forward or (rest, first, last, ends[1], under_way), gathered
        if key not in self.of.rises or ops is not None:
            beside = Beside(ops)
            gathers = Gathers(self.plan, beside, brought, ends[0])
            taken = Gradients(self.buckets, beside, action.stage, first, last, under_way)

            def happens(event: Event, turn: int) -> None:
                read = inputs(self.plan)[passes(self.plan)[action.stage].steps[event.step]][event.operand]
                value = read[0]
                if event.kind == USED:
                    if value not in self.plan.params:  # a view of one
                        value = saved_activations(self.plan).memory(read)[0]
                    gathers.use(self._in_turn(value, turn), "forward" if forward else "backward", event.step)
                else:
                    taken.given(self._in_turn(value, turn), event.size)

            if rest:
                beside.look("backward")
            else:
                alike, course = not gathered and (forward or taken.alike), self.of.course(action.stage)[not forward]
                follow(course, self.of.windows, forward, beside, happens, alike)
            if ends[1]:
                taken.conclude()
                gathers.end()
            self.of.rises[key] = beside.over(), taken.sent
        rise, after = self.of.rises[key]
        self.sent = self.sent if forward else after
        return rise

    def _in_turn(self, value: int, turn: int) -> InTurn:
        """A parameter that this layer of a run reads."""
        return value, turn if self.plan.graph.values[value].times > 1 else 0

    def _see(self, before: Counter[str], rise: Rise, action: Action, at: int) -> None:
        total = before.total() + rise.most
        if total > self.best.bytes or self.seen is not None:
            parts = Counter(before)
            parts.update(rise.parts)
            op = self._op(action.stage, rise.at)
            found = Peak(total, +parts, rise.at.doing, op, action.microbatch, rise.at.turn)
            if total > self.best.bytes:
                self.best, self.best_at = found, at
            if self.seen is not None:
                self.seen.append(found)

    def _op(self, stage: int, at: When) -> int:
        """The operator (id) to name for a moment."""
        if at.step < 0:
            return -1
        step, plan = passes(self.plan)[stage].steps[at.step], self.plan
        if step.kind == "op":
            return plan.ops[step.index].op
        return plan.graph.producers.get(plan.conversions[step.index].value, -1)
