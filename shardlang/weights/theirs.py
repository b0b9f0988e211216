"""Weights of ours -> the same under the names of another library, as a name map fills them, to be
read block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shardlang.checkpoints.index import Saved
from shardlang.checkpoints.parts import STORED
from shardlang.checkpoints.weight_files import Weights
from shardlang.weights.backwards import Filling
from shardlang.weights.elements import converted


class TheirWeights:
    """Tensors that are each joined of some of ours, turned, and of a type of their own."""

    def __init__(self, weights: Weights, filled: Mapping[str, Filling]) -> None:
        self.weights, self.filled = weights, filled
        self.tensors: Mapping[str, Saved] = {name: filling.type for name, filling in filled.items()}

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        """A block of a tensor. RunError SH609 where a number would not fit into its type."""
        filling, found, before = self.filled[name], [], 0
        if 0 in lengths:
            return np.empty(tuple(lengths), STORED[filling.type.dtype])
        if filling.transposed:
            offsets, lengths = offsets[::-1], lengths[::-1]
        start, count = (*offsets, 0)[0], (*lengths, 1)[0]
        for piece in filling.pieces:
            saved = self.weights.tensors[piece.ours]
            after = before + (*saved.shape, 1)[0]
            first, last = max(start, before), min(start + count, after)
            if first < last:
                at, size = ((row, *more)[: len(saved.shape)] for row, more in
                            ((first - before, offsets[1:]), (last - first, lengths[1:])))  # fmt: skip
                numbers = self.weights.read(piece.ours, at, size)
                found.append(converted(numbers, saved.dtype, filling.type.dtype, piece.ours))
            before = after
        whole = found[0] if len(found) == 1 else np.concatenate(found)
        return whole.transpose() if filling.transposed else whole
