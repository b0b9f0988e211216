"""A conversion -> the memory that it takes, forward and in its dual: as runtime/comm has it on a
device, where collectives write into memory that is theirs alone.

A block along a dim that is not the first lies in pieces: it is copied before it is sent, or after
it has come."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardlang.ops.working_memory import WorkingMemory
from shardlang.plan.plan import Move, MoveKind

_PASSED_BACK = (
    MoveKind.P_TO_I, MoveKind.S_TO_I, MoveKind.I_TO_P, MoveKind.S_TO_P, MoveKind.VIEW,
)  # fmt: skip


def move_work(move: Move, source: int, result: int, shape: Sequence[int]) -> WorkingMemory:
    """source, result: bytes of the forms before and after; shape: local, before."""
    pieces = move.dim >= 0 and math.prod(shape[: move.dim]) > 1
    forward = backward = 0
    match move.kind:
        case MoveKind.P_TO_S:
            forward = result + source * pieces
            backward = source * (1 + pieces)
        case MoveKind.S_TO_R | MoveKind.S_TO_I:
            forward = result * (1 + pieces)
            backward = source + result * pieces
        case MoveKind.I_TO_S:
            backward = source * (1 + pieces)
        case MoveKind.S_TO_S:
            forward, backward = 2 * source + result, 2 * result + source
        case _:
            pass
    return WorkingMemory(forward, backward, (0,) if move.kind in _PASSED_BACK else ())
