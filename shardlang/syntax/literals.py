"""Turns number and string tokens into nodes, and reports bad ones (SH106, SH107, SH117).

The value of a number is in base units: bytes, bytes/s, seconds, FLOP/s."""

from __future__ import annotations

import re
from decimal import Decimal

from shardlang.diagnostics.diagnostic import Sink
from shardlang.hints.nearest import nearest
from shardlang.sources.source import Span
from shardlang.syntax import ast

_PARTS = re.compile(r"([0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9][0-9_]*)?)(.*)", re.DOTALL)
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_TIMES: dict[str, int | float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
# Past these a number is a slip or an attack: int(text) takes time quadratic in the digits.
MOST_CHARACTERS = 40
MOST, LARGEST_FLOAT = 2**63 - 1, 1e300
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def _units() -> dict[str, int | float]:
    units = dict(_TIMES)
    for prefix, factor in (_DECIMAL | _BINARY).items():
        units[f"{prefix}B"] = units[f"{prefix}B/s"] = factor
        units[f"{prefix}b/s"] = factor / 8
    for prefix, factor in _DECIMAL.items():
        units[f"{prefix}FLOPS"] = units[f"{prefix}FLOP/s"] = factor
    return units


UNITS = _units()


def _read(text: str) -> tuple[int | float, str]:
    """Value and unit of `25MB`, `1_000`, `3e-4`; an int where the value is whole and written
    without a point.

    Raises ValueError, with the fact to tell the user: an unknown unit (KeyError), or a number too
    large."""
    digits, unit = _PARTS.fullmatch(text).groups()  # type: ignore[union-attr]
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a number of {len(digits)} characters is too long")
    if unit and unit not in UNITS:
        raise KeyError(unit)
    plain = digits.replace("_", "")
    value: int | float = int(plain) if plain.isdecimal() else float(plain)
    if unit:
        scaled = value * UNITS[unit]
        if isinstance(scaled, float) and scaled < MOST and unit not in _TIMES:
            exact = Decimal(plain) * Decimal(UNITS[unit])  # 527395.264 * 1000 is below 527395264
            scaled = int(exact) if exact == int(exact) else float(exact)
        value = scaled
    if value > (MOST if isinstance(value, int) else LARGEST_FLOAT):
        raise ValueError(f"the number `{text}` is too large")
    return value, unit


def number(span: Span, sink: Sink) -> ast.Number:
    """The number at `span`; 1 in place of one that cannot be read."""
    text = span.text
    if text.isdecimal() and len(text) < 18:
        return ast.Number(text, int(text), "", span=span)
    try:
        value, unit = _read(text)
    except KeyError as unknown:
        unit = str(unknown.args[0])
        digits = text[: -len(unit)]
        known = nearest(unit, UNITS)
        help = (
            f"write `{digits}{known}`"
            if known
            else "units are bytes (`25MB`), rates (`400Gb/s`, `1TFLOP/s`), times (`5us`)"
        )
        if len(unit) == 1 or not known:
            help = f"write `{digits} * {unit}` for a product" if unit.isidentifier() and not known else help
        sink.report("SH106", f"`{unit}` is not a unit", span.between(span.end - len(unit), span.end), help=help)
        return ast.Number(text, 1, "", span=span)
    except ValueError as wrong:
        sink.report("SH107", str(wrong), span, help="the largest whole number is 9223372036854775807")
        return ast.Number(text, 1, "", span=span)
    return ast.Number(text, value, unit, span=span)


def string(span: Span, sink: Sink) -> ast.String:
    """The string at `span`, its escapes resolved; an unknown escape stays as it is written."""
    text = span.text[1:-1]
    if "\0" in text:
        at = span.start + 1 + text.index("\0")
        sink.report(
            "SH104", "U+0000 (a control character) stands in a string, and no path can hold it",
            span.between(at, at + 1), help="leave it out",
        )  # fmt: skip
    if "\\" not in text:
        return ast.String(text, span=span)
    wrong = [found for found in _ESCAPE.finditer(text) if found.group(1) not in _ESCAPES]
    if wrong:
        first, start = wrong[0], span.start + 1 + wrong[0].start()
        more = f", nor {_others(len(wrong) - 1)} of this string" if len(wrong) > 1 else ""
        sink.report(
            "SH117", f"`{first.group()}` is not an escape{more}", span.between(start, start + 2),
            help=f'write `\\\\{first.group(1)}` for a backslash; the escapes are `\\n`, `\\t`, `\\"` and `\\\\`',
        )  # fmt: skip
    return ast.String(_ESCAPE.sub(lambda found: _ESCAPES.get(found.group(1), found.group()), text), span=span)


def _others(count: int) -> str:
    return "another one" if count == 1 else f"{count:,} others"
