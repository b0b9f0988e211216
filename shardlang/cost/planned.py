"""A plan -> its `Workload`: the items of each stage's passes, layer by layer, and of what happens
once a step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from shardlang.cost.items import Items, Steps, class_of
from shardlang.cost.parameters import Parameters
from shardlang.cost.work import FORWARD, INPUTS, Coordinate, Copy, Item, Pass, Place, Segment, StageWork, Workload
from shardlang.folds.flops import step_flops, step_tokens
from shardlang.folds.pipeline_report import whole_mesh
from shardlang.frozen.records import remembered
from shardlang.paths.patterns import count
from shardlang.plan.plan import Plan, Step
from shardlang.step.messages import messages
from shardlang.step.passes import StagePasses, passes
from shardlang.step.phases import phases
from shardlang.step.saved_activations import saved_activations
from shardlang.step.stages import stages_by_coordinate
from shardlang.step.units import PassWay, received
from shardlang.step.zero3_gathers import orders


@remembered
def work(plan: Plan) -> Workload:
    """The work of a step of a plan."""
    return _Planned(plan).work()


class _Planned:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps = Steps(plan)
        self.parameters = Parameters(plan)
        self.phases = phases(plan)
        self._body = {*self.phases.body}
        self._segments: dict[object, Segment] = {}
        self._copies: dict[tuple[str, str, int], Items] = {}

    def work(self) -> Workload:
        plan, pipeline = self.plan, self.plan.pipeline
        stages = tuple([self._stage(of) for of in passes(plan).values()])
        meshes = tuple([whole_mesh(plan, i) for i in range(len(plan.meshes))])
        coordinates = tuple([self._coordinate(each) for each in stages_by_coordinate(plan)])
        return Workload(
            plan.ranks, meshes, plan.microbatches, stages=stages, coordinates=coordinates, actions=plan.actions,
            axis=pipeline.axis if pipeline is not None else "",
            schedule=pipeline.schedule if pipeline is not None else "", bucket_bytes=plan.bucket_bytes,
            flops=step_flops(plan.graph), hidden=hidden_flops(plan), tokens=step_tokens(plan),
        )  # fmt: skip

    def _here(self, of: StagePasses, some: Collection[Step]) -> list[Step]:
        """The steps of some that a stage runs, in order."""
        return [step for step in of.steps if step in some and not received(self.plan, step)]

    def _stage(self, of: StagePasses) -> StageWork:
        steps = self._here(of, self._body)
        parts, done, stage = self._parts(steps), self._done(of), of.stage
        forward = [
            self._segment(key, [*(self.steps.forward(s) for s in part), self._sent(key, part, FORWARD)])
            for key, part in parts
        ]
        backward = [self._segment(key, self._back(key, part, done), 1) for key, part in reversed(parts)]
        forward = self._gathered(forward, parts, ("F", stage))
        backward = self._gathered(backward, parts[::-1], ("B", stage))
        backward = self._reduced(backward, parts[::-1])
        received = messages(self.plan)[stage] if self.plan.crosses(stage) else (0, 0)
        return StageWork(run(forward), run(backward), received, of.halves)

    def _parts(self, steps: Sequence[Step]) -> list[tuple[str, list[Step]]]:
        """Runs of steps: of each layer of an array; outside of arrays each reads the parameters of
        one operator."""
        found: list[tuple[str, list[Step]]] = []
        waiting: list[Step] = []
        for step in steps:
            waiting.append(step)
            if step.kind == "conversion":
                continue
            op = self.plan.graph.ops[self.plan.ops[step.index].op]
            key = self._layer(op.within)
            if not found or found[-1][0] != key or (not key and not self.parameters.read.isdisjoint(op.operands)):
                found.append((key, []))
            found[-1][1].extend(waiting)
            waiting = []
        if found:
            found[-1][1].extend(waiting)
        return found

    def _sent(self, layer: str, part: Sequence[Step], phase: str) -> Items:
        """The copies of a part to the host, of what it saves there, or back."""
        sent = saved_activations(self.plan).sent
        size = sum(sent.get(self.plan.ops[step.index].op, 0) for step in part if step.kind == "op")
        if not size:
            return ()
        key, to = class_of(layer), "host" if phase == FORWARD else "device"
        first = next(self.plan.ops[step.index].op for step in part if step.kind == "op")
        place = Place(key, key, "saved on host", self.plan.graph.ops[first].span.line)
        return self._copies.setdefault((key, phase, size), (Copy(place, phase, to, size, beside=True),))

    def _layer(self, call: int) -> str:
        """The path of the outermost layer of an array that a call is in; "" for none."""
        calls, found = self.plan.graph.calls, ""
        while call >= 0:
            found = calls[call].path if calls[call].path.endswith("]") else found
            call = calls[call].within
        return found

    def _done(self, of: StagePasses) -> Mapping[Step, list[Items]]:
        """Step -> the items of what backward does for it: again its forward, and back."""
        found: dict[Step, list[Items]] = {}
        for work in of.backward:
            items = self.steps.backward if work.way is PassWay.BACK else self.steps.again
            for step in (of.steps[at] for at in work.steps):
                found.setdefault(step, []).append(items(step))
        return found

    def _back(self, key: str, part: Sequence[Step], done: Mapping[Step, list[Items]]) -> list[Items]:
        """The backward of a part, with what its gradients need once they are whole."""
        whole = [self.parameters.accumulated(value) for value in self._completed(part)]
        return [*(items for step in part for items in done.get(step, ())), *whole, self._sent(key, part, INPUTS)]

    def _completed(self, part: Sequence[Step]) -> list[int]:
        """The parameters whose gradients are whole once a part has gone back."""
        reads = self.parameters.first_read
        return sorted({v for step in part for v in reads.get(step, ())}, reverse=True)

    def _segment(self, key: str, made: list[Items], way: int = 0) -> Segment:
        layer = class_of(key) if key else ""
        known = layer, way, count(key), *[id(items) for items in made if items]
        if known not in self._segments:
            counts: dict[Item, int] = {}
            for items in made:
                for item in items:
                    counts[item] = counts.get(item, 0) + 1
            name = layer or next((item.place.layer for item in counts), "")
            self._segments[known] = Segment(name, counts, count(key))
        return self._segments[known]

    def _gathered(
        self, segments: Sequence[Segment], parts: Sequence[tuple[str, list[Step]]], at: tuple[str, int]
    ) -> list[Segment]:
        """With the units of ZeRO 3 that come for each: for a layer that of the layer, else before
        the first step that reads any of it."""
        units = list(orders(self.plan).passes.get(at, ()))
        found: list[list[frozenset[int]]] = [[] for _ in segments]
        place = 0
        for unit in units:
            for later in range(place, len(parts)):
                key, steps = parts[later]
                if unit.layer == key if unit.layer else not unit.params.isdisjoint(self.parameters.uses(steps)):
                    place = later
                    break
            found[place].append(unit.params)
        made = (self.parameters.gathers(mine) for mine in found)
        return [replace(s, gathers=g) if (g := each) else s for s, each in zip(segments, made, strict=True)]

    def _reduced(self, segments: Sequence[Segment], parts: Sequence[tuple[str, list[Step]]]) -> list[Segment]:
        found = []
        for segment, (_, steps) in zip(segments, parts, strict=True):
            made = tuple([r for v in self._completed(steps) if (r := self.parameters.reduction(v)) is not None])
            found.append(replace(segment, reductions=made) if made else segment)
        return found

    def _coordinate(self, stages: tuple[int, ...]) -> Coordinate:
        once = self.phases
        ahead: dict[Item, int] = {}
        after: dict[Item, int] = {}
        each = self.plan.microbatches
        runs = (once.ahead, ahead, each), (once.known, ahead, 1), (once.after, after, 1)
        for steps, into, times in runs:
            here = (self._here(passes(self.plan)[stage], {*steps}) for stage in stages)
            for step in dict.fromkeys(step for each in here for step in each):
                for item in self.steps.forward(step):
                    into[item] = into.get(item, 0) + times
        for item in self.parameters.after(stages):
            after[item] = after.get(item, 0) + 1
        return Coordinate(stages, ahead, after, self.parameters.updates(stages), self.parameters.published(stages))


def run(segments: Iterable[Segment]) -> Pass:
    """Segments, with equal ones that follow each other as one."""
    found: list[Segment] = []
    for segment in segments:
        if found and replace(found[-1], times=segment.times) == segment:
            found[-1] = replace(found[-1], times=found[-1].times + segment.times)
        else:
            found.append(segment)
    return tuple(found)


def hidden_flops(plan: Plan) -> int:
    """The operations of pairs that causal masks hide, which `step_flops` leaves out."""
    masked = [op for op in plan.graph.ops if op.attrs.get("causal")]
    whole = [replace(op, attrs={**op.attrs, "causal": False}) for op in masked]
    with_all, without = (step_flops(replace(plan.graph, ops=tuple(ops))) for ops in (whole, masked))
    return with_all - without
