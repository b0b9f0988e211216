"""The factor rule of an operator: from it follow legality, propagation, collectives, cost and the
gradient's states.

A factor is an index of the operator's computation (a letter of its einsum form). Factors are named
by position in `FactorRule.factors`; per operand and result the rule lists, for each tensor dim, its
factors, major first. A dim with no factor (a literal 1, or a dim that is made whole) is the empty
tuple and is never split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum

from shardlang.frozen.records import dataclass

DimFactors = tuple[int, ...]


class Split(Enum):
    """The meaning of a split of a factor over an axis. Operands with it: S; operands without: R."""

    FREE = "free"  # results that have it are S; a result that lacks it is P (a sum over the factor)
    INSIDE = "inside"  # the operator reduces statistics itself: results that have it are S, those that lack it are I
    WHOLE = "whole"  # may not be split


Statistics = tuple[tuple[int, ...], tuple[int, ...]]
# Over which axes, and the bytes that a rank sends forward and backward in a step.
SentInside = tuple[tuple[str, ...], int, int]


@dataclass(frozen=True, slots=True)
class InsideExchange:
    """An exchange of ranks within an operator, where one of its factors is split. Families declare
    theirs.

    name: of its lines in the proof (matched/table.py). collective: by which it is sent. sent: the
    bytes, of an operator and the factor. asked, of a FREE factor: another operand asks for its
    elements by number; it may be split over axes that split that operand too, and the result is
    then split as that operand is (`shared_axes`). along, of a WHOLE factor: it may be split just as
    another one is. pieces: in how many pieces a rank's part is cut."""

    name: str
    collective: str
    sent: Callable[[SplitOp, int], Iterable[SentInside]]
    asked: bool = False
    along: bool = False
    pieces: int = 1

    @property
    def shares(self) -> bool:
        """Whether the factor may be split over axes that split another one too."""
        return self.asked or self.along


@dataclass(frozen=True, slots=True)
class Factor:
    """`name` is for people (a dim's name). `statistics`: the all-reduces of an INSIDE factor,
    forward and backward, for cost and for the plan's table: of each, how many tensors of the first
    operand's shape less all INSIDE factors it sums. exchanged: what ranks exchange where the factor
    is split."""

    name: str
    size: int
    split: Split = Split.FREE
    statistics: Statistics = ((), ())
    exchanged: InsideExchange | None = None

    @property
    def collective(self) -> str:
        """The collective that the operator itself runs where the factor is split."""
        return self.exchanged.collective if self.exchanged is not None else "all_reduce"

    @property
    def whole(self) -> bool:
        """Whether no rule may split it."""
        return self.split is Split.WHOLE and self.exchanged is None


@dataclass(frozen=True, eq=False, slots=True)
class FactorRule:
    """`through`: sets of operands that may be pending together, making the result pending; the
    other operands are R.

    add: ((0, 1),); mul, einsum: ((0,), (1,)); sum, relabel, scale: ((0,),); relu: ().
    Equal rules are one object (made by `factor_rule`), so a rule is its own key for memoising."""

    factors: tuple[Factor, ...]
    operands: tuple[tuple[DimFactors, ...], ...]
    results: tuple[tuple[DimFactors, ...], ...]
    through: tuple[tuple[int, ...], ...] = ()


_RULES: dict[object, FactorRule] = {}


def factor_rule(
    factors: tuple[Factor, ...],
    operands: tuple[tuple[DimFactors, ...], ...],
    results: tuple[tuple[DimFactors, ...], ...],
    through: tuple[tuple[int, ...], ...] = (),
) -> FactorRule:
    """The one FactorRule with these parts; a factor in two dims of one tensor is WHOLE."""
    key = (factors, operands, results, through)
    rule = _RULES.get(key)
    if rule is None:
        twice = {f for tensor in (*operands, *results) for f in _in_two_dims(tensor)}
        kept = tuple(replace(factor, split=Split.WHOLE) if f in twice else factor for f, factor in enumerate(factors))
        rule = _RULES[key] = FactorRule(kept, operands, results, through)
    return rule


def _in_two_dims(tensor: tuple[DimFactors, ...]) -> list[int]:
    every = [f for dim in tensor for f in dim]
    return [f for f in every if every.count(f) > 1]


def shared_axes(rule: FactorRule, axes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """From axes by factor: those that split an exchanged factor and another one too."""
    for f, factor in enumerate(rule.factors):
        if factor.exchanged is not None and factor.exchanged.shares and axes[f]:
            others = {axis for g, mine in enumerate(axes) if g != f for axis in mine}
            return tuple(axis for axis in axes[f] if axis in others)
    return ()


@dataclass(frozen=True)
class SplitOp:
    """An operator whose factors are split over ranks. axes: by factor. degree: the ranks along some
    axes. itemsizes: of the operands, then of the results. trained: it has a backward. times: the
    microbatches of a step."""

    rule: FactorRule
    axes: Sequence[tuple[str, ...]]
    degree: Callable[[Sequence[str]], int]
    itemsizes: Sequence[int]
    trained: bool
    times: int

    def elements(self, factors: Iterable[int]) -> int:
        """The elements that a rank has of factors."""
        return math.prod([-(-self.rule.factors[f].size // self.degree(self.axes[f])) for f in factors])

    def local(self, at: int) -> list[int]:
        """The shape of an operand on a rank."""
        return [self.elements(dim) for dim in self.rule.operands[at]]
