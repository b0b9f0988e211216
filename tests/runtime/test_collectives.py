"""Every row of the conversion table on four real ranks, forward and backward, against numpy; uneven shards; groups
out of rank order.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from shardlang import runtime as rt
from shardlang.runtime.comm.mesh import world
from tests.runtime.forked import on_ranks

MESH = rt.Mesh(a=2, b=2)
GROUPS = [("a",), ("b",), ("a", "b"), ("b", "a")]


def _cuts(sizes):
    return list(np.cumsum(sizes)[:-1])


def _sum(parts):
    return [sum(parts)] * len(parts)


def _same(parts):
    return parts


def _first(parts):
    return [parts[0], *[np.zeros_like(p) for p in parts[1:]]]


def _gather(parts, dim):
    return [np.concatenate(parts, dim)] * len(parts)


def _slice(parts, dim, sizes):
    return [np.split(part, _cuts(sizes), dim)[i] for i, part in enumerate(parts)]


def _fill(parts, dim, sizes):
    out = []
    for i, part in enumerate(parts):
        blocks = [np.zeros([*part.shape[:dim], s, *part.shape[dim + 1 :]]) for s in sizes]
        blocks[i] = part
        out.append(np.concatenate(blocks, dim))
    return out


def _rows(members, dim, sizes):
    """name -> (call, shapes of the members' inputs, forward, dual); `dim` of a [5, 6, 4]-like value is cut as
    `sizes`.
    """
    whole = [5, 6, 4]
    whole[dim] = sum(sizes)
    cut = [[*whole[:dim], s, *whole[dim + 1 :]] for s in sizes]
    full = [whole] * members
    even = None if len(set(sizes)) == 1 else tuple(sizes)
    scatter = lambda parts: _slice(_sum(parts), dim, sizes)  # noqa: E731
    gather = lambda parts: _gather(parts, dim)  # noqa: E731
    part = lambda parts: _slice(parts, dim, sizes)  # noqa: E731
    fill = lambda parts: _fill(parts, dim, sizes)  # noqa: E731
    return {
        "identical_to_replicated": (lambda x, g: rt.identical_to_replicated(x, g), full, _same, _sum),
        "replicated_to_identical": (lambda x, g: rt.replicated_to_identical(x, g), full, _same, _first),
        "all_reduce": (lambda x, g: rt.all_reduce(x, g), full, _sum, _same),
        "all_reduce_replicated": (lambda x, g: rt.all_reduce_replicated(x, g), full, _sum, _sum),
        "reduce_scatter": (lambda x, g: rt.reduce_scatter(x, dim, g, even), full, scatter, gather),
        "all_gather": (lambda x, g: rt.all_gather(x, dim, g, even), cut, gather, part),
        "all_gather_replicated": (lambda x, g: rt.all_gather_replicated(x, dim, g, even), cut, gather, scatter),
        "split": (lambda x, g: rt.split(x, dim, g, even), full, part, gather),
        "split_replicated": (lambda x, g: rt.split_replicated(x, dim, g, even), full, part, fill),
        "split_to_pending": (lambda x, g: rt.split_to_pending(x, dim, g, even), cut, fill, part),
        "identical_to_pending": (lambda x, g: rt.identical_to_pending(x, g), full, _first, _same),
        "replicated_to_pending": (lambda x, g: rt.replicated_to_pending(x, g), full, _first, _first),
    }


def _check(name, call, shapes, forth, back, group):
    """One collective on this rank's group: values and gradients against the members' numpy arrays."""
    seed = np.random.default_rng([sum(name.encode()), *group.ranks])
    blocks = [seed.standard_normal(shape) for shape in shapes]
    expected = forth(blocks)
    gradients = [seed.standard_normal(e.shape) for e in expected]
    mine = group.index
    # Read through a transposed copy, so that the input is not contiguous.
    leaf = torch.from_numpy(blocks[mine].T.copy()).requires_grad_()
    result = call(leaf.permute(*reversed(range(leaf.dim()))), group)
    np.testing.assert_allclose(result.detach().numpy(), expected[mine], atol=1e-12, err_msg=name)
    result.backward(torch.from_numpy(gradients[mine]))
    np.testing.assert_allclose(leaf.grad.numpy().T, back(gradients)[mine], atol=1e-12, err_msg=f"{name} backward")
    with torch.no_grad():
        plain = call(torch.from_numpy(blocks[mine]), group)
    np.testing.assert_allclose(plain.numpy(), expected[mine], atol=1e-12, err_msg=f"{name} without gradient")


def _members():
    for axes in GROUPS:
        group = MESH[axes]
        # Even, and such as are given by hand: torch.chunk's would be [3, 1].
        sizes = [[2] * group.size, [1, 3], [2, 0]] if group.size == 2 else [[2] * 4, [1, 4, 0, 2]]
        yield from itertools.product([group], range(3), sizes)


def table() -> None:
    for group, dim, sizes in _members():
        for name, (call, shapes, forth, back) in _rows(group.size, dim, sizes).items():
            _check(f"{name} {group} dim {dim} {sizes}", call, shapes, forth, back, group)


def exchanges() -> None:
    for axes, (gathered, split) in itertools.product(GROUPS, [(0, 1), (1, 0), (2, 0), (1, 2)]):
        group = MESH[axes]
        for gather_sizes, split_sizes in _exchange_sizes(group.size):
            _exchange(group, gathered, split, gather_sizes, split_sizes)


def _exchange_sizes(count):
    uneven = (3, 1) if count == 2 else (3, 0, 2, 1)
    other = (2, 2) if count == 2 else (2, 2, 1, 0)
    return [((2,) * count, (3,) * count), (uneven, (2,) * count), ((2,) * count, uneven), (uneven, other)]


def _exchange(group, gathered, split, gather_sizes, split_sizes) -> None:
    whole = [3, 3, 3]
    whole[split] = sum(split_sizes)
    shapes = [[s if d == gathered else w for d, w in enumerate(whole)] for s in gather_sizes]
    given = [None if len(set(sizes)) == 1 else sizes for sizes in (gather_sizes, split_sizes)]

    def forth(parts):
        return _slice(_gather(parts, gathered), split, split_sizes)

    def back(parts):
        return _slice(_gather(parts, split), gathered, gather_sizes)

    _check(
        f"all_to_all {group} {gathered} {split} {gather_sizes} {split_sizes}",
        lambda x, g: rt.all_to_all(x, gathered, split, g, *given),
        shapes,
        forth,
        back,
        group,
    )


def permutations() -> None:
    for axes in GROUPS:
        group = MESH[axes]
        for sources in itertools.permutations(range(group.size)):
            inverse = [sources.index(i) for i in range(group.size)]
            _check(
                f"permute {group} {sources}",
                lambda x, g, s=sources: rt.permute(x, g, s),
                [[3, 2]] * group.size,
                lambda parts, s=sources: [parts[i] for i in s],
                lambda parts, s=inverse: [parts[i] for i in s],
                group,
            )


def selection() -> None:
    """The mask selects: an infinity elsewhere does not become NaN. Maxima and minima; whole numbers; one rank's
    group.
    """
    value = torch.full((3,), float("inf"))
    kept = rt.identical_to_pending(value, MESH.a)
    assert not torch.isnan(kept).any()
    assert rt.all_reduce_max(torch.tensor(world.rank), MESH["a", "b"]).item() == 3
    assert rt.all_reduce_min(torch.tensor(world.rank), MESH["a", "b"]).item() == 0
    assert rt.all_reduce(torch.tensor([world.rank]), MESH["b"]).tolist() == [1 if world.rank < 2 else 5]
    # Large enough for two rounds, of chunks that differ.
    large = torch.arange(100_006.0, dtype=torch.float64) * (world.rank + 1)
    for axes in GROUPS:
        factor = sum(rank + 1 for rank in MESH[axes].ranks)
        assert torch.equal(rt.all_reduce(large, MESH[axes]), torch.arange(100_006.0, dtype=torch.float64) * factor)
        assert rt.all_reduce_max(large, MESH[axes])[-1] == 100_005 * (max(MESH[axes].ranks) + 1)
    assert rt.all_reduce(torch.zeros(0, 3), MESH.a).shape == (0, 3)
    alone = torch.ones(2, requires_grad=True)
    for call in (rt.identical_to_replicated, rt.all_reduce, rt.identical_to_pending, rt.replicated_to_identical):
        assert call(alone, None) is alone
        assert call(alone, rt.Mesh(one=1).one) is alone
    for axes in GROUPS:
        assert [MESH[axes].ranks[MESH[axes].index]] == [world.rank]
    assert MESH["b", "a"].ranks == (0, 2, 1, 3)


def everything() -> None:
    table()
    exchanges()
    permutations()
    selection()


def test_collectives_and_their_duals_on_four_ranks() -> None:
    on_ranks(__file__, "everything", 4)
