"""The collectives that blocks.py and the buckets are made of, on contiguous tensors, in torch's own
order of members.

NCCL's are used as they are. CPU ranks go another way, in gloo/: this module alone leads there.
`SharedVectors` and `StagingBuffers` are places that CPU ranks share; on devices there are none.
Which member holds which block is not known here."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm.gloo import rounds
from shardlang.runtime.comm.gloo.shared_memory import SharedVectors as SharedVectors
from shardlang.runtime.comm.gloo.shared_memory import StagingBuffers as StagingBuffers
from shardlang.runtime.comm.gloo.shared_memory import share as share
from shardlang.runtime.comm.gloo.shared_memory import stage as stage
from shardlang.runtime.comm.mesh import Group, everyone, world
from shardlang.runtime.comm.ready import AsyncResult as AsyncResult
from shardlang.runtime.comm.ready import begin_in_place
from shardlang.runtime.comm.record import LoggedWork, about


def _native(x: Tensor) -> bool:
    return not x.is_cpu


def begin_reduce(
    x: Tensor, group: Group, how: str = "sum", own: bool = False, memory: SharedVectors | None = None
) -> AsyncResult:  # fmt: skip
    """Starts the sum (max, min) of contiguous `x` over the group. `x` must not be written into
    until then; it may become the result only where it is the caller's `own`. memory: has `x`."""
    if x.numel() == 0:
        return AsyncResult(x)
    if _native(x):
        return begin_in_place(x if own else x.clone(), group, how)
    return rounds.begin_reduce(x, group, how, own) if memory is None else memory.begin_sum()


def begin_reduce_scatter(x: Tensor, group: Group, staging: StagingBuffers | None = None) -> AsyncResult:
    """Starts the sum of contiguous `x` [members, ...]; the result is this member's row of it.
    staging: may have `x`."""
    if x.numel() == 0:
        return AsyncResult(x[0])
    if _native(x):
        result = torch.empty_like(x[0])
        native = LoggedWork("reduce-scatter", group, x)
        return AsyncResult(result, native.of(group.handle(x)._reduce_scatter_base(result.view(-1), x.view(-1))), x)
    return (staging and staging.begin("reduce-scatter", x)) or rounds.begin_reduce_scatter(x, group)


def begin_all_gather(x: Tensor, group: Group, staging: StagingBuffers | None = None) -> AsyncResult:
    """Starts to bring every member's contiguous `x` here: [members, *x.shape]. staging: may have
    `x`; then a vector of each member comes."""
    if x.numel() == 0:
        return AsyncResult(x.new_empty((group.size, *x.shape)))
    if _native(x):
        result = x.new_empty((group.size, *x.shape))
        native = LoggedWork("all-gather", group, result)
        return AsyncResult(result, native.of(group.handle(x)._allgather_base(result.view(-1), x.view(-1))), x)
    return (staging and staging.begin("all-gather", x)) or rounds.begin_all_gather(x, group)


def put_together(x: Tensor) -> Tensor:
    """A tensor of which every rank of the run has some elements, and zeros elsewhere; no two have
    the same. It is added up as bytes, so that -0.0 and numbers that are none stay what they are."""
    if world.size == 1:
        return x
    sent = x.contiguous().reshape(-1).view(torch.uint8)
    return begin_reduce(sent, everyone(), own=True).wait().view(x.dtype).view(x.shape)


def exchanged(value: Any) -> list[Any]:
    """Every rank's value, by way of JSON; all ranks call it."""
    if world.size == 1:
        return [value]
    text = json.dumps(value).encode()
    sizes = all_gather(torch.tensor([len(text)]).to(world.device), everyone()).flatten().tolist()
    padded = torch.frombuffer(bytearray(text.ljust(max(sizes))), dtype=torch.uint8).to(world.device)
    return [json.loads(bytes(part.numpy())) for part in all_gather(padded, everyone()).cpu()]


def meet() -> None:
    """Returns once every rank of the run has come here."""
    if world.size > 1:
        with about(b"all ranks meet"):
            all_gather(torch.zeros(1), everyone())


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Every member's contiguous `x`: [members, *x.shape]."""
    return begin_all_gather(x, group).wait()
