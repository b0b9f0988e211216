"""Bytes that ranks send within an operator: sums for statistics, and what its family says that they
exchange."""

from __future__ import annotations

import math

from shardlang.ops.rule import Split, SplitOp
from shardlang.plan.layouts.assignment import Assignment
from shardlang.plan.layouts.op_classes import OpClass
from shardlang.types.mesh import Mesh

Inside = tuple[int, tuple[str, ...], int, int]


def all_reduce_bytes(ranks: int, local: int) -> int:
    """Bytes each rank sends in a ring all-reduce of `local` bytes."""
    return -(-2 * (ranks - 1) * local // ranks)


def inside_bytes(kind: OpClass, assignment: Assignment, mesh: Mesh) -> list[Inside]:
    """Bytes sent within an operator: factor, axes, bytes sent forward and backward in a step."""
    op = SplitOp(
        kind.rule, assignment.factors, mesh.degree, [t.itemsize for t in (*kind.operands, *kind.results)],
        trained=_trained(kind), times=mesh.time.size if mesh.time else 1,
    )  # fmt: skip
    split = [(f, factor.exchanged) for f, factor in enumerate(kind.rule.factors) if op.axes[f]]
    exchanged = [(f, *sent) for f, how in split if how is not None for sent in how.sent(op, f)]
    return [*statistics_bytes(kind, assignment, mesh), *exchanged]


def _trained(kind: OpClass) -> bool:
    return any(t.gradient for t in kind.operands)


def statistics_bytes(kind: OpClass, assignment: Assignment, mesh: Mesh) -> list[Inside]:
    """Per INSIDE factor that is split: factor, axes, bytes sent forward and backward in a step for
    its statistics (in float32)."""
    found = []
    times = mesh.time.size if mesh.time else 1
    for f, factor in enumerate(kind.rule.factors):
        axes = assignment.factors[f]
        if not axes or factor.split is not Split.INSIDE:
            continue
        rule = kind.rule
        others = [g for dim in rule.operands[0] for g in dim if rule.factors[g].split is not Split.INSIDE]
        rest = math.prod([-(-rule.factors[g].size // mesh.degree(assignment.factors[g])) for g in others])
        each = all_reduce_bytes(mesh.degree(axes), rest * 4) * times
        forward, backward = map(sum, factor.statistics)
        found.append((f, axes, forward * each, backward * each if _trained(kind) else 0))
    return found
