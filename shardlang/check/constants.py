"""Static arithmetic: exact numbers, dims as numbers, truth values. Reports what cannot be computed.

Names and calls are left to `expressions`; this module only combines values."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from shardlang.check.values import UNKNOWN, CsvText, CsvWords, DimValue, Tensor, describe, unfit
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.syntax.literals import LARGEST_FLOAT, MOST

# A fraction has at most so many digits: powers of powers would take for ever.
_FINEST = 2**1024
# Up to here a float that is whole is that number and no other.
_EXACT = 2**53
# What to do with words or texts in the place of a number.
_NUMBERED: Mapping[type, str] = {
    CsvWords: "words are numbered by a dim of the file: write `dim words = categories(..)` above the models, and "
    "`words` here",
    CsvText: "texts are numbered by a dim of the file: write `dim vocab = words(..)` above the models, and `vocab` "
    "here",
}

_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {"<": python.lt, "<=": python.le, ">": python.gt, ">=": python.ge}
_WHOLE: Mapping[str, Callable[[Any, Any], Any]] = {"//": python.floordiv, "%": python.mod}
_SIMPLE: Mapping[str, Callable[[Any, Any], Any]] = {"+": python.add, "-": python.sub, "*": python.mul}


def plain(value: Any) -> Any:
    """A dim as its size; everything else as it is."""
    if isinstance(value, DimValue):
        size = value.size
        return UNKNOWN if size is None else size
    return value


def _tidy(value: Any) -> Any:
    """Whole fractions as int, so that `d / heads` is exact and prints as a whole number."""
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    return value


def _number(value: Any) -> bool:
    return isinstance(value, (int, float, Fraction)) and not isinstance(value, bool)


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, int) and abs(b) <= 64 and isinstance(a, (int, Fraction)):
        return Fraction(a) ** b if a or b >= 0 else None
    if (a < 0 and not isinstance(b, int)) or (a == 0 and b < 0):
        return None
    return float(a) ** float(b)


def _arithmetic(op: str, a: Any, b: Any) -> Any:
    """The result, or None where there is none."""
    if isinstance(a, Fraction) and isinstance(b, float):
        a = float(a)
    if isinstance(b, Fraction) and isinstance(a, float):
        b = float(b)
    if op in _SIMPLE:
        return _SIMPLE[op](a, b)
    if op == "**":
        return _power(a, b)
    if b == 0:
        return None
    if op in _WHOLE:
        return _WHOLE[op](a, b)
    return a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / Fraction(b)


def _usable(number: float | Fraction) -> bool:
    """Whether a number is within the bounds of written ones, and no fraction without end."""
    if isinstance(number, float):
        return abs(number) <= LARGEST_FLOAT  # which is false of what is no number
    return abs(number) <= MOST and (isinstance(number, int) or number.denominator <= _FINEST)


def combine(node: ast.Binary, left: Any, right: Any, sink: Sink) -> Any:
    """The value of `left op right` on static values."""
    op = node.op
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if op == "*" and isinstance(left, DimValue) and isinstance(right, DimValue):
        return DimValue(left.term + right.term)
    a, b = plain(left), plain(right)
    if a is UNKNOWN or b is UNKNOWN:
        return UNKNOWN
    if op in ("==", "!="):
        return (a == b) == (op == "==")
    for side, value in ((node.left, left), (node.right, right)):
        if not _number(plain(value)):
            return unfit(f"`{op}` needs numbers", value, side.span, sink)
    if op in _ORDER:
        return _ORDER[op](a, b)
    try:
        result = _arithmetic(op, a, b)
    except OverflowError:
        result = None
    if result is None or not _usable(result):
        why = "divides by zero" if op in ("/", *_WHOLE) and b == 0 else "is not a number that can be used"
        sink.report("SH211", f"`{node.span.text}` {why}", node.span, f"{show(a)} {op} {show(b)}")
        return UNKNOWN
    return _tidy(result)


def applied(function: Callable[[float], float], value: Any, span: Span, sink: Sink) -> Any:
    """A function of floats of a static number; None of what is none."""
    value = plain(value)
    if value is UNKNOWN or not _number(value):
        return value if value is UNKNOWN else None
    try:
        return function(value)
    except (ValueError, OverflowError):
        sink.report("SH211", f"`{span.text}` is not a number that can be used", span, show(value))
        return UNKNOWN


def negate(value: Any, span: Span, sink: Sink) -> Any:
    value = plain(value)
    if value is UNKNOWN:
        return value
    return -value if _number(value) else unfit("`-` needs a number", value, span, sink)


def truth(value: Any, span: Span, sink: Sink) -> Any:
    """True, False or UNKNOWN; anything else is an error."""
    if value is UNKNOWN or isinstance(value, bool):
        return value
    help = "use `where(c, a, b)` for tensors" if isinstance(value, Tensor) else "compare it: `a == b`"
    return unfit("a condition needs a static truth value", value, span, sink, help)


def show(value: Any) -> str:
    """A static value as a user would type it."""
    value = plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Fraction):
        return f"{float(value):g}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


def whole(value: Any, span: Span, sink: Sink, what: str, made_of: str = "") -> Any:
    """An int (of a dim: its size; of `0.5 * 16`: 8) or UNKNOWN; a fraction is reported with its
    numbers. made_of: the names that it is computed from, with their numbers."""
    value = plain(value)
    if value is UNKNOWN or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Fraction):
        shown = f"{float(value):g}"
        fact = f"{what} must be a whole number, and `{span.text}` is "
        fact, label = (fact + shown, made_of) if made_of else (f"{fact}{value.numerator} / {value.denominator}", shown)
        sink.report("SH212", fact, span, label, help="choose numbers that divide exactly")
        return UNKNOWN
    given = f"{value:g}" if isinstance(value, float) else describe(value)
    help = _NUMBERED.get(type(value), "")
    sink.report("SH210", f"{what} must be a whole number, and this is {given}", span, given, help=help)
    return UNKNOWN


def size(value: Any, span: Span, sink: Sink, what: str, made_of: str = "") -> int | None:
    """The size of a dim: a whole number from 1; None if unknown or wrong. made_of: see `whole`."""
    number = whole(value, span, sink, what, made_of)
    if number is UNKNOWN:
        return None
    if number < 1:
        sink.report("SH213", f"{what} must be at least 1, and `{span.text}` is {number}", span, str(number))
        return None
    return int(number)
