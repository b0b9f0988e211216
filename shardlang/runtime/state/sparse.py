"""Gradients of tables as rows: only those that a batch looked up, never a tensor of the table's
size.

torch keeps such a gradient as a sparse tensor (ids, rows); microbatches add theirs. Over the axes
where the gradient is pending, ids and rows are exchanged and joined in the order of the members, so
that all sum in one order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang.runtime.comm.blocks import gathered
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.state.buckets import GradientBucket

# torch 2.12 and some later ones warn of checks that are off although each call below says so
# itself. These are off by default; said for the whole process, no version warns.
torch.sparse.check_sparse_tensor_invariants.disable()


def sparse_embedding(ids: Tensor, table: Tensor, start: int | None = None) -> Tensor:
    """[*ids, width]: rows of `table`, whose gradient is sparse. With `start` the table is the
    whole's from that row on, and rows that are elsewhere are zeros; only those that are here are
    touched."""
    if start is None:
        return F.embedding(ids, table, sparse=True)
    local = ids.reshape(-1) - start
    here = ((local >= 0) & (local < table.shape[0])).nonzero().squeeze(1)
    found = F.embedding(local[here], table, sparse=True)
    rows = found.new_zeros((local.numel(), table.shape[1])).index_copy(0, here, found)
    return rows.view(*ids.shape, table.shape[1])


class RowBucket(GradientBucket):
    """One table: its rows' gradients from all members of `group`, each once, ascending."""

    def __init__(self, group: Group, table: Tensor) -> None:
        self.group, self.groups, self.members = group, [group], [table]
        self._parts: tuple[Tensor, Tensor] | None = None

    def launch(self) -> None:
        (table,) = self.members
        nothing = torch.sparse_coo_tensor(size=table.shape, check_invariants=False)
        gradient = (table.grad if table.grad is not None else nothing).coalesce()
        ids, rows = gradient.indices()[0], gradient.values()
        if rows.dim() == 1:
            rows = rows.new_zeros((0, *table.shape[1:]))
        self._parts = (ids, rows) if self.group.size == 1 else _exchanged(ids, rows, self.group)

    def finish(self) -> None:
        assert self._parts is not None
        (table,) = self.members
        ids, rows = self._parts
        # A member's own rows are each there once and in order already.
        table.grad = torch.sparse_coo_tensor(
            ids.unsqueeze(0), rows, table.shape, check_invariants=False, is_coalesced=self.group.size == 1
        ).coalesce()
        self._parts = None


def _exchanged(ids: Tensor, rows: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """All members' ids and rows, joined in the members' order."""
    counts = tuple(gathered(torch.tensor([len(ids)], device=ids.device), 0, group).tolist())
    return gathered(ids, 0, group, counts), gathered(rows, 0, group, counts)
