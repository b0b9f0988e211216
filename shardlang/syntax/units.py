"""Turns the text of a number into its value in base units: bytes, bytes/s, seconds, FLOP/s."""

from __future__ import annotations

import re

_PARTS = re.compile(r"([0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9][0-9_]*)?)(.*)", re.DOTALL)
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_TIMES: dict[str, int | float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
# Past these a number is a slip or an attack: int(text) takes time quadratic in the digits.
MOST_CHARACTERS = 40
MOST = 2**63 - 1


def _units() -> dict[str, int | float]:
    units = dict(_TIMES)
    for prefix, factor in (_DECIMAL | _BINARY).items():
        units[f"{prefix}B"] = units[f"{prefix}B/s"] = factor
        units[f"{prefix}b/s"] = factor / 8
    for prefix, factor in _DECIMAL.items():
        units[f"{prefix}FLOPS"] = units[f"{prefix}FLOP/s"] = factor
    return units


UNITS = _units()


def read_number(text: str) -> tuple[int | float, str]:
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
        whole = isinstance(scaled, float) and scaled.is_integer() and scaled < MOST and unit not in _TIMES
        value = int(scaled) if whole else scaled
    if value > (MOST if isinstance(value, int) else 1e300):
        raise ValueError(f"the number `{text}` is too large")
    return value, unit
