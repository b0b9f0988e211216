"""A step of a plan (an operator or a conversion) -> the items of its forward and of its backward,
in local sizes, of one microbatch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache

from shardlang.cost.work import (
    AGAIN,
    FORWARD,
    INPUTS,
    WEIGHTS,
    Attention,
    Collective,
    Copy,
    Item,
    MemoryBound,
    Place,
    Product,
)
from shardlang.folds.traffic import copy_bytes
from shardlang.graph.graph import Kind, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.internal import SENT, TO_DEVICE, TO_HOST, TRANSFER
from shardlang.ops.rule import FactorRule, factor_rule
from shardlang.ops.saved_activations import LocalOp, elements
from shardlang.plan.dim_factors import of_factors
from shardlang.plan.fusions import is_linear
from shardlang.plan.plan import Conversion, MoveKind, Plan, PlannedOp, Step
from shardlang.plan.reads import layout_of
from shardlang.step.saved_activations import fused, saved_activations
from shardlang.types.dim import BYTES

_NUMBER = re.compile(r"\[[\d-]+\]")
Items = tuple[Item, ...]


@lru_cache(maxsize=65536)
def class_of(path: str) -> str:
    """A path with `[*]` for the number of a layer."""
    return _NUMBER.sub("[*]", path).partition(":")[0]


def layer_of(path: str) -> str:
    """The class of the outermost layer of an array that a path is in, else the layer around it."""
    found = class_of(path)
    return found[: found.index("]") + 1] if "]" in found else found.rpartition(".")[0] or found


class Steps:
    """The items of each step; those of equal steps are one object."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.facts = saved_activations(plan)
        self._known: dict[object, tuple[Items, Items]] = {}
        self._again: dict[int, Items] = {}

    def forward(self, step: Step) -> Items:
        return self._both(step)[0]

    def backward(self, step: Step) -> Items:
        return self._both(step)[1]

    def again(self, step: Step) -> Items:
        """Those of its forward, computed within backward."""
        items = self.forward(step)
        if id(items) not in self._again:
            self._again[id(items)] = tuple([replace(item, phase=AGAIN) for item in items])
        return self._again[id(items)]

    @cached_property
    def _weights(self) -> set[int]:
        """The values that are parameters, or made of such alone."""
        return self.plan.graph.made_of(Kind.PARAM, Kind.CONSTANT)

    @cached_property
    def _fused(self) -> frozenset[int]:
        """The additions (in `Plan.ops`) that are part of a call with their product."""
        return frozenset(fused(self.plan).values())

    @cached_property
    def _readers(self) -> dict[int, list[PlannedOp]]:
        """Conversion -> the operators whose first operand it is."""
        found: dict[int, list[PlannedOp]] = {}
        for planned in self.plan.ops:
            if planned.operands and planned.operands[0].conversion >= 0:
                found.setdefault(planned.operands[0].conversion, []).append(planned)
        return found

    def _both(self, step: Step) -> tuple[Items, Items]:
        key = self._key(step)
        if key not in self._known:
            made = self._op(step.index) if step.kind == "op" else self._conversion(self.plan.conversions[step.index])
            self._known[key] = made
        return self._known[key]

    def _key(self, step: Step) -> object:
        plan, values = self.plan, self.plan.graph.values
        if step.kind == "op":
            planned = plan.ops[step.index]
            op, local = plan.graph.ops[planned.op], self.facts.locals[planned.op]
            types = tuple([t.dtype for t in (*local.operand_types, *local.result_types)])
            weights = tuple([v in self._weights for v in op.operands])
            return (
                op.operator, class_of(op.path), op.span, local.operands, local.results, types, local.gradient, weights,
                local.order, local.cut, planned.factor_axes, planned.inside, planned.mesh, step.index in self._fused,
                values[op.results[0]].gradient, plan.memory_of.get(op.results[0]), op.section,
            )  # fmt: skip
        c = plan.conversions[step.index]
        before = plan.local_shape(c.value, layout_of(plan, (c.value, c.parent)))
        readers = tuple([class_of(plan.graph.ops[p.op].path) for p in self._readers.get(c.id, ())])
        return c.move, c.to, c.gradient, class_of(values[c.value].path), values[c.value].type.dtype, before, readers

    # --- operators

    def _op(self, at: int) -> tuple[Items, Items]:
        plan, planned = self.plan, self.plan.ops[at]
        op, local = plan.graph.ops[planned.op], self.facts.locals[planned.op]
        place = Place(layer_of(op.path), class_of(op.path), op.called, op.span.line)
        if op.operator in SENT:
            return self._copied(place, planned, op)
        back = op.section == "loss" and any(plan.graph.values[v].gradient for v in op.results)
        inside = list(self._inside(place, planned, op))
        forward: Items = tuple([item for item in inside if item.phase == FORWARD])
        backward: Items = tuple([item for item in inside if item.phase == INPUTS])
        if plan.memory_of.get(op.results[0]) == "host":
            streamed = REGISTRY[op.operator].streamed(local)
            ways = zip((FORWARD, INPUTS), (streamed.forward, streamed.backward), strict=True)
            made: Items = tuple([Copy(place, p, "host", w.read + w.written) for p, w in ways if w.kernels])
        else:
            made = (*self._computed(place, planned, op, local), *self._streamed(place, op, local, at))
        forward += tuple([item for item in made if item.phase == FORWARD])
        backward += tuple([item for item in made if item.phase != FORWARD])
        if op.attrs.get("chunks") is not None:  # its forward makes the gradients (runtime/functions/losses.py)
            products = tuple([item for item in backward if isinstance(item, Product)])
            forward += products
            backward = tuple([item for item in backward if not isinstance(item, Product)])
        return forward, backward if back else ()

    def _copied(self, place: Place, planned: PlannedOp, op: Op) -> tuple[Items, Items]:
        if op.operator == TRANSFER:
            return (), ()
        there, back = (size // self.plan.microbatches for size in copy_bytes(self.plan, planned))
        to, other = ("device", "host") if op.operator == TO_DEVICE else ("host", "device")
        assert op.operator in (TO_DEVICE, TO_HOST)
        return (Copy(place, FORWARD, to, there),), (Copy(place, INPUTS, other, back),) if back else ()

    def rule(self, planned: PlannedOp, op: Op) -> FactorRule:
        """The rule of an operator in local sizes."""
        mesh, by_hand = self.plan.meshes[planned.mesh], of_factors(op, self.plan.graph, self.plan.sizes)
        factors = []
        for f, (factor, axes) in enumerate(zip(op.rule.factors, planned.factor_axes, strict=True)):
            parts = mesh.degree(axes)
            sizes = by_hand.get(f, ())
            factors.append(replace(factor, size=max(sizes) if len(sizes) == parts else -(-factor.size // parts)))
        return factor_rule(tuple(factors), op.rule.operands, op.rule.results, op.rule.through)

    def _phase(self, op: Op, operand: int) -> str:
        return WEIGHTS if op.operands[operand] in self._weights else INPUTS

    def _computed(self, place: Place, planned: PlannedOp, op: Op, local: LocalOp) -> Iterator[Item]:
        operator = REGISTRY[op.operator]
        if operator.product is not None:
            batch, m, n, k = operator.product(self.rule(planned, op))
            first = int(op.attrs.get("chunks") is not None)
            dtype = local.operand_types[first].dtype
            yield Product(place, FORWARD, dtype, batch, m, n, k)
            sizes = ((m, k, n), (k, n, m))
            for operand, (rows, columns, inner) in zip((first, first + 1), sizes, strict=True):
                if operand < len(local.gradient) and local.gradient[operand]:
                    yield Product(place, self._phase(op, operand), dtype, batch, rows, columns, inner)
        elif operator.attends:
            yield from self._attention(place, planned, op, local)
        elif flops := operator.flops(self.rule(planned, op), op.attrs):
            # It counts as a product of square matrices of as many flops, and so does each gradient.
            side, dtype = max(1, round((flops / 2) ** (1 / 3))), local.operand_types[0].dtype
            yield Product(place, FORWARD, dtype, 1, side, side, side)
            for operand in (at for at, flows in enumerate(local.gradient) if flows):
                yield Product(place, self._phase(op, operand), dtype, 1, side, side, side)

    def _attention(self, place: Place, planned: PlannedOp, op: Op, local: LocalOp) -> Iterator[Attention]:
        mesh, rule = self.plan.meshes[planned.mesh], self.rule(planned, op)
        (*heads, queries, width), (*kv_heads, keys, _), (*_, out) = local.operands[:3]
        whole, both = REGISTRY[op.operator].flops(op.rule, op.attrs), width + out
        parts = mesh.degree(tuple({a for axes in planned.factor_axes for a in axes}))
        count = max(1, math.prod(heads))
        most = REGISTRY[op.operator].flops(rule, op.attrs) // (2 * count * both)
        asking, seen = op.rule.operands[0][-2], op.rule.operands[1][-2]
        exchanged = any(op.rule.factors[f].exchanged and planned.factor_axes[f] for f in (*asking, *seen))
        if exchanged:  # all ranks have as much
            most = -(-whole // parts) // (2 * count * both)
            keys = op.rule.factors[seen[0]].size
        cut = queries != keys and bool(op.attrs["causal"])
        for phase, flops in ((FORWARD, whole // parts), (INPUTS, 2 * whole // parts)):
            if phase == FORWARD or any(local.gradient):
                yield Attention(
                    place, phase, local.operand_types[0].dtype, heads=count, kv_heads=math.prod(kv_heads),
                    queries=queries, keys=keys, width=both / 2,
                    causal=bool(op.attrs["causal"]), cut=cut, fused=True, pairs=most, flops=flops,
                )  # fmt: skip

    def _streamed(self, place: Place, op: Op, local: LocalOp, at: int) -> Iterator[MemoryBound]:
        operator = REGISTRY[op.operator]
        streamed = operator.streamed(local)
        if operator.flops(op.rule, op.attrs) and op.attrs.get("chunks") is None:
            return
        shapes = (*local.operands, *local.results)
        size = max([elements(shape) for shape in shapes], default=0)
        trained = [value for value, gradient in zip(op.operands, local.gradient, strict=True) if gradient]
        phase = WEIGHTS if self._weights.issuperset(trained) else INPUTS
        dtype = local.result_types[0].dtype
        for when, way in ((FORWARD, streamed.forward), (phase, streamed.backward)):
            if way.kernels and not (when == FORWARD and at in self._fused):
                yield MemoryBound(place, when, dtype, way.read, way.written, size, way.kernels)

    def _inside(self, place: Place, planned: PlannedOp, op: Op) -> Iterator[Collective]:
        """The collectives that the operator itself runs."""
        dtype = self.plan.graph.values[op.results[0]].type.dtype
        for factor, axes, *both in planned.inside:
            how = op.rule.factors[factor]
            for phase, size, sums in zip((FORWARD, INPUTS), both, how.statistics, strict=True):
                sums = (1,) if how.exchanged else sums * op.attrs.get("chunks", 1)
                for tensors in sums if size else ():
                    each = per(size * tensors, self.plan.microbatches * sum(sums))
                    yield Collective(place, phase, dtype, how.collective, planned.mesh, axes, each)

    # --- conversions

    def _conversion(self, c: Conversion) -> tuple[Items, Items]:
        plan, value = self.plan, self.plan.graph.values[c.value]
        by, axes = c.move.kind.collectives, plan.meshes[c.to.mesh].ranked(c.move.axes)
        place = Place(layer_of(value.path), class_of(value.path), c.move.kind.value, value.span.line)
        if not axes:
            return (), ()
        dtype, each = value.type.dtype, plan.microbatches
        forward: list[Item] = []
        backward: list[Item] = []
        if by[0]:
            size = per(c.move.forward_bytes, each)
            forward.append(Collective(place, FORWARD, dtype, by[0], c.to.mesh, axes, size))
        if by[1] and c.gradient:
            size, beside = per(c.move.backward_bytes, each), tuple(self._beside(c))
            backward.append(
                Collective(place, INPUTS, dtype, kind=by[1], mesh=c.to.mesh, axes=axes, bytes=size, beside=beside)
            )
        if copied := self._moved(c):
            count = copied // BYTES[dtype]
            forward += [MemoryBound(place, FORWARD, dtype, copied, copied, count)] * bool(by[0])
            backward += [MemoryBound(place, INPUTS, dtype, copied, copied, count)] * bool(by[1] and c.gradient)
        return tuple(forward), tuple(backward)

    def _moved(self, c: Conversion) -> int:
        """Bytes of the whole, which is copied where blocks along a dim are no rows of memory."""
        plan = self.plan
        before, after = layout_of(plan, (c.value, c.parent)), c.to
        larger = max((before, after), key=lambda layout: plan.local_bytes(c.value, layout))
        shape = plan.local_shape(c.value, larger)
        apart = c.move.dim > 0 and math.prod(shape[: c.move.dim]) > 1
        return plan.local_bytes(c.value, larger) if apart and c.move.kind is not MoveKind.PERMUTE else 0

    def _beside(self, c: Conversion) -> Iterator[Product]:
        """The gradients of weights that the backward of a conversion computes while it sends:
        those of the products that are `rt.overlapped_linear` (emit/text/sites.py, `_beside`)."""
        if c.move.kind not in (MoveKind.I_TO_R, MoveKind.S_TO_R):
            return
        of = self.facts.owners
        for planned in self._readers.get(c.id, ()):
            op = self.plan.graph.ops[planned.op]
            again = of.group(planned.op)
            if is_linear(op) and (again is None or again == of.of(Step("conversion", c.id))):
                place = Place(layer_of(op.path), class_of(op.path), op.called, op.span.line)
                made = self._computed(place, planned, op, self.facts.locals[op.id])
                yield from (item for item in made if isinstance(item, Product) and item.phase == WEIGHTS)


def per(size: int, runs: int) -> float:
    """Bytes of one of several runs, a whole number where it is one."""
    return size // runs if size % runs == 0 else size / runs
