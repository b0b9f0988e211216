"""The factor rule of an operator: from it follow legality, propagation, collectives, cost and the gradient's states.

A factor is an index of the operator's computation (a letter of its einsum form). Factors are named by position in
`FactorRule.factors`; per operand and result the rule lists, for each tensor dim, its factors, major first.
A dim with no factor (a literal 1, or a dim that is made whole) is the empty tuple and is never split.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

DimFactors = tuple[int, ...]


class Split(Enum):
    """What it means to split a factor over an axis. Operands that have it: S; operands without it: R."""

    FREE = "free"      # results that have it are S; a result that lacks it is P (a sum over the factor)
    INSIDE = "inside"  # the operator reduces statistics itself: results that have it are S, those that lack it are I
    WHOLE = "whole"    # may not be split


@dataclass(frozen=True, slots=True)
class Factor:
    """`name` is for people (a dim's name). `statistics`: how many tensors, of the operand's shape less all INSIDE
    factors, an INSIDE factor all-reduces forward and backward, for cost and for the plan's table."""

    name: str
    size: int
    split: Split = Split.FREE
    statistics: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False, slots=True)
class FactorRule:
    """`through`: sets of operands that may be pending together, making the result pending; the other operands are R.

    add: ((0, 1),); mul, einsum: ((0,), (1,)); sum, relabel, scale: ((0,),); relu: ().
    Equal rules are one object (made by `factor_rule`), so a rule is its own key for memoising.
    """

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
    """The one FactorRule with these parts."""
    key = (factors, operands, results, through)
    rule = _RULES.get(key)
    if rule is None:
        rule = _RULES[key] = FactorRule(*key)
    return rule
