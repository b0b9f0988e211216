"""A planned operator -> the `OpSite` that its declaration writes text from."""

from __future__ import annotations

from shardlang.emit.text.names import number_text
from shardlang.emit.text.sizes import Sizes
from shardlang.graph.graph import Kind, Op
from shardlang.ops.code import RT
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.site import OpSite
from shardlang.ops.texts import TORCH_DTYPES
from shardlang.plan.blocks.call import is_below, relative
from shardlang.plan.dim_factors import of_factors
from shardlang.plan.plan import MoveKind, OperandUse, Plan, PlannedOp, Step
from shardlang.plan.reads import Form
from shardlang.plan.rewrite.recomputed_steps import Owners
from shardlang.records import dataclass, remembered


@dataclass(frozen=True)
class Sites:
    """The state that all sites of one function share."""

    plan: Plan
    names: dict[Form, str]
    sizes: Sizes
    training: bool
    layer: str = ""  # what `p` stands for

    def site(self, planned: PlannedOp) -> OpSite:
        """The operator's place: operand texts, local and whole shapes, groups and offsets."""
        graph, sizes = self.plan.graph, self.sizes
        op = graph.ops[planned.op]
        uses = planned.operands
        operand_types = tuple(graph.values[use.value].type for use in uses)
        result_types = tuple(graph.values[value].type for value in op.results)
        axes, plan_params = planned.factor_axes, self.plan.params
        part_sizes = of_factors(op, graph, self.plan.sizes)
        groups, offsets = sizes.cut(op.rule, axes, planned.mesh, part_sizes)
        return OpSite(
            operands=tuple(self._operand(op, use) for use in uses),
            operand_shapes=tuple(sizes.shape(t, u.layout) for t, u in zip(operand_types, uses, strict=True)),
            result_shapes=tuple(sizes.shape(t, r) for t, r in zip(result_types, planned.results, strict=True)),
            operand_types=operand_types,
            result_types=result_types,
            attrs=op.attrs,
            rule=op.rule,
            axes=axes,
            groups=groups,
            offsets=offsets,
            training=self.training,
            rows="" if self.training else "rows",
            batch=batch_factor(self.plan, op),
            path=relative(op.path, self.layer),
            call=op.call,
            recomputed=self.training and any(op.id in group.ops for group in self.plan.recompute if not group.to_host),
            sparse=self.training and any(value in plan_params and plan_params[value].sparse for value in op.operands),
            beside=self.training and self._beside(planned),
            numbers=tuple(map(self._number, uses)),
            sizes=part_sizes,
            inside=bool(self.layer) and is_below(op.path, self.layer),
        )

    def _beside(self, planned: PlannedOp) -> bool:
        """Whether the first operand comes from a collective. An operator that is computed again is
        in one function with it."""
        at = planned.operands[0].conversion if planned.operands else -1
        if at < 0 or self.plan.conversions[at].move.kind not in (MoveKind.I_TO_R, MoveKind.S_TO_R):
            return False
        again = owners(self.plan).group(planned.op)
        return again is None or again == owners(self.plan).of(Step("conversion", at))

    def _operand(self, op: Op, use: OperandUse) -> str:
        text, value = self.names[use.value, use.conversion], self.plan.graph.values[use.value]
        if value.kind is not Kind.CONSTANT or REGISTRY[op.operator].numbers:
            return text
        return RT("number", text, TORCH_DTYPES[value.type.dtype])

    def _number(self, use: OperandUse) -> float | int | None:
        """A static number; None for what is a tensor, as a part of a sum of numbers is."""
        constant = self.plan.graph.values[use.value].constant
        is_number = constant is not None and self.names[use.value, use.conversion] == number_text(constant)
        return constant if is_number else None


@remembered
def owners(plan: Plan) -> Owners:
    """The groups that backward computes again, by steps."""
    return Owners(plan, plan.steps)


def batch_factor(plan: Plan, op: Op) -> int:
    """The operator's factor that is the batch dim in some operand or result; -1 if none is."""
    batch = plan.graph.batch
    tensors = [*zip(op.operands, op.rule.operands, strict=True), *zip(op.results, op.rule.results, strict=True)]
    for value, dims in tensors:
        for term, factors in zip(plan.graph.values[value].type.dims, dims, strict=True):
            if batch in term and factors:
                return factors[term.index(batch)] if len(factors) == len(term) else factors[0]
    return -1
