"""How groups lie on a cluster, against a list of all ranks; seconds of collectives, worked out by
hand; more bytes and thinner networks that never make one faster."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.cost.collectives import KINDS, Placing, placed, seconds
from shardlang.cost.hardware import Level
from shardlang.types.mesh import Axis, Mesh
from tests.cost.machines import HALLS, POD

US = 1e-6


def by_listing(sizes: tuple[int, ...], axes: tuple[int, ...], block: int) -> tuple[int, int]:
    """Over how many blocks the worst group lies, and the least members that a block of it has."""
    mesh = Mesh(tuple(Axis(str(i), n) for i, n in enumerate(sizes)))
    groups = mesh.groups(tuple(str(a) for a in axes))
    found = [Counter(rank // block for rank in group) for group in groups]
    return max(((len(c), min(c.values())) for c in found), key=lambda each: (each[0], -each[1]))


@st.composite
def meshes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 8]), min_size=1, max_size=4)))
    axes = draw(st.lists(st.integers(0, len(sizes) - 1), unique=True, min_size=1, max_size=len(sizes)))
    return sizes, tuple(axes)


@settings(max_examples=300, deadline=None)
@given(meshes(), st.sampled_from([1, 2, 3, 4, 8, 12, 72]), st.integers(2, 6), st.integers(2, 5))
def test_groups_lie_as_a_list_of_all_ranks_says(
    mesh: tuple[tuple[int, ...], tuple[int, ...]], devices: int, inner: int, outer: int
) -> None:
    sizes, axes = mesh
    levels = (Level("row", devices * inner, 2.0), Level("hall", devices * inner * outer, 5.0))
    found = placed(replace(POD, devices=devices, levels=levels), sizes, axes)
    nodes, fewest = by_listing(sizes, axes, devices)
    assert (found.members, found.nodes, found.a_node) == (math.prod(sizes[a] for a in axes), nodes, fewest)
    crossed = [by_listing(sizes, axes, level.ranks)[0] > 1 for level in levels]
    assert found.level == (0 if nodes == 1 else 1 if not crossed[0] else 2)
    assert found.oversubscription == (1.0 if nodes == 1 else 2.0 if not crossed[0] else 5.0)


def test_the_usual_mesh_of_a_large_run() -> None:
    """pp 16, dp 128, tp 8 on nodes of 8, blocks of 3,072: tensor parallel in a node; data parallel
    in 128 nodes of 1,024 neighbours, which some blocks cut; stages 1,024 ranks apart."""
    large = replace(POD, levels=(Level("pod", 3072), Level("hall", 24576, 7.0)))
    sizes = (16, 128, 8)
    assert placed(large, sizes, (2,)) == Placing(8, 8, 1)
    assert placed(large, sizes, (1,)) == Placing(128, 1, 128, 1)
    assert placed(large, sizes, (1, 2)) == Placing(1024, 8, 128, 1)
    assert placed(large, sizes, (0,)) == Placing(16, 1, 16, 2, 7.0)


def test_without_nodes_all_ranks_are_in_one() -> None:
    assert placed(replace(POD, devices=0), (16, 8), (0,)) == Placing(16, 16, 1)


def test_an_all_reduce_in_a_node() -> None:
    """1 GB on 8: each sends 1.75 GB at 0.78 x 450 GB/s = 4985.75 us, 14 hops of 5 us, 8.4 us."""
    assert seconds(POD, "all_reduce", Placing(8, 8, 1), 1.75e9) == pytest.approx(5064.15 * US, rel=1e-5)


def test_an_all_gather_over_two_nodes() -> None:
    """1.6 GB on 2 x 8: 1.5 GB at 8 ports x 0.85 x 50 GB/s = 4411.76 us, 14 + 1 hops, 8.4 us; one
    device a node has one port: 2 members send 0.8 GB at 42.5 GB/s = 18823.53 us, one hop."""
    assert seconds(POD, "all_gather", Placing(16, 8, 2, 1), 1.5e9) == pytest.approx(4495.17 * US, rel=1e-5)
    assert seconds(POD, "all_gather", Placing(2, 1, 2, 1), 0.8e9) == pytest.approx(18836.93 * US, rel=1e-5)


def test_a_hall_whose_network_is_seven_times_thinner() -> None:
    """The bytes of the last test over 2 x 8 take 7 x 4411.76 us; hops and the rest as long."""
    took = seconds(POD, "all_gather", Placing(16, 8, 2, 2, 7.0), 1.5e9)
    assert took == pytest.approx((4495.17 + 6 * 4411.765) * US, rel=1e-5)


def test_few_bytes_over_many_nodes_go_by_a_tree() -> None:
    """64 nodes: up and down 6 levels are 12 hops, 60 us, and not the 126 of a ring; 4 KB take 0.1 us."""
    sent = 4096 * 2 * 63 / 64
    assert seconds(POD, "all_reduce", Placing(64, 1, 64, 1), sent) == pytest.approx((8.4 + 60 + 0.1928) * US, rel=1e-4)


def test_an_exchange_leaves_the_node_by_each_ranks_own_port() -> None:
    """16 on 2 nodes: 8 of 15 parts leave: 0.8 of 1.5 GB at 42.5 GB/s = 18823.53 us, longer than
    0.7 GB at 351 GB/s; in a node all parts take the links."""
    assert seconds(POD, "all_to_all", Placing(16, 8, 2, 1), 1.5e9) == pytest.approx(18836.93 * US, rel=1e-5)
    assert seconds(POD, "all_to_all", Placing(8, 8, 1), 0.7e9) == pytest.approx((1994.30 + 13.4) * US, rel=1e-5)


def test_neighbours_hand_on_a_block() -> None:
    """64 MB: 182.34 us by a link at 351 GB/s, 1505.88 us by a port at 42.5; one hop each."""
    assert seconds(POD, "send", Placing(2, 2, 1), 64e6) == pytest.approx((182.336 + 13.4) * US, rel=1e-5)
    assert seconds(POD, "permute", Placing(4, 2, 2, 1), 64e6) == pytest.approx((1505.882 + 13.4) * US, rel=1e-5)


def test_one_rank_sends_nothing() -> None:
    assert seconds(POD, "all_reduce", Placing(1, 1, 1), 1e9) == 0.0


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KINDS), meshes(), st.floats(0, 1e10), st.floats(0, 1e10), st.floats(1, 20))
def test_more_bytes_and_thinner_networks_are_never_faster(
    kind: str, mesh: tuple[tuple[int, ...], tuple[int, ...]], sent: float, more: float, thinner: float
) -> None:
    machine = replace(POD, levels=HALLS)
    here = placed(machine, *mesh)
    least = seconds(machine, kind, here, sent)
    assert seconds(machine, kind, here, sent + more) >= least
    thin = replace(machine, levels=tuple(Level(x.name, x.ranks, x.oversubscription * thinner) for x in HALLS))
    assert seconds(thin, kind, placed(thin, *mesh), sent) >= least
