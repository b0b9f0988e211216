"""The bytes that an operator reads and writes on a device, forward and backward, and in how many
kernels: facts of torch's and the runtime's functions, that declarations name.

All of one rank. Unless a declaration says else, each operand is read once and each result written
once; backward reads what was kept and the results' gradients once, and writes each operand's
gradient once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shardlang.frozen.records import dataclass
from shardlang.ops.saved_activations import Aliasing, LocalOp, Residuals, elements, size
from shardlang.ops.working_memory import WorkingMemory
from shardlang.types.dim import BYTES


class KernelIO(NamedTuple):
    """One direction. kernels: 0 where nothing is read or written."""

    read: int = 0
    written: int = 0
    kernels: int = 1


NOTHING = KernelIO(kernels=0)


@dataclass(frozen=True, slots=True)
class Streams:
    """Both directions."""

    forward: KernelIO
    backward: KernelIO


def sizes(local: LocalOp) -> tuple[list[int], list[int]]:
    """Bytes of the operands, and of the results."""
    given = [size(shape, type.dtype) for shape, type in zip(local.operands, local.operand_types, strict=True)]
    made = [size(shape, type.dtype) for shape, type in zip(local.results, local.result_types, strict=True)]
    return given, made


def once(local: LocalOp, saved: Residuals, aliasing: Aliasing, work: WorkingMemory) -> Streams:
    """The default."""
    given, made = sizes(local)
    forward = NOTHING if aliasing.shared else KernelIO(sum(given), sum(made) + saved.more)
    kept = sum(given[at] for at in saved.operands) + sum(made[at] for at in saved.results) + saved.more
    slopes = [n for at, n in enumerate(given) if local.gradient[at] and at not in work.passes]
    return Streams(forward, KernelIO(sum(made) + kept, sum(slopes)) if slopes else NOTHING)


def looked_up(local: LocalOp) -> Streams:
    """The rows of a table (operand 1) by index: of the table only those are read. Backward makes
    the whole of its gradient and adds the rows to it."""
    (ids, table), (made,) = sizes(local)
    rows = size(local.results[0], local.operand_types[1].dtype)
    cast = KernelIO(rows, made) if made != rows else NOTHING  # of the rows, into the type of the result
    forward = KernelIO(ids + rows + cast.read, rows + cast.written, 1 + cast.kernels)
    backward = KernelIO(ids + 2 * rows + cast.written, table + rows + cast.read, 2 + cast.kernels)
    return Streams(forward, backward if local.gradient[1] else NOTHING)


def in_kernels(
    forward: tuple[float, float, int], backward: tuple[float, float, int], at_least: str = ""
) -> Callable[[LocalOp], Streams]:
    """Several kernels, each way: how often the first operand is read, and written, in all of them,
    and how many they are. It counts as in the type `at_least`, where its own is narrower."""

    def found(local: LocalOp) -> Streams:
        width = max(BYTES[local.operand_types[0].dtype], BYTES[at_least] if at_least else 0)
        whole = elements(local.operands[0]) * width
        ways = [
            KernelIO(int(read * whole), int(written * whole), kernels) for read, written, kernels in (forward, backward)
        ]
        return Streams(ways[0], ways[1] if local.gradient[0] else NOTHING)

    return found
