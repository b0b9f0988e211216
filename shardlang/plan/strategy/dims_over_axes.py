"""The axes of a mesh as rules name them: sizes, parts after refinement, and whether a dim divides
over them.

The one place that words SH304 and works out the degrees that would fit; SH305 of pins, positional
rules and states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.rule import FactorRule
from shardlang.plan.dim_factors import stranded_factor
from shardlang.plan.strategy.axis_sizes import SizedAxis, divisors, either
from shardlang.plan.strategy.rules import SplitRule
from shardlang.records import dataclass
from shardlang.source import Span
from shardlang.types.dim import Dim
from shardlang.types.layout import PartSizes


@dataclass(frozen=True)
class Axes:
    """`declared`: as in the strategy, sizes None where they wait for a rank count. parts: axis ->
    the mesh's own axes. stages: the axis of the stages, which divides nothing else. part_sizes:
    those given by hand."""

    declared: Mapping[str, SizedAxis]
    ranks: int | None
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stages: str = ""
    part_sizes: PartSizes = field(default_factory=dict)

    @property
    def within(self) -> int | None:
        """The ranks of one stage: those that rules divide things over."""
        axis = self.declared.get(self.stages)
        return self.ranks if axis is None or self.ranks is None else self.ranks // (axis.size or 1)

    @property
    def sizes(self) -> dict[str, int | None]:
        return {name: axis.size for name, axis in self.declared.items()}

    def degree(self, axes: tuple[str, ...]) -> int | None:
        """Product of sizes; None where one is unknown."""
        sizes = [self.declared[a].size for a in axes]
        return None if None in sizes else math.prod(s for s in sizes if s is not None)

    def refined(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """As the mesh names them; axes of size 1 vanish."""
        return tuple(part for a in axes for part in self.parts.get(a, (a,)))

    def divides(self, dim: Dim, degree: int) -> bool:
        """Whether a dim can be cut in so many parts: evenly, or because their sizes are given."""
        return (dim.size or 0) % degree == 0 or len(self.part_sizes.get(dim, ())) == degree

    def fitting(self, dim: Dim, axes: tuple[str, ...], rule: SplitRule, sink: Sink) -> tuple[str, ...]:
        """`axes` if the dim divides over them; () after reporting SH304."""
        degree = self.degree(axes)
        reported = rule.sizes is not None and dim not in self.part_sizes
        if degree is None or dim.size is None or rule.uneven or reported or self.divides(dim, degree):
            return axes
        self.report(dim.name, dim.size, axes, rule.dims[dim], sink)
        return ()

    def report(self, name: str, size: int, axes: tuple[str, ...], span: Span, sink: Sink) -> None:
        """SH304 at `span` for a dim of `size` over `axes`."""
        shown = f"axis `{axes[0]}`" if len(axes) == 1 else f"axes `({', '.join(axes)})`"
        labels = [(self.declared[a].span, f"`{a}` has {self.declared[a].size} ranks") for a in axes]
        sink.report(
            "SH304", f"dim `{name}` does not divide over {shown}", span, f"`{name}` is {size}",
            labels=labels, help=self._offer(size, axes),
        )  # fmt: skip

    def _offer(self, size: int, axes: tuple[str, ...]) -> str:
        last = axes[-1]
        rest = self.degree(axes[:-1]) or 1
        fits = [d for d in divisors(size // rest) if size % (rest * d) == 0] if size % rest == 0 else []
        if not fits:
            return f"`{'` and `'.join(axes)}` together must divide {size}"
        text = f"`{last}` could be {either(fits)}"
        if self.ranks is None or (self.declared[last].auto and len(self.declared) == 1):
            return text
        return text + self._left(last, fits)

    def _left(self, last: str, fits: list[int]) -> str:
        """The sizes among these that the rank count allows: axes that are neither `auto` nor this
        one stay, or have to change."""
        assert self.ranks is not None
        others = [a for a in self.declared.values() if a.name != last]
        fixed = [a for a in others if not a.auto and (a.size or 1) > 1]
        taken = math.prod(a.size or 1 for a in fixed)
        rest = any(a.auto for a in others)  # takes what is left
        good = [d for d in fits if d > 1 and self.ranks % (taken * d) == 0 and (rest or taken * d == self.ranks)]
        if good:
            given = " and ".join(f"{a.name} = {a.size}" for a in fixed)
            choices = " or ".join(f"`{last} = {d}`" for d in good[-3:])
            return f"; with {self.ranks} ranks{f' and {given}' if given else ''} that leaves {choices}"
        whole = [d for d in fits if d > 1 and self.ranks % d == 0]
        if not whole or rest or not fixed:
            return ""
        left = self.ranks // whole[-1]
        other = f"`{fixed[0].name} = {left}`" if len(fixed) == 1 else f"{left} ranks for the other axes"
        return f"; `{last} = {whole[-1]}` with {other} makes {self.ranks} ranks"


def majors_used_up(rule: FactorRule, degrees: Sequence[int | None], span: Span, sink: Sink, label: str = "") -> bool:
    """Whether no tensor of an operator is cut along a minor factor alone; else SH305 at `span`."""
    found = stranded_factor(rule, degrees)
    if found is not None:
        names = [rule.factors[f].name for f in found[1]]
        minor = rule.factors[found[0]].name
        sink.report(
            "SH305", f"`{minor}` is a minor factor of `{' * '.join(names)}` and cannot be cut alone", span, label,
            help=f"cut `{names[0]}`, or leave `{minor}` whole",
        )  # fmt: skip
    return found is None
