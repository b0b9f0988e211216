"""The factor rule of an operator: from it follow legality, propagation, collectives, cost and the
gradient's states.

A factor is an index of the operator's computation (a letter of its einsum form). Factors are named
by position in `FactorRule.factors`; per operand and result the rule lists, for each tensor dim, its
factors, major first. A dim with no factor (a literal 1, or a dim that is made whole) is the empty
tuple and is never split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from shardlang.frozen.records import dataclass

DimFactors = tuple[int, ...]


ROWS, RING, HALVES = "rows", "ring", "halves"
_COLLECTIVES = {"": "all_reduce", ROWS: "all_to_all", HALVES: "all_to_all", RING: "permute"}


class Split(Enum):
    """The meaning of a split of a factor over an axis. Operands with it: S; operands without: R."""

    FREE = "free"  # results that have it are S; a result that lacks it is P (a sum over the factor)
    INSIDE = "inside"  # the operator reduces statistics itself: results that have it are S, those that lack it are I
    WHOLE = "whole"  # may not be split


Statistics = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Factor:
    """`name` is for people (a dim's name). `statistics`: the all-reduces of an INSIDE factor,
    forward and backward, for cost and for the plan's table: of each, how many tensors of the first
    operand's shape less all INSIDE factors it sums. exchanged: what ranks exchange where the factor
    is split, or "". ROWS, of a FREE factor: another operand asks for them by number. It may be
    split over axes that split that operand too; the result is then split as that operand is, and
    rows are sent to who asks (`shared_axes`). RING, of a WHOLE factor: it may be split just as
    another one is, and its parts go to all. HALVES, of a FREE factor: parts are exchanged, so that
    ranks have as much work."""

    name: str
    size: int
    split: Split = Split.FREE
    statistics: Statistics = ((), ())
    exchanged: str = ""

    @property
    def collective(self) -> str:
        """The collective that the operator itself runs where the factor is split."""
        return _COLLECTIVES[self.exchanged]

    @property
    def whole(self) -> bool:
        """Whether no rule may split it."""
        return self.split is Split.WHOLE and not self.exchanged


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
        if factor.exchanged in (ROWS, RING) and axes[f]:
            others = {axis for g, mine in enumerate(axes) if g != f for axis in mine}
            return tuple(axis for axis in axes[f] if axis in others)
    return ()
