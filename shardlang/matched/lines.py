"""The lines of a program that communicate, as values: what the plan says and what the emitted text
says, so that both can be compared.

Nothing here is per rank. A size that differs between ranks is listed by the coordinates that it
depends on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import zip_longest

from shardlang.facts.actions import Action
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """The ranks that differ along `axes` (the first is major) of the mesh of that number."""

    mesh: int
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Uneven:
    """A local size that differs: by the index of a rank in a group."""

    sizes: tuple[int, ...]
    over: AxisGroup


Size = int | Uneven


@dataclass(frozen=True, slots=True)
class Local:
    """The part of a value that a rank has."""

    dtype: str
    sizes: tuple[Size, ...]

    @property
    def most(self) -> int:
        """Elements on the rank that has most."""
        return math.prod(max(size.sizes) if isinstance(size, Uneven) else size for size in self.sizes)


@dataclass(frozen=True, slots=True)
class Line:
    """A call of the runtime that communicates, in forward or in backward.

    what: its function. dims: of a gather, a cut or a sum that is cut the dim; of an all-to-all the
    dim that is joined and the one that is cut; of a permutation the members that blocks come from.
    given, made: the operand and the result; None of a function that computes too, whose sums are of
    `statistics`. parts: the sizes along the first dim, and of an all-to-all along the second, where
    they differ. gradient: of a value that a stage receives is sent back. span: the statement, or
    the line of Python."""

    what: str
    group: AxisGroup
    dims: tuple[int, ...] = ()
    given: Local | None = None
    made: Local | None = None
    parts: tuple[tuple[int, ...] | None, ...] = ()
    gradient: bool = field(default=False, compare=False)
    span: Span | None = field(default=None, compare=False)

    @property
    def said(self) -> str:
        """The line in words: `all_gather of f32[4, 8] along dim 1 over mp`."""
        of = f" of {local_text(self.given)}" if self.given is not None else ""
        made = f" to {local_text(self.made)}" if self.made is not None else ""
        dims = f" along {', '.join(map(str, self.dims))}" if self.dims else ""
        parts = " and ".join(map(str, filter(None, self.parts)))
        sizes = f" in parts {parts}" if parts else ""
        over = f" over {', '.join(self.group.axes)}" if self.group.axes else ""
        return f"{self.what}{of}{made}{dims}{over}{sizes}{self._lacking}"

    @property
    def _lacking(self) -> str:
        """Who has nothing of what is kept on all ranks."""
        sizes = self.given.sizes if self.what == "keeping" and self.given is not None else ()
        empty = [f"{at} of {', '.join(s.over.axes)}" for s in sizes if isinstance(s, Uneven)
                 for at, size in enumerate(s.sizes) if not size]  # fmt: skip
        return f", of which the ranks at {', '.join(empty)} have nothing" if empty else ""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Lines that run so many times, one layer after the other."""

    times: int
    items: Items


@dataclass(frozen=True, slots=True)
class Again:
    """Lines that backward runs again before its own, up to the last behind which something is kept
    that it reads."""

    items: Items


Items = tuple["Line | Repeated | Again", ...]


@dataclass(frozen=True, slots=True)
class ActionRow:
    """The actions of a coordinate, in order."""

    actions: tuple[Action, ...]
    span: Span | None = field(default=None, compare=False)

    @property
    def lines(self) -> Items:
        """The actions as lines."""
        return tuple(Line(f"action {action}", AxisGroup(0, ()), span=self.span) for action in self.actions)


def setting(what: str, span: Span, axes: Iterable[str] = ()) -> Line:
    """A setting by which the runtime communicates, over axes of the first mesh."""
    return Line(what, AxisGroup(0, tuple(axes)), span=span)


def message(
    way: str, name: str, local: Local | None, *, over: AxisGroup, span: Span, evaluated: bool = True,
    gradient: bool = False,
) -> Line:  # fmt: skip
    """A value between stages. way: send or receive; evaluated: in evaluations too; gradient: it is
    sent back."""
    what = f"{way} `{name}`{'' if evaluated else ' in training'}{' and return the gradient' * gradient}"
    return Line(what, over, (), local, gradient=gradient, span=span)


def gather_line(kind: str, paths: Iterable[str], span: Span) -> Line:
    """The parameters that ZeRO 3 gathers together in a pass: `kind` is that of its action."""
    return setting(f"gather in {kind} of {', '.join(sorted(paths))}", span)


_GRADIENTS = {
    "no": "no gradient", "rows": "the gradient of rows", "once": "the gradient of the first microbatch",
    "": "the gradient",
}  # fmt: skip


def gradient_lines(
    how: str, summed: AxisGroup, local: Local, zero: tuple[int, AxisGroup], *, keep: bool, span: Span
) -> Items:
    """The sum of a parameter's gradient and, if ZeRO cuts it, its rows. how: which gradient is
    summed (`_GRADIENTS`)."""
    found = Line(_GRADIENTS[how], summed, (), local, span=span)
    level, axes = zero
    rows = Line(f"rows by zero {level}{', keep' * keep}", axes, (), local, span=span)
    return (found, rows) if level else (found,)


def local_text(local: Local) -> str:
    """`f32[4, 8]`; sizes that differ are listed: `f32[3|3|2, 8]`."""
    sizes = ("|".join(map(str, s.sizes)) if isinstance(s, Uneven) else str(s) for s in local.sizes)
    return f"{local.dtype}[{', '.join(sizes)}]"


def lines_of(items: Items) -> Iterator[Line]:
    """All lines in order, those of a loop once."""
    for item in items:
        if isinstance(item, Line):
            yield item
        else:
            yield from lines_of(item.items)


def difference(planned: Items, text: Items) -> tuple[Line | None, Line | None, str] | None:
    """The first lines in which two sequences differ, None for the one that has nothing there, and
    why, where they do not tell; None where they are the same."""
    for one, other in zip_longest(planned, text):
        if one == other:
            continue
        if isinstance(one, Repeated) and isinstance(other, Repeated) and one.times != other.times:
            return _first(one), _first(other), f"the plan has {one.times} layers in a row, the text {other.times}"
        if (isinstance(one, Repeated) and isinstance(other, Repeated)) or (
            isinstance(one, Again) and isinstance(other, Again)
        ):
            return difference(one.items, other.items)
        return _first(one), _first(other), ""
    return None


def _first(item: Line | Repeated | Again | None) -> Line | None:
    return item if isinstance(item, Line) or item is None else next(lines_of(item.items), None)
