"""Whether all ranks read the same numbers: the first batch of an epoch, and of a run that goes on,
is read whole on each of them and compared.

So a source that draws random numbers of its own, or reads another order on another host, is told
before a step is made of it."""

from __future__ import annotations

import hashlib

import numpy as np

from shardlang.errors import RunError
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.primitives import exchanged
from shardlang.runtime.data.own import OwnDataset, Window


def agreed(data: OwnDataset, epoch: int, numbers: np.ndarray) -> Window:
    """Some examples, which all ranks have read alike; RunError SH613 where they have not. All ranks
    call it."""
    arrays = data.afresh().fetch(epoch, numbers)
    names = [field.name for field in data.source.fields]
    told = exchanged([_digest(arrays[name]) for name in names])
    if all(each == told[0] for each in told):
        return numbers, arrays
    field = next(at for at in range(len(names)) if len({each[at] for each in told}) > 1)
    rows = exchanged([_digest(row) for row in arrays[names[field]]])
    rank, other = next((rank, other) for rank, other in enumerate(rows) if other != rows[0])
    first = next(at for at in range(len(numbers)) if other[at] != rows[0][at])
    who = f"rank {rank} reads another `{names[field]}` than rank 0"
    raise _differs(data, f"{who}, of example {numbers[first]} in epoch {epoch}")


def same(data: OwnDataset, window: Window, before: Window, epoch: int) -> None:
    """RunError SH613 where a rank reads an example in another way than it did before."""
    (numbers, arrays), (known, whole) = window, before
    both, mine, theirs = np.intersect1d(numbers, known, return_indices=True)
    for name in arrays if len(both) else ():
        for number, here, there in zip(both, arrays[name][mine], whole[name][theirs], strict=True):
            if here.tobytes() != there.tobytes():
                fact = f"rank {world.rank} reads `{name}` of example {number} in epoch {epoch} in two ways"
                raise _differs(data, fact)


def _differs(data: OwnDataset, fact: str) -> RunError:
    help = "an example depends on its number (and a stream's on its epoch) alone: seed what is drawn by them"
    return RunError("SH613", f"{fact}, by `{data.name}`", file=data.file, help=help)


def _digest(array: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()
