"""The axes of a mesh as rules name them: sizes, parts after refinement, and whether a dim divides
over them.

The one place that words SH304 and works out the degrees that would fit; SH305 of pins, positional
rules and states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.ops.rule import FactorRule
from shardlang.plan.dim_factors import stranded_factor
from shardlang.plan.strategy.axis_sizes import UNEVEN_PARTS, Legal, SizedAxis, closest, divisors, either
from shardlang.plan.strategy.rules import SplitRule
from shardlang.sources.source import Span
from shardlang.types.dim import Dim
from shardlang.types.layout import PartSizes


@dataclass(frozen=True)
class Axes:
    """`declared`: as in the strategy, sizes None where they wait for a rank count. parts: axis ->
    the mesh's own axes. stages: the axis of the stages, which divides nothing else. part_sizes:
    those given by hand. legal: tells which sizes may be offered; None where nobody reads it."""

    declared: Mapping[str, SizedAxis]
    ranks: int | None
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stages: str = ""
    part_sizes: PartSizes = field(default_factory=dict)
    legal: Legal | None = None

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
        if degree is None or dim.size is None or reported or self.divides(dim, degree):
            return axes
        if rule.uneven and degree <= UNEVEN_PARTS:
            return axes
        notes = [f"the sizes of uneven parts are listed, and {degree:,} are more than {UNEVEN_PARTS:,}"]
        more = _as_two(dim, axes, degree, rule, self.declared[axes[0]].auto)
        self.report(dim.name, dim.size, axes, rule.dims[dim], sink, more, notes if rule.uneven else ())
        return ()

    def report(
        self, name: str, size: int, axes: tuple[str, ...], span: Span, sink: Sink, more: str = "",
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """SH304 at `span` for a dim of `size` over `axes`. more: of the help."""
        shown = f"axis `{axes[0]}`" if len(axes) == 1 else f"axes `({', '.join(axes)})`"
        labels = [(self.declared[a].span, f"`{a}` has {self.declared[a].size} ranks") for a in axes]
        sink.report(
            "SH304", f"dim `{name}` does not divide over {shown}", span, f"`{name}` is {size}",
            labels=labels, notes=notes, help=self._offer(size, axes) + more,
        )  # fmt: skip

    def _offer(self, size: int, axes: tuple[str, ...]) -> str:
        last = axes[-1]
        rest = self.degree(axes[:-1]) or 1
        fits = [d for d in divisors(size // rest) if size % (rest * d) == 0] if size % rest == 0 else []
        if not fits:
            return f"`{'` and `'.join(axes)}` together must divide {size}"
        if self.legal is None or self.ranks is None:
            return f"`{last}` could be {either(fits)}"
        near = closest(fits, self.declared[last].size or 1)
        if not self.declared[last].auto or len(self.declared) > 1:
            return self._left(last, near, self.legal, self.ranks) or f"`{last}` has to divide {size // rest}"
        good = [d for d in near if self.legal({}, d)]
        return f"`{last}` could be {either(good or fits)}, with as many ranks"

    def _left(self, last: str, fits: Sequence[int], legal: Legal, ranks: int) -> str:
        """The sizes among these that the rank count allows; else with another size of another axis,
        or another rank count; "" where there are none. Each was tried."""
        good = [d for d in fits if d > 1 and legal({last: d}, ranks)]
        if good:
            return f"`{last}` could be {either(good)} on {ranks} ranks"
        others = [a for a in self.declared.values() if a.name != last and not a.auto and (a.size or 1) > 1]
        taken = math.prod(a.size or 1 for a in others)
        for d in reversed(fits):
            for a in others:
                size, left = divmod(ranks * (a.size or 1), taken * d)
                if d > 1 and not left and legal({last: d, a.name: size}, ranks):
                    return f"`{last} = {d}` with `{a.name} = {size}` makes {ranks} ranks"
        rest = any(a.auto for a in self.declared.values() if a.name != last)
        every = ((d, taken * d * (1 << max(1, ranks // (taken * d)).bit_length() - 1 if rest else 1)) for d in fits)
        near = sorted(((abs(count - ranks), d, count) for d, count in every if d > 1 and legal({last: d}, count)))
        return f"`{last} = {near[0][1]}` fits on {near[0][2]} ranks" if near else ""


def _as_two(dim: Dim, axes: tuple[str, ...], degree: int, rule: SplitRule, auto: bool) -> str:
    """Help for a dim that stands beside others in its rule, where a part of an axis divides it, as
    heads of keys that several heads of queries share. auto: the axis takes the ranks that are
    left, and so does the minor one of the two."""
    part = math.gcd(dim.size or 0, degree)
    others = [other for other in rule.dims if other is not dim]
    if part == 1 or len(axes) > 1 or not others or any((other.size or 0) % degree for other in others):
        return ""
    major, minor = f"{axes[0]}1", f"{axes[0]}2"
    two = f"mesh {major} = {part}, {minor} = {'auto' if auto else degree // part}"
    return (
        f"; or make two axes of it, `{two}`, with `split {dim.name} over {major}` and "
        f"`split {', '.join(other.name for other in others)} over ({major}, {minor})`"
    )


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
