"""The steps of a plan -> `operators` of its report, each with what is sent for it; those of equal
layers where they are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from shardlang.folds.block_report import OUTSIDE, ToldLayers, written
from shardlang.folds.pipeline_report import whole_mesh
from shardlang.folds.traffic import conversion_bytes, copy_bytes, handed_bytes, sends
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.ops.families.internal import TO_DEVICE, TO_HOST
from shardlang.plan.plan import Plan, PlannedOp, Step
from shardlang.plan.reads import layout_of, makes
from shardlang.step.saved_activations import again
from shardlang.step.stages import conversion_stages
from shardlang.types.dim import TensorType
from shardlang.types.layout import Layout, layout_text, local_shape, uneven_sizes
from shardlang.types.mesh import Mesh

# Groups are listed for plans of up to this many ranks.
MOST_LISTED = 64

Report = dict[str, Any]


def _in_time(mesh: Mesh, layout: Layout) -> int | None:
    """The dim that is cut in microbatches."""
    time = mesh.time
    return next((d for d, axes in enumerate(layout.dims) if time is not None and time.name in axes), None)


def _sizes(plan: Plan, type: TensorType, layout: Layout) -> list[list[int] | None]:
    """Per dim the local sizes by coordinate, where they differ."""
    mesh = plan.meshes[layout.mesh]  # what is cut in microbatches is cut evenly
    found = (uneven_sizes(t, mesh.degree(axes), plan.sizes) for t, axes in zip(type.dims, layout.dims, strict=True))
    return [list(sizes) if sizes else None for sizes in found]


@dataclass
class Tensors:
    """Entries of tensors. known: what is the same for all of one type and layout, by their ids:
    both are the plan's."""

    plan: Plan
    known: dict[tuple[int, int], Report] = field(default_factory=dict)

    def of(self, value: int, layout: Layout, place: ToldLayers = OUTSIDE) -> Report:
        it = self.plan.graph.values[value]
        key = id(it.type), id(layout)
        if key not in self.known:
            self.known[key] = self._found(it.type, layout)
        name = it.path.removeprefix("train.") if it.kind is Kind.DATA else it.path
        return {"name": place.path(name), **self.known[key]}

    def _found(self, type: TensorType, layout: Layout) -> Report:
        mesh = self.plan.meshes[layout.mesh]
        return {
            "layout": layout_text(type, layout, mesh),
            "shape": list(type.shape),
            "local_shape": list(local_shape(type, layout, mesh, self.plan.sizes)),
            "dtype": type.dtype,
            "mesh": layout.mesh,
            "cut": [list(mesh.ranked(axes)) for axes in layout.dims],
            "microbatches": _in_time(mesh, layout),
            "sizes": _sizes(self.plan, type, layout),
        }


class Moved(NamedTuple):
    """A value that is sent: its name, its layouts before and after, its local shape after."""

    value: str
    before: str
    after: str
    shape: Sequence[int]


@dataclass
class Operators:
    """Operators in the order of the plan's steps, each with the conversions that run at it.
    places: where steps are told; without, each by itself."""

    plan: Plan
    tensors: Tensors
    places: Mapping[Step, ToldLayers | None]

    def __post_init__(self) -> None:
        self.stages = conversion_stages(self.plan)
        self.bytes = conversion_bytes(self.plan)
        self.again = again(self.plan)
        self.lines: dict[Step, dict[str, int]] = {}

    def all(self) -> Iterator[Report]:
        """The entries; `lines` then has the entry, and its collective, of each step that is
        told."""
        waiting: list[tuple[int, ToldLayers]] = []
        latest: _ToldOperator | None = None
        at = -1
        for step, place in self._told():
            if step.kind == "conversion":
                if not sends(self.plan, self.plan.conversions[step.index]):
                    continue
                if latest is not None and not waiting and latest.makes(step.index):
                    latest.convert(step.index, "after", place)
                else:
                    waiting.append((step.index, place))
                continue
            if latest is not None:
                yield latest.entry()
            at += 1
            self.lines[step] = {"operator": at}
            latest = _ToldOperator(self, self.plan.ops[step.index], place, at)
            latest.runs(waiting)
            waiting = []
        if latest is not None:
            for conversion, place in waiting:
                latest.convert(conversion, "after", place)
            yield latest.entry()

    def _told(self) -> list[tuple[Step, ToldLayers]]:
        """The steps that are told, in order. A conversion that is no line of a layer is where the
        step is that runs next."""
        found, place = list[tuple[Step, ToldLayers]](), None if self.places else OUTSIDE
        for step in reversed([*makes(self.plan)]):
            place = self.places.get(step, place)
            found += [(step, place)] if place is not None else []
        return found[::-1]

    def times(self, place: ToldLayers) -> Report:
        """How many an entry stands for, where not each layer is told."""
        return {"times": place.times} if self.places else {}


@dataclass
class _ToldOperator:
    """An operator, which is entry `at`, and what is sent for it."""

    report: Operators
    planned: PlannedOp
    place: ToldLayers
    at: int
    collectives: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = self.report.plan
        self.op = self.plan.graph.ops[self.planned.op]

    def makes(self, conversion: int) -> bool:
        """Whether it makes the value of a conversion."""
        return self.plan.conversions[conversion].value in self.op.results

    def entry(self) -> Report:
        plan, op, result = self.plan, self.op, self._result()
        return {
            "source": f"{op.span.source.name}:{op.span.line}",
            "name": result["name"],
            **self.report.times(self.place),
            "text": written(op.statement or op.span),
            "operator": op.called,
            "section": op.section,
            "chosen": self.planned.chosen,
            "layout": result["layout"],
            "mesh": self.planned.mesh,
            "stage": plan.stage(op.id) if plan.pipeline else None,
            "recomputed": op.id in self.report.again,
            "place": plan.memory_of.get(op.results[0], "device"),
            "copied_bytes": list(copy_bytes(plan, self.planned)) if op.operator in (TO_DEVICE, TO_HOST) else None,
            "local_shapes": {"operands": [*map(self._operand, range(len(op.operands)))], "result": result},
            "collectives": self.collectives,
        }

    def _operand(self, at: int) -> Report:
        use = self.planned.operands[at]
        return self.report.tensors.of(use.value, use.layout, self.place)

    def _result(self) -> Report:
        return self.report.tensors.of(self.op.results[0], self.planned.results[0], self.place)

    def runs(self, before: Sequence[tuple[int, ToldLayers]]) -> None:
        """Adds the conversions that run ahead of it, and what it sends itself."""
        for conversion, place in before:
            self.convert(conversion, "before", place)
        for number in range(len(self.planned.inside)):
            self._inside(number)
        self._handed()

    def convert(self, index: int, phase: str, place: ToldLayers) -> None:
        """Adds a conversion."""
        plan, conversion = self.plan, self.plan.conversions[index]
        self.report.lines[Step("conversion", index)] = {"operator": self.at, "collective": len(self.collectives)}
        before, value = layout_of(plan, (conversion.value, conversion.parent)), plan.graph.values[conversion.value]
        kind, axes = conversion.move.kind, plan.meshes[before.mesh].ranked(conversion.move.axes)
        texts = [layout_text(value.type, layout, plan.meshes[layout.mesh]) for layout in (before, conversion.to)]
        moved = Moved(place.path(value.path), texts[0], texts[1], plan.local_shape(value.id, conversion.to))
        groups = _groups(plan, axes, before.mesh, self.report.stages[index])
        self._add(phase, kind.value, kind.collectives, moved, groups, self.report.bytes[index], place)

    def _inside(self, number: int) -> None:
        factor, axes, forward, backward = self.planned.inside[number]
        exchanged, kind = self.op.rule.factors[factor].exchanged, self.op.rule.factors[factor].collective
        moved = self._statistic(factor, not exchanged)
        if exchanged is not None and exchanged.asked:  # first the ids, then the rows that they name
            moved = _whole(self._result() if number else self._operand(0))
        groups = _groups(self.plan, axes, self.planned.mesh, {self.plan.stage(self.op.id)})
        self._add("inside", kind, (kind, kind), moved, groups, (forward, backward), self.place)

    def _statistic(self, factor: int, reduced: bool) -> Moved:
        """The operand that has a factor, and its local shape, without that where it is reduced."""
        at = next(i for i, dims in enumerate(self.op.rule.operands) if any(factor in d for d in dims))
        dim = next(i for i, d in enumerate(self.op.rule.operands[at]) if factor in d)
        found = _whole(self._operand(at))
        return found._replace(shape=[n for i, n in enumerate(found.shape) if i != dim or not reduced])

    def _handed(self) -> None:
        """The transfers from stage to stage, in pairs of ranks."""
        plan, pipeline, mesh = self.plan, self.plan.pipeline, self.planned.mesh
        forward, backward = handed_bytes(plan, self.planned)
        if pipeline is None or not forward:
            return
        to, axes = plan.stage(self.op.id), (pipeline.axis,)
        rows = whole_mesh(plan, mesh).groups(axes) if plan.ranks <= MOST_LISTED else None
        ends = pipeline.coordinates[to - 1], pipeline.coordinates[to]
        groups = {
            "axes": [*axes],
            "mesh": mesh,
            "groups": [[row[end] for end in ends] for row in rows] if rows is not None else None,
            "group_size": 2,
            "group_count": plan.ranks // pipeline.mesh.axis_size(pipeline.axis),
        }
        by, sizes = ("send", "send" if backward else ""), (forward, backward)
        self._add("inside", "send", by, _whole(self._result()), groups, sizes, self.place)

    def _add(
        self, phase: str, kind: str, by: tuple[str, str], moved: Moved, groups: Report, sizes: tuple[int, int],
        place: ToldLayers,
    ) -> None:  # fmt: skip
        """Adds the entry of something that is sent: `by` what forward and backward."""
        self.collectives.append({
            "phase": phase,
            "kind": kind,
            "forward": by[0],
            "backward": by[1],
            "value": moved.value,
            **groups,
            "from": moved.before,
            "to": moved.after,
            "local_shape": list(moved.shape),
            "forward_bytes": sizes[0],
            "backward_bytes": sizes[1],
            **self.report.times(place),
        })  # fmt: skip


def _whole(tensor: Report) -> Moved:
    """A tensor that is sent as it is."""
    return Moved(tensor["name"], tensor["layout"], tensor["layout"], tensor["local_shape"])


def _groups(plan: Plan, axes: tuple[str, ...], mesh: int, stages: set[int]) -> Report:
    """The axes of something that is sent, and the groups of ranks of some stages."""
    size, whole, pipeline = plan.meshes[mesh].degree(axes), whole_mesh(plan, mesh), plan.pipeline
    places = {pipeline.coordinates[s] for s in stages} if pipeline else {0}
    count = plan.meshes[mesh].timeless.size // size * len(places)
    listed = None
    if plan.ranks <= MOST_LISTED:
        groups = whole.groups(axes)
        listed = [list(g) for g in groups if not pipeline or whole.coordinate(g[0], pipeline.axis) in places]
    return {"axes": [*axes], "mesh": mesh, "groups": listed, "group_size": size, "group_count": count}
