"""A plan -> the plain dict that `shardc plan --json` prints (specs/plan-json.md,
specs/plan.schema.json). Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from shardlang.folds.block_report import blocks, written
from shardlang.folds.fits import device, needed, taken
from shardlang.folds.flops import amounts
from shardlang.folds.memory import Memory, by_coordinate, memory
from shardlang.folds.overview import overview
from shardlang.folds.peak.report import peak_entry
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.pipeline_report import pipeline_report, whole_mesh
from shardlang.folds.traffic import conversion_bytes, copied_bytes, copy_bytes, handed_bytes, sends, sent_bytes
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.ops.families.internal import TO_DEVICE, TO_HOST
from shardlang.paths.patterns import in_turn
from shardlang.plan.plan import ParamPlan, Plan, PlannedOp, Step
from shardlang.plan.reads import layout_of, makes
from shardlang.step.gradient_sums import gradient_sums, summed_bytes
from shardlang.step.parameters import all_held
from shardlang.step.saved_activations import again
from shardlang.step.stages import conversion_stages, stages_by_coordinate
from shardlang.types.dim import TensorType
from shardlang.types.layout import Layout, layout_text, local_shape, uneven_sizes
from shardlang.types.mesh import Mesh

# Of specs/plan.schema.json.
VERSION = 2
# Groups are listed for plans of up to this many ranks.
MOST_LISTED = 64
# Kinds of tensors that are told of a moment.
MOST_TENSORS = 8

Report = dict[str, Any]


def _precision(plan: Plan) -> str:
    """The precision of the run, as a program writes it."""
    training = plan.program.training
    if training is None or not training.stream:
        return training.precision if training is not None else "f32"
    return f"{training.precision}(stream = {training.precision})"


def report(plan: Plan, folded: bool = True) -> Report:
    """Everything about a plan that is shown, as plain data. folded: `blocks` in runs."""
    meshes = [whole_mesh(plan, i) for i in range(len(plan.meshes))]
    by_stages = stages_by_coordinate(plan)
    needs, most = needed(plan), max(by_stages, key=lambda mine: sum(sent_bytes(plan, mine)))
    fullest = needs.index(max(needs))
    tensors = _Tensors(plan)
    operators = _Operators(plan, tensors)
    return {
        "version": VERSION,
        "program": plan.program.source.name,
        "strategy": plan.strategy,
        "ranks": plan.ranks,
        "microbatches": plan.microbatches,
        "precision": _precision(plan),
        "amounts": amounts(plan),
        "meshes": [{"name": m.name, "axes": [{"name": a.name, "size": a.size} for a in m.axes]} for m in meshes],
        "pipeline": _pipeline(plan),
        "operators": list(operators.all()),
        "blocks": blocks(plan, operators.lines, folded),
        "gradient_reductions": _reductions(plan),
        "parameters": [_parameter(tensors, plan.params[v], turn) for v, turn in plan.graph.in_turns(plan.params)],
        **overview(plan, most, by_stages[fullest]),
        "per_rank": {
            **_of_coordinate(plan, fullest, by_stages[fullest], most),
            "stages": [*by_stages[fullest]] if plan.pipeline is not None else None,
        },
    }


def _totals(kept: Memory, sent: tuple[int, int]) -> Report:
    return {
        "parameters_bytes": kept.parameters,
        "copies_bytes": kept.copies,
        "gradients_bytes": kept.gradients,
        "optimizer_bytes": kept.optimizer,
        "activations_bytes": kept.activations,
        "total_bytes": kept.total,
        "forward_bytes": sent[0],
        "backward_bytes": sent[1],
    }


def _of_coordinate(plan: Plan, at: int, mine: tuple[int, ...], sends: tuple[int, ...]) -> Report:
    """The memory of a rank of a coordinate, which has the stages `mine`, and what one of the stages
    `sends` sends: bytes in each memory, the device's memory by the file (null: unknown), copies in
    a step, the most at one time."""
    kept, (to_device, to_host), peak = by_coordinate(plan)[at], copied_bytes(plan, mine), step_peaks(plan)[at]
    described = device(plan.program)
    return {
        **_totals(kept, sent_bytes(plan, sends)),
        "device_bytes": kept.device,
        "host_bytes": kept.host,
        "device": described.name if described is not None else None,
        "device_memory_bytes": described.memory if described is not None else None,
        "allocator": _allocator(plan, at),
        "to_device_bytes": to_device,
        "to_host_bytes": to_host,
        "peak_bytes": peak.bytes,
        "peak": peak_entry(plan, peak),
    }


def _allocator(plan: Plan, coordinate: int) -> Report | None:
    """The memory of the device with what torch's allocator takes for it, of the fullest coordinate;
    null of others, and where the file does not say what contexts and libraries take."""
    found, described = taken(plan), device(plan.program)
    if found is None or described is None or found.coordinate != coordinate:
        return None
    return {
        "allocated_bytes": found.allocated, "reserved_bytes": found.reserved, "device_bytes": found.device,
        "groups": found.groups, "groups_bytes": found.nccl,
        "expandable_segments": described.expandable, "emptied": found.emptied,
        "largest": [{"what": w, "bytes": each, "count": count} for w, each, count in found.largest[:MOST_TENSORS]],
    }  # fmt: skip


def _pipeline(plan: Plan) -> Report | None:
    """The pipeline's own part, with each coordinate's and stage's contents; None without one."""
    found = pipeline_report(plan)
    if found is None:
        return None
    for stage in found["stages"]:
        stage.update(_totals(memory(plan, (stage["stage"],)), sent_bytes(plan, (stage["stage"],))))
    found["coordinates"] = [
        {"stages": [*mine], **_of_coordinate(plan, at, mine, mine), **overview(plan, mine, mine)}
        for at, mine in enumerate(stages_by_coordinate(plan))
    ]
    return found


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
class _Tensors:
    """Entries of tensors. known: what is the same for all of one type and layout, by their ids:
    both are the plan's."""

    plan: Plan
    known: dict[tuple[int, int], Report] = field(default_factory=dict)

    def of(self, value: int, layout: Layout) -> Report:
        it = self.plan.graph.values[value]
        key = id(it.type), id(layout)
        if key not in self.known:
            self.known[key] = self._found(it.type, layout)
        name = it.path.removeprefix("train.") if it.kind is Kind.DATA else it.path
        return {"name": name, **self.known[key]}

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


def _parameter(tensors: _Tensors, param: ParamPlan, turn: int) -> Report:
    plan = tensors.plan
    value = plan.graph.values[param.value]
    tensor, held = tensors.of(param.value, param.stored), all_held(plan)[param.value]
    return {
        "path": in_turn(value.path, turn),
        **{k: tensor[k] for k in ("shape", "layout", "mesh", "local_shape", "cut", "sizes")},
        "local_bytes": held.itself,
        "copy_bytes": held.copy,
        "zero": param.zero,
        "zero_axes": list(param.zero_axes),
        "keep": param.keep,
        "place": plan.memory_of.get(param.value, "device"),
        "rows": param.sparse,
        "stages": list(plan.pipeline.param_stages.get(param.value, ())) if plan.pipeline else None,
        "trained": value.kind is Kind.PARAM and not plan.graph.frozen(value.id),
        "frozen": plan.graph.frozen(value.id),
    }


def _reductions(plan: Plan) -> list[Report]:
    """One entry for all parameters that are summed over the same axes by the same collective."""
    found: dict[tuple[int, tuple[str, ...], str], list[tuple[str, int]]] = {}
    for param, turn in ((plan.params[value], turn) for value, turn in plan.graph.in_turns(plan.params)):
        path = in_turn(plan.graph.values[param.value].path, turn)
        for each in gradient_sums(plan)[param.value]:
            row = path, max(summed_bytes(plan, param.value, each).values(), default=0)
            found.setdefault((param.stored.mesh, each.axes, each.collective), []).append(row)
    return [
        {"parameters": [path for path, _ in rows], "axes": list(axes), "kind": kind, "bytes": sum(n for _, n in rows)}
        for (_, axes, kind), rows in found.items()
    ]


@dataclass
class _Operators:
    """Operators in the order of the plan's steps, each with the conversions that run at it."""

    plan: Plan
    tensors: _Tensors

    def __post_init__(self) -> None:
        self.stages = conversion_stages(self.plan)
        self.bytes = conversion_bytes(self.plan)
        self.again = again(self.plan)
        self.lines: dict[Step, dict[str, int]] = {}

    def all(self) -> Iterator[Report]:
        """The entries; `lines` then has the entry, and its collective, of each step of the plan."""
        waiting: list[int] = []
        latest: tuple[PlannedOp, list[Report]] | None = None
        at = -1
        for step in makes(self.plan):
            if step.kind == "conversion":
                if not sends(self.plan, self.plan.conversions[step.index]):
                    continue
                if latest is not None and not waiting and self._follows(step.index, latest[0]):
                    latest[1].append(self._conversion(step.index, "after", at, len(latest[1])))
                else:
                    waiting.append(step.index)
                continue
            if latest is not None:
                yield self._operator(*latest)
            op, at = self.plan.ops[step.index], at + 1
            self.lines[step] = {"operator": at}
            before = [self._conversion(c, "before", at, i) for i, c in enumerate(waiting)]
            latest, waiting = (op, [*before, *self._inside(op), *self._handed(op)]), []
        if latest is not None:
            latest[1].extend(self._conversion(c, "after", at, len(latest[1]) + i) for i, c in enumerate(waiting))
            yield self._operator(*latest)

    def _follows(self, conversion: int, op: PlannedOp) -> bool:
        return self.plan.conversions[conversion].value in self.plan.graph.ops[op.op].results

    def _operator(self, planned: PlannedOp, collectives: list[Report]) -> Report:
        op = self.plan.graph.ops[planned.op]
        result = self.tensors.of(op.results[0], planned.results[0])
        return {
            "source": f"{op.span.source.name}:{op.span.line}",
            "name": result["name"],
            "text": written(op.statement or op.span),
            "operator": op.called,
            "section": op.section,
            "chosen": planned.chosen,
            "layout": result["layout"],
            "mesh": planned.mesh,
            "stage": self.plan.stage(op.id) if self.plan.pipeline else None,
            "recomputed": op.id in self.again,
            "place": self.plan.memory_of.get(op.results[0], "device"),
            "copied_bytes": list(copy_bytes(self.plan, planned)) if op.operator in (TO_DEVICE, TO_HOST) else None,
            "local_shapes": {
                "operands": [self.tensors.of(use.value, use.layout) for use in planned.operands],
                "result": result,
            },
            "collectives": collectives,
        }

    def _conversion(self, index: int, phase: str, operator: int, at: int) -> Report:
        """The entry of a conversion, which is collective `at` of an operator."""
        plan, conversion = self.plan, self.plan.conversions[index]
        self.lines[Step("conversion", index)] = {"operator": operator, "collective": at}
        before, value = layout_of(plan, (conversion.value, conversion.parent)), plan.graph.values[conversion.value]
        kind, axes = conversion.move.kind, plan.meshes[before.mesh].ranked(conversion.move.axes)
        texts = [layout_text(value.type, layout, plan.meshes[layout.mesh]) for layout in (before, conversion.to)]
        shape, groups = plan.local_shape(value.id, conversion.to), _groups(plan, axes, before.mesh, self.stages[index])
        by, sizes = kind.collectives, self.bytes[index]
        return _collective(
            phase, kind.value, by, value=value.path, axes=axes, mesh=before.mesh, groups=groups, texts=texts,
            shape=shape, sizes=sizes,
        )  # fmt: skip

    def _inside(self, planned: PlannedOp) -> Iterator[Report]:
        plan = self.plan
        op = plan.graph.ops[planned.op]
        for number, (factor, axes, forward, backward) in enumerate(planned.inside):
            exchanged, kind = op.rule.factors[factor].exchanged, op.rule.factors[factor].collective
            tensor, shape = self._statistic(planned, factor, not exchanged)
            if exchanged is not None and exchanged.asked:
                tensor, shape = self._sent(planned, number)
            groups, texts = _groups(plan, axes, planned.mesh, {plan.stage(op.id)}), [tensor["layout"]] * 2
            by, name, sizes = (kind, kind), tensor["name"], (forward, backward)
            yield _collective(
                "inside", kind, by, value=name, axes=axes, mesh=planned.mesh, groups=groups, texts=texts, shape=shape,
                sizes=sizes,
            )  # fmt: skip

    def _handed(self, planned: PlannedOp) -> Iterator[Report]:
        """The transfers from stage to stage, in pairs of ranks."""
        plan, pipeline = self.plan, self.plan.pipeline
        forward, backward = handed_bytes(plan, planned)
        if pipeline is None or not forward:
            return
        tensor = self.tensors.of(plan.graph.ops[planned.op].results[0], planned.results[0])
        to, axes = plan.stage(planned.op), (pipeline.axis,)
        rows = whole_mesh(plan, planned.mesh).groups(axes) if plan.ranks <= MOST_LISTED else None
        ends = pipeline.coordinates[to - 1], pipeline.coordinates[to]
        groups = {
            "groups": [[row[end] for end in ends] for row in rows] if rows is not None else None,
            "group_size": 2,
            "group_count": plan.ranks // pipeline.mesh.axis_size(pipeline.axis),
        }
        by, name, texts = ("send", "send" if backward else ""), tensor["name"], [tensor["layout"]] * 2
        shape, sizes = tensor["local_shape"], (forward, backward)
        yield _collective(
            "inside", "send", by, value=name, axes=axes, mesh=planned.mesh, groups=groups, texts=texts, shape=shape,
            sizes=sizes,
        )  # fmt: skip

    def _statistic(self, planned: PlannedOp, factor: int, reduced: bool) -> tuple[Report, list[int]]:
        """The operand that has a factor, and its local shape, without that where it is reduced."""
        op = self.plan.graph.ops[planned.op]
        at = next(i for i, dims in enumerate(op.rule.operands) if any(factor in d for d in dims))
        dim = next(i for i, d in enumerate(op.rule.operands[at]) if factor in d)
        tensor = self.tensors.of(op.operands[at], planned.operands[at].layout)
        return tensor, [n for i, n in enumerate(tensor["local_shape"]) if i != dim or not reduced]

    def _sent(self, planned: PlannedOp, number: int) -> tuple[Report, list[int]]:
        """For an exchange of rows: first the ids, then the rows that they name."""
        op = self.plan.graph.ops[planned.op]
        ids, rows = (op.operands[0], planned.operands[0].layout), (op.results[0], planned.results[0])
        tensor = self.tensors.of(*(rows if number else ids))
        return tensor, tensor["local_shape"]


def _collective(
    phase: str, kind: str, by: tuple[str, str], value: str, axes: tuple[str, ...], mesh: int, groups: Report,
    texts: Sequence[str], shape: Sequence[int], sizes: tuple[int, int],
) -> Report:  # fmt: skip
    """The entry of something that is sent: `by` what forward and backward, from and to the layouts
    of `texts`."""
    return {
        "phase": phase,
        "kind": kind,
        "forward": by[0],
        "backward": by[1],
        "value": value,
        "axes": list(axes),
        "mesh": mesh,
        **groups,
        "from": texts[0],
        "to": texts[1],
        "local_shape": list(shape),
        "forward_bytes": sizes[0],
        "backward_bytes": sizes[1],
    }


def _groups(plan: Plan, axes: tuple[str, ...], mesh: int, stages: set[int]) -> Report:
    """The groups of ranks of some stages."""
    size, whole, pipeline = plan.meshes[mesh].degree(axes), whole_mesh(plan, mesh), plan.pipeline
    places = {pipeline.coordinates[s] for s in stages} if pipeline else {0}
    count = plan.meshes[mesh].timeless.size // size * len(places)
    listed = None
    if plan.ranks <= MOST_LISTED:
        groups = whole.groups(axes)
        listed = [list(g) for g in groups if not pipeline or whole.coordinate(g[0], pipeline.axis) in places]
    return {"groups": listed, "group_size": size, "group_count": count}
