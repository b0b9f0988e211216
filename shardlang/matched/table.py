"""The functions of the runtime that communicate -> which collectives each runs, forward and
backward.

The rows of the conversion table. Any other function that is given a group of ranks is an operator
that communicates itself."""

from __future__ import annotations

from collections.abc import Mapping

# Conversion -> the collective of its forward and that of its backward; "" for none. Those that
# communicate neither way are `SILENT`.
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
SILENT = frozenset({
    "identical_to_pending", "replicated_to_identical", "replicated_to_pending", "split_replicated", "split_to_pending",
})  # fmt: skip

# What operators exchange, as lines: sums of statistics; rows of a table and the numbers that ask
# for them; halves of a sequence; keys and values from member to member.
STATISTICS, ROWS, HALVES, RING = "statistics", "rows", "halves", "ring"

# What autograd keeps of an operand on all ranks, where one may have no part of it.
KEEPING = "keeping"

# The group that an operator of the user's gets to make its own sums over.
MEMBERS = "Members"

# What functions exchange that are given a group; all others sum statistics over it.
EXCHANGES: Mapping[str, tuple[str, ...]] = {
    "even_attention": (HALVES,),
    "exchanged_embedding": (ROWS,),
    "ring_attention": (HALVES, RING),
}
