"""Each conversion of a plan as the call that makes it: kind, dims, group and uneven sizes; places of uneven parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.text.collectives import move_text, moved_axes, permute_sources
from shardlang.emit.text.sizes import Groups, LocalSizes
from shardlang.ops.rule import Factor
from shardlang.ops.site import Offset
from shardlang.plan.plan import Conversion, Move, MoveKind, Plan
from shardlang.types.dim import Dim
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh
from tests.emit.handmade import quickstart_plan

MESH = Mesh((Axis("a", 2), Axis("b", 3)))
WHOLE = Layout(((), ()))


def split(*dims: tuple[str, ...]) -> Layout:
    return Layout(dims)


# `h` is [batch 16, hidden 16]: over a, 8 and 8; over b, 6, 6 and 4. (kind, axes, dim, from_dim, before, after, text)
MOVES = [
    (MoveKind.I_TO_R, ("a",), -1, -1, WHOLE, Layout(((), ()), (), ("a",)), "rt.identical_to_replicated(h, mesh.a)"),
    (MoveKind.R_TO_I, ("a",), -1, -1, Layout(((), ()), (), ("a",)), WHOLE, "rt.replicated_to_identical(h, mesh.a)"),
    (MoveKind.P_TO_I, ("b",), -1, -1, Layout(((), ()), ("b",)), WHOLE, "rt.all_reduce(h, mesh.b)"),
    (MoveKind.P_TO_I, ("a", "b"), -1, -1, Layout(((), ()), ("a", "b")), WHOLE, 'rt.all_reduce(h, mesh["a", "b"])'),
    (MoveKind.P_TO_R, ("b",), -1, -1, Layout(((), ()), ("b",)), WHOLE, "rt.all_reduce_replicated(h, mesh.b)"),
    (MoveKind.I_TO_P, ("a",), -1, -1, WHOLE, Layout(((), ()), ("a",)), "rt.identical_to_pending(h, mesh.a)"),
    (MoveKind.R_TO_P, ("a",), -1, -1, WHOLE, Layout(((), ()), ("a",)), "rt.replicated_to_pending(h, mesh.a)"),
    (MoveKind.P_TO_S, ("a",), 1, -1, Layout(((), ()), ("a",)), split((), ("a",)), "rt.reduce_scatter(h, 1, mesh.a)"),
    (MoveKind.S_TO_I, ("a",), 0, -1, split(("a",), ()), WHOLE, "rt.all_gather(h, 0, mesh.a)"),
    (MoveKind.S_TO_R, ("a",), 0, -1, split(("a",), ()), WHOLE, "rt.all_gather_replicated(h, 0, mesh.a)"),
    (MoveKind.I_TO_S, ("a",), 1, -1, WHOLE, split((), ("a",)), "rt.split(h, 1, mesh.a)"),
    (MoveKind.R_TO_S, ("a",), 1, -1, WHOLE, split((), ("a",)), "rt.split_replicated(h, 1, mesh.a)"),
    (MoveKind.S_TO_P, ("a",), 1, -1, split((), ("a",)), WHOLE, "rt.split_to_pending(h, 1, mesh.a)"),
    (MoveKind.S_TO_S, ("a",), 1, 0, split(("a",), ()), split((), ("a",)), "rt.all_to_all(h, 0, 1, mesh.a)"),
    # uneven
    (MoveKind.P_TO_S, ("b",), 0, -1, Layout(((), ()), ("b",)), split(("b",), ()),
     "rt.reduce_scatter(h, 0, mesh.b, sizes=(6, 6, 4))"),
    (MoveKind.S_TO_I, ("b",), 1, -1, split((), ("b",)), WHOLE, "rt.all_gather(h, 1, mesh.b, sizes=(6, 6, 4))"),
    (MoveKind.S_TO_S, ("b",), 1, 0, split(("b",), ()), split((), ("b",)),
     "rt.all_to_all(h, 0, 1, mesh.b, gather_sizes=(6, 6, 4), split_sizes=(6, 6, 4))"),
    # a permutation: member (a, b) takes the block of (b, a)
    (MoveKind.PERMUTE, ("a", "b"), -1, -1, split(("a", "b"), ()), split(("b", "a"), ()),
     'rt.permute(h, mesh["a", "b"], (0, 2, 4, 1, 3, 5))'),
]  # fmt: skip


def plan_with(conversion: Conversion, before: Layout) -> Plan:
    plan = quickstart_plan()
    return replace(plan, meshes=(MESH,), produced={**plan.produced, 2: before}, conversions=(conversion,))


@pytest.mark.parametrize(
    ("kind", "axes", "dim", "from_dim", "before", "after", "text"), MOVES, ids=lambda v: str(v)[:40]
)
def test_a_move_is_one_call(kind, axes, dim, from_dim, before, after, text) -> None:  # type: ignore[no-untyped-def]
    conversion = Conversion(0, 2, -1, Move(kind, axes, dim, from_dim), after, True)
    plan = plan_with(conversion, before)
    groups = Groups(plan.meshes)
    assert move_text(plan, conversion, "h", LocalSizes(plan, groups)) == text
    assert groups.listed(0) == [axes]


def test_a_move_starts_from_its_parent() -> None:
    """Of a dim cut over a already, the sizes along b are those of the part: an uneven cut of a cut is our fault."""
    first = Conversion(0, 2, -1, Move(MoveKind.I_TO_S, ("a",), 0), split(("a",), ()), True)
    second = Conversion(1, 2, 0, Move(MoveKind.I_TO_S, ("b",), 0), split(("a", "b"), ()), True)
    plan = replace(plan_with(first, WHOLE), conversions=(first, second))
    with pytest.raises(InternalError, match="cut unevenly over several axes"):
        move_text(plan, second, "h", LocalSizes(plan, Groups(plan.meshes)))


def test_a_view_has_no_text() -> None:
    view = Conversion(0, 2, -1, Move(MoveKind.VIEW, ()), WHOLE, True)
    plan = plan_with(view, WHOLE)
    with pytest.raises(InternalError, match="is a rename"):
        move_text(plan, view, "h", LocalSizes(plan, Groups(plan.meshes)))


def test_a_permutation_that_does_not_reach_each_rank_once_is_our_fault() -> None:
    before, after = Layout((("a",), ())), Layout((("b",), ()))
    permute = Conversion(0, 2, -1, Move(MoveKind.PERMUTE, ("a", "b")), after, True)
    plan = plan_with(permute, before)
    with pytest.raises(InternalError, match="does not reach each rank once"):
        move_text(plan, permute, "h", LocalSizes(plan, Groups(plan.meshes)))


def test_sizes_and_starts_of_parts() -> None:
    plan = replace(quickstart_plan(), meshes=(MESH,))
    sizes = LocalSizes(plan, Groups(plan.meshes))
    type = plan.graph.values[2].type
    assert sizes.shape(type, split(("a",), ("b",))) == (8, "hidden_local")
    assert [sizes.offset(Factor("batch", size), axes, 0) for size, axes in ((16, ("a",)), (2, ("a",)), (16, ()))] == [
        Offset("mesh.a.index", 8),
        Offset("mesh.a.index"),
        None,
    ]
    assert sizes.offset(Factor("hidden", 16), ("b",), 0) == Offset("hidden_start")
    assert sizes.offset(Factor("hidden", 16), ("b", "a"), 0) == Offset("hidden_start_2")
    assert sizes.definitions == [
        "hidden_local = (6, 6, 4)[mesh.b.index]",
        "hidden_start = (0, 6, 12)[mesh.b.index]",
        'hidden_start_2 = (0, 3, 6, 9, 12, 15)[mesh["b", "a"].index]',
    ]
    assert [sizes.uneven((Dim("d", size),), ("b",), 0) for size in (16, 15)] == [(6, 6, 4), None]


def test_nothing_moves_between_microbatches() -> None:
    """A permutation's group is of ranks alone, where dims are cut into microbatches first."""
    timed = Mesh((Axis("a", 2), Axis("b", 2), Axis("microbatch", 4, time=True)))
    before, after = split(("microbatch", "a"), ("b",)), split(("microbatch", "b"), ("a",))
    assert moved_axes(before, after, timed) == ("a", "b")
    assert permute_sources(before, after, ("a", "b"), timed) == (0, 2, 1, 3)
