"""The tensors that autograd saves of one operator for its backward, and whether its result has
memory of its own: facts of torch's and the runtime's functions, that declarations name.

All in local sizes, of one rank. That tensors of several operators are one memory is put together in
step/saved_activations.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.ops.rule import FactorRule
from shardlang.types.dim import BYTES, TensorType

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LocalOp:
    """An operator on one rank. operands, results: local shapes; types: the whole ones.

    gradient: per operand, whether one flows to it. order: the dims of the first operand as they lie
    in memory, major first. cut: per factor, whether several ranks share it. exchanged: whether rows
    go from rank to rank."""

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    operand_types: tuple[TensorType, ...]
    result_types: tuple[TensorType, ...]
    gradient: tuple[bool, ...]
    order: Shape
    attrs: Mapping[str, Any]
    rule: FactorRule
    cut: tuple[bool, ...]
    exchanged: bool = False

    def shares(self, dims: tuple[int, ...]) -> bool:
        """Whether several ranks share some of the first operand's dims."""
        return any(self.cut[f] for d in dims for f in self.rule.operands[0][d])


@dataclass(frozen=True, slots=True)
class Residuals:
    """operands, results: which of them backward reads. more: bytes made for backward alone."""

    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class Aliasing:
    """shared: the result is a view of the first operand. order: its dims in memory, major first."""

    shared: bool
    order: Shape


def everything(local: LocalOp) -> Residuals:
    """The most that it can be, short of what an operator makes within."""
    return Residuals(tuple(range(len(local.operands))), tuple(range(len(local.results))))


def nothing(local: LocalOp) -> Residuals:
    """Saves nothing: linear in each operand, without need of another."""
    return Residuals()


def first(local: LocalOp) -> Residuals:
    """The derivative is a function of the first operand."""
    return Residuals((0,))


def made(local: LocalOp) -> Residuals:
    """The derivative is a function of the result."""
    return Residuals(results=(0,))


def others(local: LocalOp) -> Residuals:
    """A product: each operand is kept for the gradients of the others."""
    given = local.gradient
    return Residuals(tuple(i for i in range(len(given)) if any(given[:i] + given[i + 1 :])))


def elements(shape: Shape) -> int:
    return math.prod(shape)


def size(shape: Shape, dtype: str) -> int:
    """Bytes."""
    return math.prod(shape) * BYTES[dtype]


def own(local: LocalOp) -> Aliasing:
    """A new tensor, its last dim minor."""
    return Aliasing(False, tuple(range(len(local.results[0]))))


def view(local: LocalOp) -> Aliasing:
    """A view with the same dims."""
    return Aliasing(True, local.order)


def rearranged(local: LocalOp) -> Aliasing:
    """Dims split, permuted, merged: a view unless merged factors are not neighbours in memory."""
    before, after = local.rule.operands[0], local.rule.results[0]
    large = {f for f, factor in enumerate(local.rule.factors) if factor.size > 1}
    place = {f: at for at, f in enumerate(f for d in local.order for f in before[d] if f in large)}
    merged = [[place[f] for f in dim if f in large] for dim in after]
    if all(places == list(range(places[0], places[0] + len(places))) for places in merged if places):
        order = sorted(range(len(after)), key=lambda d: merged[d][0] if merged[d] else len(place))
        return Aliasing(True, tuple(order))
    return own(local)
