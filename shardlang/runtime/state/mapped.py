"""Parameters on the host, and what their optimizers keep of them, in files that are mapped into
memory: tables may then be larger than it. The system keeps the pages that steps read and writes the
others back.

Each tensor is a file of its own in the folder that the user gives. Its space is reserved at once,
so that a full disk is an error before the first step; its name goes at once too, so that nothing
stays behind however the run ends."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.program import Extent, RunProgram

# Elements of a table that are in memory at once while it is made.
_AT_ONCE = 2**22


class _Storage:
    """The folder of this run, if any, and the memory that its tensors have."""

    folder: Path | None = None
    mapped: set[int] = set()  # noqa: RUF012  one a process


def start(program: RunProgram) -> None:
    """Sets the folder of a run. RunError if there is one and nothing is on the host."""
    _Storage.folder = program.host_storage
    if program.host_storage is not None and not any(p.place == "host" for p in program.parameters):
        fact = "there is host storage, and no parameter is placed on the host"
        help = "add `at TABLE: place on host` to the strategy (on one rank name it), or leave out --host-storage"
        raise RunError("SH509", fact, file=program.host_storage, help=help)


def wanted(place: str) -> bool:
    """Whether tensors with this place are kept in files."""
    return place == "host" and _Storage.folder is not None


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in a file of its own. RunError if the folder or disk cannot hold it."""
    assert _Storage.folder is not None
    count = math.prod(shape)
    if not count:
        return torch.zeros(tuple(shape), dtype=dtype)
    size = count * dtype.itemsize
    try:
        file, name = tempfile.mkstemp(prefix=f"rank-{world.rank}-", dir=_Storage.folder)
        try:
            os.posix_fallocate(file, 0, size)
            found = torch.from_file(name, shared=True, size=count, dtype=dtype).view(tuple(shape))
        finally:
            os.close(file)
            os.unlink(name)
    except OSError as error:
        raise RunError(
            "SH509", f"{size} bytes of host storage cannot be had: {error.strerror}", file=_Storage.folder
        ) from None
    _Storage.mapped.add(found.untyped_storage()._cdata)
    return found


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are in a file."""
    return tensor.untyped_storage()._cdata in _Storage.mapped


def like(tensor: Tensor, value: float, shape: Sequence[int] | None = None) -> Tensor:
    """A tensor of one value (of another shape), in a file if `tensor` is in one."""
    shape = tensor.shape if shape is None else shape
    if not is_mapped(tensor):
        return tensor.new_full(tuple(shape), value)
    found = empty(shape, tensor.dtype)
    return found.fill_(value) if value else found


def clone(part: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A part of a tensor apart from it (as `dtype`), in a file where that is in one."""
    kind = dtype or part.dtype
    return empty(part.shape, kind).copy_(part) if is_mapped(part) else part.to(kind, copy=True)


def made(block: Extent, dtype: torch.dtype, part: Callable[[Extent], Tensor]) -> Tensor:
    """A block in a file. part: makes a block of some of its rows."""
    if not block.shape:
        return part(block)
    found = empty(block.shape, dtype)
    for some in block.by_rows(_AT_ONCE):
        first = some.offsets[0] - block.offsets[0]
        found[first : first + some.shape[0]] = part(some)
    return found
