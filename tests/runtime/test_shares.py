"""Which rank writes which part of a checkpoint: every element once, by one that holds it, and each about as much."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.state.shares import StateLayouts


def program(mesh: rt.Mesh, zero: tuple[int, str] = (0, ()), rows: str | tuple = (), columns: str = "") -> rt.Program:  # type: ignore[type-arg]
    def parameter(path: str, *shape: int) -> rt.Parameter:
        cut = {**({0: rows} if rows else {}), **({1: columns} if columns and len(shape) > 1 else {})}
        return rt.Parameter(path, shape, cut=cut, zero=zero)

    tensors = [each for n in range(6) for each in (
        parameter(f"b[{n}].w", 512, 130), parameter(f"b[{n}].v", 96, 12, 5), parameter(f"b[{n}].b", 130)
    )]  # fmt: skip
    return rt.Program(
        name="t", strategy="", ranks=math.prod(mesh._sizes.values()), mesh=mesh, parameters=tensors,
        states=[rt.State("mask", (3,)), rt.State("count", (), dtype="i64")],
        data=rt.Source("random", batch=4, fields=[]), optimizers=[rt.Optimizer("adamw", lr=0.1)],
    )  # fmt: skip


MESHES: dict[str, tuple[dict[str, int], Mapping[str, object]]] = {
    "one rank": ({}, {}),
    "dp 4": ({"dp": 4}, {}),
    "dp 3, zero 1": ({"dp": 3}, {"zero": (1, "dp")}),
    "dp 4, mp 2": ({"dp": 4, "mp": 2}, {"rows": "mp"}),
    "mp 2 columns, dp 3": ({"mp": 2, "dp": 3}, {"columns": "mp"}),
    "both dims, zero over one of two": ({"dp": 2, "a": 2, "b": 2}, {"rows": "a", "columns": "b", "zero": (2, "dp")}),
    "rows over two axes": ({"a": 2, "dp": 2, "b": 3}, {"rows": ("b", "a")}),
}


@pytest.fixture
def as_rank() -> Iterator[None]:
    yield
    world.rank, world.size = 0, 1


@pytest.mark.parametrize("how", MESHES)
def test_every_element_is_written_once_by_a_rank_that_holds_it(how: str, as_rank: None) -> None:
    sizes, given = MESHES[how]
    made = program(rt.Mesh(**sizes), **given)  # type: ignore[arg-type]
    shares = StateLayouts(made).tensors
    assert len(shares) == 3 * 18 + 2
    written = {name: torch.zeros(layout.shape) for name, layout in shares.items()}
    bytes_of = [0] * made.ranks
    for name, layout in shares.items():
        layout.require(made.ranks)
        for part in layout.parts():
            written[name][tuple(slice(o, o + n) for o, n in zip(part.offsets, part.lengths, strict=True))] += 1
            bytes_of[part.rank] += 4 * math.prod(part.lengths)
    assert all((each == 1).all() for each in written.values())
    assert max(bytes_of) <= 1.2 * sum(bytes_of) / made.ranks

    for world.rank in range(made.ranks):
        for tensor in made.tensors:
            held = made.block(tensor)
            offsets, lengths = list(held.offsets), list(held.shape)
            if isinstance(tensor, rt.Parameter) and tensor.zero[0]:
                group = made.mesh[tensor.zero[1]]
                offsets[0], lengths[0] = offsets[0] + group.start(lengths[0]), group.chunk(lengths[0])
            part = shares[tensor.path].part_of(world.rank)
            if part is not None:
                inside = zip(part.offsets, part.lengths, offsets, lengths, strict=True)
                assert all(at <= o and o + n <= at + m for o, n, at, m in inside), (tensor.path, world.rank)


def test_tensors_that_are_cut_alike_have_one_layout() -> None:
    layouts = StateLayouts(program(rt.Mesh(dp=4), zero=(1, "dp"))).tensors
    assert len({id(layout) for layout in layouts.values()}) == 5
    alike = [layouts[f"b[{n}].w{slot}"] for n, slot in itertools.product(range(6), ("", ":mean", ":square"))]
    assert len({id(each) for each in alike}) == 1
