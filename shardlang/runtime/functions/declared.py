"""Operators, and functions of other kinds, that a file of the user's declares, as emitted programs
call them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shardlang.extensions import loaded


class Declared:
    """The Python files of a program's operators, by path, with the hashes of their texts. They are
    loaded (`loaded.load`) before the program begins."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def named(self, file: str, name: str) -> loaded.Function:
        """A function of a file that is no operator: of a source, a schedule or an optimizer."""
        return loaded.Function(file, self.files[file], name)

    def call(self, file: str, name: str, /, *operands: Tensor, **settings: object) -> Tensor:
        """The function's result."""
        result = loaded.function(self.files[file], name)(*operands, **settings)
        if not isinstance(result, Tensor):
            raise TypeError(f"`{name}` gave {type(result).__name__} where a tensor was declared")
        return result

    def part(
        self, shape: tuple[int, ...], dtype: torch.dtype, file: str, name: str, /, *operands: Tensor, **settings: object
    ) -> Tensor:
        """The same on a part that may be empty: then its result, empty too or a part of a sum, is
        zeros, and so are the gradients."""
        if all(x.numel() for x in operands):
            return self.call(file, name, *operands, **settings)
        zeros = torch.zeros(shape, dtype=dtype, device=operands[0].device)
        floating = [x.flatten()[:0].sum() for x in operands if x.is_floating_point()]
        return zeros + sum(floating) if dtype.is_floating_point and floating else zeros
