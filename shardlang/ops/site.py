"""The facts from which an operator writes its text at one place. Made by emit/, read by ops/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.ops.code import Code, infix
from shardlang.ops.rule import FactorRule
from shardlang.types.dim import TensorType

Size = int | Code  # a local size; a name where ranks have different ones


def some(size: object) -> bool:
    """Whether a local size is known to be above 0: of one that has a name a rank may have none."""
    return isinstance(size, int) and size > 0


def maybe_empty(shapes: Iterable[Sequence[object]]) -> bool:
    """Whether some rank may have nothing of these."""
    return not all(some(size) for shape in shapes for size in shape)


@dataclass(frozen=True, slots=True)
class Offset:
    """The global index of the first local element: `text` times `each`."""

    text: str
    each: int = 1

    def times(self, factor: int) -> str:
        each = self.each * factor
        return self.text if each == 1 else infix("*", self.text, each)


@dataclass(frozen=True, slots=True)
class OpSite:
    """One operator on one rank's shards.

    operands: the Python expressions (mostly names) of the local operands. numbers: those of them
    that are static numbers, as such; None for all others.
    operand_shapes, result_shapes: per tensor, the *local* sizes (16, or `hidden_local` where they
    are uneven). operand_types, result_types: the whole (logical) types.
    attrs: the operator's attributes. rule: its factor rule. axes: per factor, the axes that split
    it, major first. groups: per factor, the Python text of the group over those axes (`mesh.mp`,
    `mesh["dp", "cp"]`), "" where unsplit. offsets: per factor, the global index of its first local
    element; None where unsplit. training: False in the program of `eval`, where `rows` is the text
    of the number of real rows in the whole batch (the others are padding) and `batch` the index of
    the batch factor (-1: none).
    path, call: the random key of the operator (its address, and the number of the call). inside:
    the address is from a layer that is `p` here.
    sparse: an operand is a table whose gradient is kept as rows. beside: the first operand comes
    from a collective whose dual takes its gradient. recomputed: the operator runs
    again in backward, where states must not move a second time. sizes: of factors, the sizes of
    their parts that are given by hand."""

    operands: tuple[str, ...]
    operand_shapes: tuple[tuple[Size, ...], ...]
    result_shapes: tuple[tuple[Size, ...], ...]
    operand_types: tuple[TensorType, ...]
    result_types: tuple[TensorType, ...]
    attrs: Mapping[str, Any]
    rule: FactorRule
    axes: tuple[tuple[str, ...], ...]
    groups: tuple[str, ...]
    offsets: tuple[Offset | None, ...]
    training: bool
    rows: str
    batch: int
    path: str
    call: int
    sparse: bool = False
    beside: bool = False
    recomputed: bool = False
    inside: bool = False
    numbers: tuple[float | int | None, ...] = ()
    sizes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
