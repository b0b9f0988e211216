"""The communication under the conversions, without gradients: sums, gathers, scatters and exchanges
of blocks along a dim.

Takes local tensors of any strides and gives contiguous ones (slices may be views). It numbers
blocks by group index and puts them in torch's order, which is by rank, where the two differ. The
duals are paired up in collectives.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.record import LoggedWork
from shardlang.runtime.comm.traced import moves

Sizes = tuple[int, ...] | None


def chunk_sizes(size: int, parts: int) -> tuple[int, ...]:
    """torch.chunk's sizes: ceil(size / parts) each, the last smaller or 0; always `parts`."""
    each = -(-size // parts)
    return tuple(max(0, min(each, size - i * each)) for i in range(parts))


def _alike(x: Tensor, *_: object) -> Sequence[int]:
    return list(x.shape)


@moves(_alike)
def reduced(x: Tensor, group: Group, how: str = "sum") -> Tensor:
    """The sum (max, min) over the group, a new tensor of the same shape on each member."""
    return begin_reduced(x, group, how)()


def begin_reduced(x: Tensor, group: Group, how: str = "sum") -> Callable[[], Tensor]:
    """Starts `reduced`; what it gives waits for it."""
    whole = x.contiguous()
    return primitives.begin_reduce(whole, group, how, own=whole is not x).wait


def _padded(x: Tensor, dim: int, length: int) -> Tensor:
    """x with zeros behind, up to `length` along dim."""
    missing = length - x.shape[dim]
    return torch.cat((x, x.new_zeros(_with(x, dim, missing))), dim) if missing else x


def _with(x: Tensor, dim: int, size: int) -> list[int]:
    """The shape of x with another size along dim."""
    return [size if at == dim % x.dim() else own for at, own in enumerate(x.shape)]


def _gathered_shape(x: Tensor, dim: int, group: Group, sizes: Sizes = None) -> Sequence[int]:
    return _with(x, dim, x.shape[dim] * group.size if sizes is None else sum(sizes))


@moves(_gathered_shape)
def gathered(x: Tensor, dim: int, group: Group, sizes: Sizes = None) -> Tensor:
    """All members' blocks joined along dim, by group index."""
    dim %= x.dim()
    # Gloo gathers only blocks of one shape, so uneven ones travel padded to the largest.
    block = (x if sizes is None else _padded(x, dim, max(sizes))).contiguous()
    joined = primitives.all_gather(block, group)
    if sizes is None and group.in_order:
        return joined.movedim(0, dim).flatten(dim, dim + 1)
    blocks = [joined[slot] for slot in group.slots]
    if sizes is not None:
        blocks = [b.narrow(dim, 0, size) for b, size in zip(blocks, sizes, strict=True)]
    return torch.cat(blocks, dim)


def _scattered_shape(x: Tensor, dim: int, group: Group, sizes: Sizes = None) -> Sequence[int]:
    return _with(x, dim, span(x.shape[dim], group, sizes)[1])


@moves(_scattered_shape)
def scattered(x: Tensor, dim: int, group: Group, sizes: Sizes = None) -> Tensor:
    """This rank's block along dim of the sum over the group."""
    return begin_scattered(x, dim, group, sizes)()


def begin_scattered(x: Tensor, dim: int, group: Group, sizes: Sizes = None) -> Callable[[], Tensor]:
    """Starts `scattered`; what it gives waits for it."""
    dim %= x.dim()
    if sizes is None and group.in_order:
        source = x.unflatten(dim, (group.size, -1)).movedim(dim, 0).contiguous()
    else:
        length = x.shape[dim] // group.size if sizes is None else max(sizes)
        blocks = x.split([length] * group.size if sizes is None else list(sizes), dim)
        source = torch.stack([_padded(blocks[i], dim, length) for i in group.order])
    coming = primitives.begin_reduce_scatter(source, group)
    if sizes is None:
        return coming.wait
    return lambda: coming.wait().narrow(dim, 0, sizes[group.index]).contiguous()


def span(size: int, group: Group, sizes: Sizes) -> tuple[int, int]:
    """Start and length of this rank's block of a dim of `size`."""
    if sizes is None:
        length = size // group.size
        return group.index * length, length
    return sum(sizes[: group.index]), sizes[group.index]


def sliced(x: Tensor, dim: int, group: Group, sizes: Sizes = None) -> Tensor:
    """This rank's block along dim: a view, without communication or an early copy."""
    return x.narrow(dim, *span(x.shape[dim], group, sizes))


def filled(x: Tensor, dim: int, group: Group, sizes: Sizes = None) -> Tensor:
    """This rank's block in its place of the whole dim, zeros elsewhere: no communication."""
    shape = _gathered_shape(x, dim, group, sizes)
    if x.is_sparse:  # rows of a table's gradient
        ids, rows = x._indices(), x._values()
        ids, rows = (ids, filled(rows, dim, group, sizes)) if dim else (ids + span(shape[0], group, sizes)[0], rows)
        return torch.sparse_coo_tensor(ids, rows, shape, check_invariants=False)
    result = x.new_zeros(shape)
    result.narrow(dim, *span(shape[dim], group, sizes)).copy_(x)
    return result


def first_only(x: Tensor, group: Group) -> Tensor:
    """x on member 0, zeros elsewhere. A product with a mask would turn infinities into NaN."""
    return x.view_as(x) if group.index == 0 else torch.zeros_like(x)


def _exchanged_shape(
    x: Tensor, gather_dim: int, split_dim: int, group: Group, gather_sizes: Sizes = None, split_sizes: Sizes = None
) -> Sequence[int]:
    split = _with(x, split_dim, span(x.shape[split_dim], group, split_sizes)[1])
    gathered = x.shape[gather_dim] * group.size if gather_sizes is None else sum(gather_sizes)
    return [gathered if at == gather_dim % x.dim() else size for at, size in enumerate(split)]


@moves(_exchanged_shape)
def exchange(
    x: Tensor, gather_dim: int, split_dim: int, group: Group, gather_sizes: Sizes = None, split_sizes: Sizes = None
) -> Tensor:
    """Block i along split_dim goes to member i; arriving blocks are joined along gather_dim."""
    count = group.size
    gather_dim, split_dim = gather_dim % x.dim(), split_dim % x.dim()
    split_sizes = split_sizes or (x.shape[split_dim] // count,) * count
    gather_sizes = gather_sizes or (x.shape[gather_dim],) * count
    blocks, order = x.split(list(split_sizes), split_dim), group.order
    source = torch.cat([blocks[i].reshape(-1) for i in order])
    mine = list(x.shape)
    mine[split_dim] = split_sizes[group.index]
    shapes = [[*mine[:gather_dim], size, *mine[gather_dim + 1 :]] for size in gather_sizes]
    counts = [math.prod(shapes[i]) for i in order]
    arrived = source.new_empty(sum(counts))
    sent = [blocks[i].numel() for i in order]
    LoggedWork("all-to-all", group, source).of(group.handle(source).alltoall_base(arrived, source, counts, sent)).wait()
    pieces = arrived.split(counts)
    return torch.cat([pieces[slot].view(shape) for slot, shape in zip(group.slots, shapes, strict=True)], gather_dim)


def begin_permuted(x: Tensor, group: Group, sources: tuple[int, ...]) -> primitives.AsyncResult:
    """Starts to bring the block of member sources[index] here; every member must call it. Blocks
    are contiguous and of one shape."""
    slots, count = group.slots, x.numel()
    send, receive = [0] * group.size, [0] * group.size
    send[slots[sources.index(group.index)]] = count
    receive[slots[sources[group.index]]] = count
    result = x.new_empty(x.shape)
    work = LoggedWork("permute", group, x).of(group.handle(x).alltoall_base(result.view(-1), x.view(-1), receive, send))
    return primitives.AsyncResult(result, work)


@moves(_alike)
def permuted(x: Tensor, group: Group, sources: tuple[int, ...]) -> Tensor:
    """The block of member sources[index]."""
    return begin_permuted(x.contiguous(), group, sources).wait()


Held = tuple[tuple[int, ...], ...]


@moves(_alike)
def dealt(x: Tensor, dim: int, group: Group, before: Held, after: Held) -> Tensor:
    """The chunks after[index] along dim, in that order, of members that have before[index]. All
    chunks are of one size, and each member has as many."""
    mine, wanted = before[group.index], after[group.index]
    chunks = dict(zip(mine, x.chunk(len(mine), dim), strict=True))
    send = [sorted({*mine} & {*after[member]}) for member in group.order]
    receive = [sorted({*wanted} & {*before[member]}) for member in group.order]
    source = torch.cat([chunks[at].reshape(-1) for some in send for at in some])
    shape, size = chunks[mine[0]].shape, chunks[mine[0]].numel()
    counts = ([len(some) * size for some in receive], [len(some) * size for some in send])
    arrived = torch.empty_like(source)
    LoggedWork("all-to-all", group, source).of(group.handle(source).alltoall_base(arrived, source, *counts)).wait()
    order = [at for some in receive for at in some]
    found = dict(zip(order, arrived.split(size), strict=True))
    return torch.cat([found[at].view(shape) for at in wanted], dim)
