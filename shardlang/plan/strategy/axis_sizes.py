"""`mesh dp = auto, mp = 2` and a rank count -> sizes of axes, or what would fit.

Only arithmetic on axes; positional rules' matrices are positional.py's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span
from shardlang.syntax import ast

# More than the largest clusters have: above it a number is a slip.
RANKS_LIMIT = 1_048_576
# As many numbers are tried for a help, those nearest to what is written.
MOST_TRIED = 8
# Whether a strategy may have other sizes of axes (0: `auto`) on so many ranks.
Legal = Callable[[Mapping[str, int], int | None], bool]
# A plan lists the sizes of uneven parts one by one.
UNEVEN_PARTS = 16_384


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


def fit(
    axes: list[SizedAxis], ranks: int, mesh: Span, sink: Sink, legal: Legal | None = None, notes: Sequence[str] = ()
) -> list[SizedAxis] | None:
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
    help = _offers(axes, ranks, fixed, auto, legal) if legal is not None else ""
    sink.report("SH303", message, mesh, f"{ranks} ranks cannot be laid out so", notes=notes, help=help)
    return None


def _offers(axes: list[SizedAxis], ranks: int, fixed: int, auto: SizedAxis | None, legal: Legal) -> str:
    """Text to type: another size of one axis, or another rank count. Each was tried."""
    found = list[str]()
    for axis in (a for a in axes if a.size is not None):
        rest = fixed // (axis.size or 1)
        sizes = (divisors(ranks // rest) if auto is not None else (ranks // rest,)) if ranks % rest == 0 else ()
        fits = [d for d in closest([d for d in sizes if d > 1], axis.size or 1) if legal({axis.name: d}, ranks)]
        found += [f"`{axis.name} = {d}`" for d in fits]
    near = [max(ranks // fixed + more, 0) * fixed for more in range(-MOST_TRIED // 2, MOST_TRIED // 2)]
    counts = [n for n in (sorted({*near}) if auto is not None else [fixed]) if n and legal({}, n)]
    if not found and auto is None:
        found = [f"`{axis.name} = auto`" for axis in axes if legal({axis.name: 0}, ranks)][:1]
    offers = [f"{either(found)} would fit"] if found else []
    if counts:
        some = either(closest(counts, ranks, 2))
        offers.append(f"run on {some} rank{'s' * (some != '1')}")
    return "; or ".join(offers) or f"the product of the sizes has to be {ranks}"


def closest(numbers: Sequence[int], to: int, most: int = MOST_TRIED) -> list[int]:
    """The numbers nearest to one, ascending."""
    return sorted(sorted(numbers, key=lambda n: abs(n - to))[:most])


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
