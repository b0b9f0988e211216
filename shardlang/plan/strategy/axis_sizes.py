"""`mesh dp = auto, mp = 2` and a rank count -> sizes of axes, or what would fit.

Only arithmetic on axes; positional rules' matrices are positional.py's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from shardlang.diagnostics.diagnostic import Sink
from shardlang.records import dataclass
from shardlang.source import Span
from shardlang.syntax import ast

# What the largest clusters have: above it a number is a slip, and uneven cuts could no longer be
# counted out.
RANKS_LIMIT = 131_072


@dataclass(frozen=True, slots=True)
class SizedAxis:
    """An axis as declared; `size` is None while `auto` waits for a rank count."""

    name: str
    size: int | None
    span: Span
    auto: bool


def evaluate(expr: ast.Expr, names: Mapping[str, int | float]) -> int | float | None:
    """The number an expression of a strategy stands for; None where it has none."""
    match expr:
        case ast.Number():
            return expr.value
        case ast.Name():
            return names.get(expr.text)
        case ast.Unary(op="-"):
            value = evaluate(expr.operand, names)
            return None if value is None else -value
        case ast.Binary():
            left, right = evaluate(expr.left, names), evaluate(expr.right, names)
            return None if left is None or right is None else _combine(expr.op, left, right)
        case _:
            return None


def _combine(op: str, left: int | float, right: int | float) -> int | float | None:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/" if right:
            exact = Fraction(left) / Fraction(right)
            return int(exact) if exact.denominator == 1 else float(exact)
        case _:
            return None


def declared(
    mesh: ast.Mesh, statics: Mapping[str, int | float], overrides: Mapping[str, int], sink: Sink
) -> list[SizedAxis]:
    """The axes of a mesh with the sizes that are known without a rank count."""
    axes: list[SizedAxis] = []
    known = dict(statics)
    for axis in mesh.axes:
        if any(a.name == axis.name.text for a in axes):
            sink.report("SH319", f"the mesh has two axes `{axis.name.text}`", axis.name.span, help="rename one of them")
            continue
        given = overrides.get(axis.name.text)
        size = given or None
        if size is not None and size > RANKS_LIMIT:
            size = _report_size(axis, str(size), sink)
        elif given is None and axis.size is not None:
            size = _size(axis, axis.size, known, sink)
        auto = given == 0 or (given is None and axis.size is None)
        if size is not None:
            known[axis.name.text] = size
        axes.append(SizedAxis(axis.name.text, size, axis.span, auto))
    return axes


def _size(axis: ast.MeshAxis, expr: ast.Expr, names: Mapping[str, int | float], sink: Sink) -> int | None:
    value = evaluate(expr, names)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= RANKS_LIMIT:
        return value
    return _report_size(axis, "no number" if value is None else str(value), sink)


def _report_size(axis: ast.MeshAxis, shown: str, sink: Sink) -> int:
    sink.report(
        "SH319", f"the size of axis `{axis.name.text}` is {shown}", axis.span,
        f"a whole number from 1 to {RANKS_LIMIT:,} is needed",
        help=f"write a number, a dim or an axis before it, or `{axis.name.text} = auto`",
    )  # fmt: skip
    return 1


def fit(axes: list[SizedAxis], ranks: int, mesh: Span, sink: Sink) -> list[SizedAxis] | None:
    """The axes with `auto` filled in; None after reporting that no product is the rank count."""
    fixed = math.prod(a.size for a in axes if a.size is not None)
    auto = next((a for a in axes if a.auto), None)
    if (auto is None and fixed == ranks) or (auto is not None and ranks % fixed == 0):
        return [a if a.size is not None else SizedAxis(a.name, ranks // fixed, a.span, True) for a in axes]
    product = " * ".join(str(a.size) for a in axes if a.size is not None)
    shown = f"{product} = {fixed}" if "*" in product else str(fixed)
    if auto is not None:
        message = f"the mesh is a multiple of {shown} ranks, and {ranks} are given"
    else:
        message = f"the mesh has {shown} rank{'s' * (fixed != 1)}, and {ranks} are given"
    sink.report("SH303", message, mesh, f"{ranks} ranks cannot be laid out so", help=_offers(axes, ranks, fixed, auto))
    return None


def _offers(axes: list[SizedAxis], ranks: int, fixed: int, auto: SizedAxis | None) -> str:
    """Text to type: another size of one axis, or another rank count."""
    found = []
    for axis in (a for a in axes if a.size is not None):
        rest = fixed // (axis.size or 1)
        fits = [d for d in divisors(ranks // rest) if d > 1] if ranks % rest == 0 else []
        if auto is not None and fits:
            found.append(f"`{axis.name}` could be {either(fits)}")
        elif auto is None and ranks % rest == 0:
            found.append(f"`{axis.name} = {ranks // rest}`")
    counts = either([fixed, 2 * fixed]) if auto is not None else str(fixed)
    run = f"run on {counts} rank{'s' * (counts != '1')}"
    if auto is None and axes:
        run += f", or make one axis `auto`: `{axes[0].name} = auto`" if not found else ""
    return f"{' or '.join(found)} would fit; or {run}" if found and auto is None else "; or ".join([*found, run])


@lru_cache(maxsize=1_000)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors, ascending: all below 10^10, else those up to 10^5 and their counterparts."""
    small = [d for d in range(1, min(math.isqrt(number), 100_000) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def either(options: Sequence[object]) -> str:
    """`1, 2, 4 or 8`; long lists are shortened in the middle."""
    texts = [str(x) for x in options]
    if len(texts) > 8:
        texts = [*texts[:6], "...", texts[-1]]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
