"""Routes between layouts on six real ranks: any two of 6, 2 * 3 and 3 * 2, dims that do not divide included.

Each move is the runtime's function under autograd; what the ranks hold afterwards, and the gradients that come back,
are put together by numpy from the meaning of layouts alone.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tests.runtime.forked import on_ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plan"))

from shardlang import runtime as rt
from shardlang.emit.text.collectives import moved_axes, permute_sources
from shardlang.plan.plan import Move, MoveKind
from shardlang.runtime.comm.mesh import world
from shardlang.types.layout import Layout, chunk_sizes
from shardlang.types.mesh import Axis, Mesh
from tests.plan import simulated
from tests.plan.routes import route

FACTORINGS = ((6,), (2, 3), (3, 2))
SHAPES = [((12, 6), frozenset()), ((7, 12), frozenset((0,))), ((13, 4), frozenset((0, 1)))]
CASES = 120


def _meshes(names: str, sizes: tuple[int, ...]) -> tuple[Mesh, rt.Mesh]:
    """A factoring as the planner and as the runtime have it."""
    axes = dict(zip(names, sizes, strict=False))
    return Mesh(tuple(Axis(n, s) for n, s in axes.items())), rt.Mesh(**axes)


PARTS = [_meshes(names, sizes) for names, sizes in itertools.product(("ab", "xy"), FACTORINGS)]


def _moved(x: torch.Tensor, move: Move, before: Layout, after: Layout, mesh: Mesh, groups: rt.Mesh,
           shape: tuple[int, ...]) -> torch.Tensor:  # fmt: skip
    """A move as the emitted program makes it."""
    group, name = groups[move.axes], move.kind.value

    def sizes(dim: int) -> tuple[int, ...] | None:
        return chunk_sizes(shape[dim], group.size) if shape[dim] % group.size else None

    if move.kind is MoveKind.VIEW:
        return x
    if move.kind is MoveKind.PERMUTE:
        axes = moved_axes(before, after, mesh)
        return rt.permute(x, groups[axes], permute_sources(before, after, axes, mesh))
    if move.kind is MoveKind.S_TO_S:
        return rt.all_to_all(x, move.from_dim, move.dim, group, sizes(move.from_dim), sizes(move.dim))
    function = getattr(rt, name)
    return function(x, move.dim, group, sizes(move.dim)) if move.dim >= 0 else function(x, group)


def _gathered(part: np.ndarray) -> list[np.ndarray]:
    every: list[np.ndarray | None] = [None] * world.size
    dist.all_gather_object(every, part)
    return [x for x in every if x is not None]


def _case(seed: int) -> set[MoveKind]:
    rng = np.random.default_rng(seed)
    first, last = PARTS[rng.integers(3)], PARTS[3 + rng.integers(3)]
    shape, uneven = SHAPES[rng.integers(len(SHAPES))]
    meshes, groups = (first[0], last[0]), (first[1], last[1])
    if rng.random() < 0.6:
        meshes, groups = meshes[:1], groups[:1]
    ends = [simulated.layouts(2, meshes[at], shape, at, uneven) for at in (0, len(meshes) - 1)]
    source, target = (layouts[rng.integers(len(layouts))] for layouts in ends)
    found = route(source, target, shape, 8, meshes, True, uneven)
    assert found is not None
    value, gradient = rng.standard_normal(shape), rng.standard_normal(shape)
    mine = simulated.scatter(value, source, meshes[0], rng)[world.rank]
    late = simulated.scatter(gradient, simulated.dual(target, meshes[-1]), meshes[-1], rng)[world.rank]
    leaf = torch.from_numpy(mine).requires_grad_()
    x, at = leaf.view_as(leaf), source
    for move, to in found.moves:
        x, at = _moved(x, move, at, to, meshes[at.mesh], groups[at.mesh], shape), to
    x.backward(torch.from_numpy(late))
    assert leaf.grad is not None
    _check(_gathered(x.detach().numpy()), target, meshes[-1], value, (seed, source, target))
    _check(_gathered(leaf.grad.numpy()), simulated.dual(source, meshes[0]), meshes[0], gradient, (seed, source, target))
    return {move.kind for move, _ in found.moves}


def _check(parts: list[np.ndarray], layout: Layout, mesh: Mesh, wanted: np.ndarray, case: object) -> None:
    whole = simulated.value_of(parts, layout, wanted.shape, mesh)
    assert whole is not None, case
    np.testing.assert_allclose(whole, wanted, atol=1e-12, err_msg=str(case))


def everything() -> None:
    seen: set[MoveKind] = set()
    for seed in range(CASES):
        seen |= _case(seed)
    assert seen == set(MoveKind), set(MoveKind) - seen


def test_routes_between_layouts_on_six_ranks() -> None:
    on_ranks(__file__, "everything", 6)
