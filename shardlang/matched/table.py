"""The functions of the runtime that communicate -> which collectives each runs, forward and
backward.

The rows of the conversion table, and the operators that communicate themselves. A function that is
not here does not communicate."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.records import dataclass

# Conversion -> the collective of its forward and that of its backward; "" for none. Those that
# communicate neither way are left out.
CONVERSIONS: Mapping[str, tuple[str, str]] = {
    "all_gather": ("all_gather", ""),
    "all_gather_replicated": ("all_gather", "reduce_scatter"),
    "all_reduce": ("all_reduce", ""),
    "all_reduce_replicated": ("all_reduce", "all_reduce"),
    "all_to_all": ("all_to_all", "all_to_all"),
    "identical_to_replicated": ("", "all_reduce"),
    "permute": ("permute", "permute"),
    "reduce_scatter": ("reduce_scatter", "all_gather"),
    "split": ("", "all_gather"),
}

# What operators exchange, as lines: sums of statistics; rows of a table and the numbers that ask
# for them; halves of a sequence; keys and values from member to member.
STATISTICS, ROWS, HALVES, RING = "statistics", "rows", "halves", "ring"

# What autograd keeps of an operand on all ranks, where one may have no part of it.
KEEPING = "keeping"

# The group that an operator of the user's gets to make its own sums over.
MEMBERS = "Members"


@dataclass(frozen=True, slots=True)
class Within:
    """An operator that communicates: where its group stands among the arguments (-1: it is given
    by name), how many collectives its statistics are, forward and backward, and what it exchanges.
    times: the argument that says how often it does (-1: it does once)."""

    group: int
    runs: tuple[int, int] = (0, 0)
    exchanges: tuple[str, ...] = (STATISTICS,)
    times: int = -1


OPERATORS: Mapping[str, Within] = {
    "amax": Within(2, (2, 0)),
    "amin": Within(2, (2, 0)),
    "argmax": Within(2, (2, 0)),
    "batch_norm": Within(-1, (2, 1)),
    "chunked_cross_entropy": Within(-1, (2, 0), times=3),
    "count": Within(1, (1, 0)),
    "cross_entropy": Within(3, (2, 0)),
    "even_attention": Within(3, exchanges=(HALVES,)),
    "exchanged_embedding": Within(3, exchanges=(ROWS,)),
    "layer_norm": Within(-1, (2, 1)),
    "log_softmax": Within(2, (2, 1)),
    MEMBERS: Within(1),
    "logsumexp": Within(2, (2, 0)),
    "ring_attention": Within(3, exchanges=(HALVES, RING)),
    "rms_norm": Within(-1, (1, 1)),
    "softmax": Within(2, (2, 1)),
    "var": Within(2, (2, 0)),
}
