"""A planned operator -> the `OpSite` that its declaration writes text from."""

from __future__ import annotations

from shardlang.emit.text.names import number_text
from shardlang.emit.text.sizes import Common, LocalSizes
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind, Op
from shardlang.ops.code import RT
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.site import OpSite
from shardlang.ops.texts import TORCH_DTYPES
from shardlang.plan.dim_factors import of_factors
from shardlang.plan.plan import MoveKind, OperandUse, Plan, PlannedOp, Step
from shardlang.plan.reads import Form
from shardlang.step.blocks.call import is_below, relative
from shardlang.step.saved_activations import again, owners


@dataclass(frozen=True)
class Sites:
    """The state that all sites of one function share."""

    plan: Plan
    names: dict[Form, str]
    sizes: LocalSizes
    training: bool
    layer: str = ""  # what `p` stands for

    def site(self, planned: PlannedOp) -> OpSite:
        """The operator's place: operand texts, local and whole shapes, groups and offsets."""
        graph = self.plan.graph
        op = graph.ops[planned.op]
        uses, plan_params = planned.operands, self.plan.params
        given = [self._given(op, use) for use in uses]
        common = self._common(op, planned)
        return OpSite(
            operands=tuple([text for text, _ in given]),
            operand_shapes=common.operand_shapes,
            result_shapes=common.result_shapes,
            operand_types=common.operand_types,
            result_types=common.result_types,
            attrs=op.attrs,
            rule=op.rule,
            axes=common.axes,
            groups=common.groups,
            offsets=common.offsets,
            training=self.training,
            rows="" if self.training else "rows",
            batch=common.batch,
            path=relative(op.path, self.layer),
            call=op.call,
            recomputed=self.training and op.id in again(self.plan),
            sparse=self.training and any([v in plan_params and plan_params[v].sparse for v in op.operands]),
            beside=self.training and self._beside(planned),
            numbers=tuple([number for _, number in given]),
            sizes=common.part_sizes,
            inside=bool(self.layer) and is_below(op.path, self.layer),
        )

    def _common(self, op: Op, planned: PlannedOp) -> Common:
        values, sizes = self.plan.graph.values, self.sizes
        types = [*[values[use.value].type for use in planned.operands], *[values[at].type for at in op.results]]
        layouts = (*[use.layout for use in planned.operands], *planned.results)
        key = id(op.rule), id(planned.factor_axes), planned.mesh, *map(id, types), *map(id, layouts)
        if key not in sizes.common:
            part_sizes = of_factors(op, self.plan.graph, self.plan.sizes)
            groups, offsets = sizes.cut(op.rule, planned.factor_axes, planned.mesh, part_sizes)
            shapes = [sizes.shape(type, layout) for type, layout in zip(types, layouts, strict=True)]
            last = len(planned.operands)
            sizes.common[key] = Common(
                tuple(types[:last]), tuple(types[last:]), tuple(shapes[:last]), result_shapes=tuple(shapes[last:]),
                part_sizes=part_sizes,
                axes=planned.factor_axes, layouts=layouts, groups=groups, offsets=offsets,
                batch=batch_factor(self.plan, op),
            )  # fmt: skip
        return sizes.common[key]

    def _beside(self, planned: PlannedOp) -> bool:
        """Whether the first operand comes from a collective. An operator that is computed again is
        in one function with it."""
        at = planned.operands[0].conversion if planned.operands else -1
        if at < 0 or self.plan.conversions[at].move.kind not in (MoveKind.I_TO_R, MoveKind.S_TO_R):
            return False
        group = owners(self.plan).group(planned.op)
        return group is None or group == owners(self.plan).of(Step("conversion", at))

    def _given(self, op: Op, use: OperandUse) -> tuple[str, float | int | None]:
        """The text of an operand, and what it is if it is a static number; None for a tensor, as a
        part of a sum of numbers is."""
        text, value = self.names[use.value, use.conversion], self.plan.graph.values[use.value]
        if value.kind is not Kind.CONSTANT:
            return text, None
        number = value.constant if value.constant is not None and text == number_text(value.constant) else None
        if REGISTRY[op.operator].numbers:
            return text, number
        return RT("number", text, TORCH_DTYPES[value.type.dtype]), number


def batch_factor(plan: Plan, op: Op) -> int:
    """The operator's factor that is the batch dim in some operand or result; -1 if none is."""
    batch, values = plan.graph.batch, plan.graph.values
    for ids, tensors in ((op.operands, op.rule.operands), (op.results, op.rule.results)):
        for value, dims in zip(ids, tensors, strict=True):
            for term, factors in zip(values[value].type.dims, dims, strict=True):
                if batch in term and factors:
                    return factors[term.index(batch)] if len(factors) == len(term) else factors[0]
    return -1
