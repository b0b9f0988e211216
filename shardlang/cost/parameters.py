"""The parameters of a plan -> the items that they make: gathers, sums of gradients, the update."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from shardlang.cost.items import class_of, layer_of
from shardlang.cost.work import FORWARD, WEIGHTS, Collective, Gather, Item, MemoryBound, Place, Reduction, Update
from shardlang.facts.buckets import filled
from shardlang.folds.peak.reductions import sizes_of
from shardlang.folds.pipeline_report import whole_mesh
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import inputs
from shardlang.step.gradient_sums import bucket_kind, gradient_sums
from shardlang.step.own_optimizers import gathered
from shardlang.step.parameters import of_alike, part_bytes, stored_type
from shardlang.step.passes import passes
from shardlang.step.stages import coordinates_of
from shardlang.types.dim import BYTES

STEP = Place("step", "", "step")


class Parameters:
    """Those of one plan. read: parameters that are trained."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        values = plan.graph.values
        self.trained = [value for value in plan.params if values[value].gradient]
        self.read = frozenset(self.trained)
        self._gathers: dict[frozenset[int], tuple[Gather, ...]] = {}
        self._accumulated: dict[int, tuple[Item, ...]] = {}
        self._reductions: dict[object, Reduction | None] = {}
        self.sizes = of_alike(plan, sizes_of)

    @cached_property
    def _of_stage(self) -> Mapping[int, list[int]]:
        """Stage -> the trained parameters that it uses."""
        found: dict[int, list[int]] = {}
        for value in self.trained:
            for stage in self.plan.stages_of(value):
                found.setdefault(stage, []).append(value)
        return found

    @cached_property
    def first_read(self) -> Mapping[Step, list[int]]:
        """Step -> the trained parameters that it is the first to read."""
        seen, found = set[int](), dict[Step, list[int]]()
        for step in (step for of in passes(self.plan).values() for step in of.steps):
            for value in self.uses([step]) & self.read - seen:
                seen.add(value)
                found.setdefault(step, []).append(value)
        return found

    def uses(self, steps: Iterable[Step]) -> set[int]:
        """The parameters that steps read."""
        of = inputs(self.plan)
        return {value for step in steps for value, _ in of[step] if value in self.plan.params}

    def _place(self, value: int, operator: str) -> Place:
        path = self.plan.graph.values[value].path
        return Place(layer_of(path), class_of(path), operator, self.plan.graph.values[value].span.line)

    # --- gathers

    def gathers(self, units: Sequence[frozenset[int]]) -> tuple[Gather, ...]:
        """Those of ZeRO 3 for units of parameters."""
        return tuple([gather for unit in units for gather in self._unit(unit)])

    def _unit(self, unit: frozenset[int]) -> tuple[Gather, ...]:
        if unit not in self._gathers:
            self._gathers[unit] = self._of_group(sorted(unit))
        return self._gathers[unit]

    def _of_group(self, values: Sequence[int]) -> tuple[Gather, ...]:
        plan, found = self.plan, dict[tuple[str, int, tuple[str, ...], bool], list[int]]()
        for value in values:
            param = plan.params[value]
            axes = plan.meshes[param.stored.mesh].ranked(param.zero_axes)
            dtype = plan.graph.values[value].type.dtype
            found.setdefault((dtype, param.stored.mesh, axes, param.keep), []).append(value)
        made = []
        for (dtype, mesh, axes, keep), mine in found.items():
            part, degree = sum(part_bytes(plan, plan.params[v]) for v in mine), plan.meshes[mesh].degree(axes)
            sizes, place = ((degree - 1) * part, degree * part), self._place(mine[0], "parameters")
            unit = frozenset(class_of(plan.graph.values[v].path) for v in values if plan.params[v].keep == keep)
            made.append(Gather(place, dtype, mesh, axes, *sizes, keep, unit))
        return tuple(made)

    def published(self, stages: Collection[int]) -> tuple[Gather, ...]:
        """The gathers of ZeRO 1 and 2 after the update, one for each bucket."""
        plan = self.plan
        mine = (plan.params[v] for v in self._mine(stages) if plan.params[v].zero in (1, 2))
        turns = [plan.params[value] for value, _ in plan.graph.in_turns(param.value for param in mine)]
        items = [(param.value, bucket_kind(plan, param), self.sizes[param.value].whole) for param in turns]
        buckets = (members for _, members in filled(items, plan.bucket_bytes))
        return tuple([gather for members in buckets for gather in self._of_group(members)])

    # --- gradients

    def accumulated(self, value: int) -> tuple[Item, ...]:
        """The sum with a microbatch's gradient, in the parameter's own type, and the copy that
        ZeRO 2 and 3 send."""
        if value not in self._accumulated:
            self._accumulated[value] = self._added(value)
        return self._accumulated[value]

    def _added(self, value: int) -> tuple[Item, ...]:
        plan, param = self.plan, self.plan.params[value]
        if value in plan.memory_of or param.sparse:
            return ()
        wide, low = self.sizes[value].gradient, plan.local_bytes(value, param.stored)
        converts, adds = wide != low, plan.microbatches > 1 and param.zero < 2
        read, written = low * converts + 2 * wide * adds, wide * converts + wide * adds
        kernels, place = converts + adds, self._place(value, "gradient")
        found = []
        if kernels:
            found.append(MemoryBound(place, WEIGHTS, "f32", read, written, wide // 4, kernels))
        if self._sends(value) and param.zero >= 2:
            found.append(self._packed(value, wide))
        return tuple(found)

    def _packed(self, value: int, wide: int) -> MemoryBound:
        return MemoryBound(self._place(value, "pack"), WEIGHTS, "f32", wide, wide, wide // 4)

    def _sends(self, value: int) -> bool:
        return bool(gradient_sums(self.plan)[value]) or bool(self.plan.params[value].zero)

    def reduction(self, value: int) -> Reduction | None:
        """The sum of its gradient over ranks, in a bucket; None where it needs none."""
        key = self._like(value)
        if key not in self._reductions:
            self._reductions[key] = self._reduction(value)
        return self._reductions[key]

    def _like(self, value: int) -> object:
        """The same for the parameters of equal layers."""
        param, it = self.plan.params[value], self.plan.graph.values[value]
        shape, how = self.plan.local_shape(value, param.stored), (param.reduce_axes, param.zero, param.zero_axes)
        return class_of(it.path), shape, it.type.dtype, param.stored, how

    def _reduction(self, value: int) -> Reduction | None:
        plan, param = self.plan, self.plan.params[value]
        tied = len(coordinates_of(plan, value)) > 1
        parts = tuple([each[:3] for each in gradient_sums(plan)[value] if not (tied and each.last)])
        if not self._sends(value) or (tied and not parts):
            return None
        group, place = (bucket_kind(plan, param), param.sparse), self._place(value, "reduction")
        size, dtype = self.sizes[value].whole, stored_type(plan, param)
        return Reduction(place, dtype, param.stored.mesh, parts, size, param.zero >= 2, group)

    # --- once a step

    def _mine(self, stages: Collection[int]) -> list[int]:
        return sorted({value for stage in stages for value in self._of_stage.get(stage, ())})

    def after(self, stages: Collection[int]) -> list[Item]:
        """Copies that are summed once, and those in the type that forward reads; the norm."""
        plan, found = self.plan, list[Item]()
        every = [value for value, _ in plan.graph.in_turns(self._mine(stages))]
        for value in every:
            param = plan.params[value]
            if value in plan.memory_of or param.sparse:
                continue
            sizes, dtype = self.sizes[value], plan.graph.values[value].type.dtype
            if self._sends(value) and param.zero < 2:
                found.append(self._packed(value, sizes.whole))
            if dtype != stored_type(plan, param) and param.zero < 3:
                low = sizes.updated * BYTES[dtype] // BYTES["f32"]
                found.append(
                    MemoryBound(self._place(value, "copy"), FORWARD, dtype, sizes.updated, low, sizes.updated // 4)
                )
        found += [self._seen(value) for value in every if value in gathered(plan)]
        found += self._tied(stages)
        training = plan.program.training
        if training is not None and training.measured and plan.ranks > 1:
            axes = tuple(axis.name for axis in whole_mesh(plan, 0).axes)
            found.append(Collective(STEP, FORWARD, "f64", "all_reduce", 0, axes, 2 * 8 * (plan.ranks - 1) / plan.ranks))
        return found

    def _tied(self, stages: Collection[int]) -> list[Item]:
        """The sums with other stages, of all parameters that share a group as one."""
        found: dict[tuple[str, str, int, tuple[str, ...]], int] = {}
        for value in self._mine(stages):
            param, tied = self.plan.params[value], len(coordinates_of(self.plan, value)) > 1
            for each in gradient_sums(self.plan)[value] if tied else ():
                if each.last:
                    key = stored_type(self.plan, param), each.collective, param.stored.mesh, each.axes
                    found[key] = found.get(key, 0) + each.bytes
        return [Collective(STEP, FORWARD, *key, size) for key, size in found.items()]

    def _seen(self, value: int) -> Collective:
        """A parameter, its gradient and state, gathered for an optimizer of the user's own."""
        own, param, place = gathered(self.plan)[value], self.plan.params[value], self._place(value, "optimizer")
        dtype = stored_type(self.plan, param)
        return Collective(place, FORWARD, dtype, "all_gather", param.stored.mesh, own.axes, own.sent)

    def updates(self, stages: Collection[int]) -> tuple[Update, ...]:
        """The optimizers, the norm that `clip` needs, and the average of `ema`."""
        values, training, mine = self.plan.graph.values, self.plan.program.training, set(self._mine(stages))
        found = []
        for setting in training.optimizers if training is not None else ():
            here = [v for v in setting.params if v in mine]
            kind = "momentum" if setting.kind == "sgd" and setting.arguments.get("momentum") else setting.kind
            if setting.own is not None:  # by what it reads and writes, at least
                kind = ("sgd", "momentum", "adam")[min(2, len(setting.own.state))]
            elements = sum(self.sizes[v].updated * values[v].times for v in here) // BYTES["f32"]
            if here:
                found.append(Update(kind, "f32", elements, sum(values[v].times for v in here)))
        elements, tensors = sum(u.elements for u in found), sum(u.tensors for u in found)
        if training is not None and training.measured:
            found.append(Update("norm" if training.clip is None else "clip", "f32", elements, tensors))
        if training is not None and training.ema is not None:
            found.append(Update("ema", "f32", elements, tensors))
        return tuple(found)
