"""Bytes that ranks send within an operator: sums for statistics, rows that are asked for, and what
attention over a cut sequence exchanges and passes on."""

from __future__ import annotations

import math

from shardlang.ops.rule import HALVES, RING, ROWS, FactorRule, Split, shared_axes
from shardlang.plan.layouts.assignment import Assignment
from shardlang.plan.layouts.op_classes import OpClass
from shardlang.types.mesh import Mesh

Inside = tuple[int, tuple[str, ...], int, int]


def all_reduce_bytes(ranks: int, local: int) -> int:
    """Bytes each rank sends in a ring all-reduce of `local` bytes."""
    return -(-2 * (ranks - 1) * local // ranks)


def inside_bytes(kind: OpClass, assignment: Assignment, mesh: Mesh) -> list[Inside]:
    """Bytes sent within an operator: factor, axes, bytes sent forward and backward in a step."""
    sent = (statistics_bytes, exchange_bytes, halves_bytes, ring_bytes)
    return [found for bytes_of in sent for found in bytes_of(kind, assignment, mesh)]


def exchange_bytes(kind: OpClass, assignment: Assignment, mesh: Mesh) -> list[Inside]:
    """Bytes of rows that are sent to the ranks that look them up: the numbers asked for, with how
    many there are for each member, then the rows and their gradients; as many for each member, and
    none asked for twice."""
    rule = kind.rule
    axes, table = shared_axes(rule, assignment.factors), _exchanged(rule, ROWS)
    if not axes or table < 0:
        return []
    ids = next(i for i, dims in enumerate(rule.operands) if all(table not in dim for dim in dims))
    others = [f for f, factor in enumerate(rule.factors) if f != table]
    ranks, times = mesh.degree(axes), mesh.time.size if mesh.time else 1

    def sent(itemsize: int, factors: list[int]) -> int:
        local = math.prod([-(-rule.factors[f].size // mesh.degree(assignment.factors[f])) for f in factors]) * itemsize
        return -(-(ranks - 1) * local // ranks) * times

    asked = sent(8, [f for f in others if any(f in dim for dim in rule.operands[ids])]) + 8 * (ranks - 1) * times
    rows = sent(kind.results[0].itemsize, others)
    return [(table, axes, asked, 0), (table, axes, rows, rows if _trained(kind) else 0)]


def halves_bytes(kind: OpClass, assignment: Assignment, mesh: Mesh) -> list[Inside]:
    """Bytes of the halves that attention exchanges, so that causal ranks have as much work: of the
    queries and the result, in a ring of keys and values too, and of their gradients. Each
    of two ranks keeps one half; where there are more, some keep none."""
    rule = kind.rule
    queries, keys = _exchanged(rule, HALVES), _exchanged(rule, RING)
    axes = _axes(assignment, queries)
    if not axes:
        return []
    q, k = (_attended_bytes(kind, assignment, mesh, at) for at in (0, 1))
    ring = 2 if _axes(assignment, keys) else 0
    part = 2 if mesh.degree(axes) == 2 else 1
    forward, backward = 2 * q + ring * k, 2 * q + ring * k * _widened(kind)
    return [(queries, axes, forward // part, backward // part if _trained(kind) else 0)]


def ring_bytes(kind: OpClass, assignment: Assignment, mesh: Mesh) -> list[Inside]:
    """Bytes of keys and values that go round a ring, forward and again backward, and of their
    gradients in f32, which go a step further to come home; and of what says which keys are kept."""
    keys = _exchanged(kind.rule, RING)
    axes = _axes(assignment, keys)
    if not axes:
        return []
    ranks, times = mesh.degree(axes), mesh.time.size if mesh.time else 1
    both = 2 * _attended_bytes(kind, assignment, mesh, 1)
    keep = any(keys in dim for dims in kind.rule.operands[3:4] for dim in dims)
    kept = math.prod(_local(kind, assignment, mesh, 3)) * times if keep else 0
    backward = (ranks - 1) * both + ranks * both * _widened(kind)
    return [(keys, axes, (ranks - 1) * (both + kept), backward if _trained(kind) else 0)]


def _exchanged(rule: FactorRule, how: str) -> int:
    """The factor that is exchanged in a way; -1 if none is."""
    return next((f for f, factor in enumerate(rule.factors) if factor.exchanged == how), -1)


def _axes(assignment: Assignment, factor: int) -> tuple[str, ...]:
    return assignment.factors[factor] if factor >= 0 else ()


def _attended_bytes(kind: OpClass, assignment: Assignment, mesh: Mesh, at: int) -> int:
    """Bytes of an operand of attention on a rank, in all microbatches, as wide as the widest is."""
    wide = max(_local(kind, assignment, mesh, i)[-1] for i in (1, 2))
    elements = math.prod(_local(kind, assignment, mesh, at)[:-1]) * wide
    return elements * kind.operands[at].itemsize * (mesh.time.size if mesh.time else 1)


def _local(kind: OpClass, assignment: Assignment, mesh: Mesh, at: int) -> list[int]:
    """The shape of an operand on a rank."""
    sizes = [-(-f.size // mesh.degree(axes)) for f, axes in zip(kind.rule.factors, assignment.factors, strict=True)]
    return [math.prod([sizes[f] for f in dim]) for dim in kind.rule.operands[at]]


def _widened(kind: OpClass) -> int:
    """How many times as wide as keys the sums of their gradients are: in f32 at least."""
    return max(4, kind.operands[1].itemsize) // kind.operands[1].itemsize


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
