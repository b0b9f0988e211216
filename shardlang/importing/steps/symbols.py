"""Sizes of a symbolic trace -> numbers that know how they follow from the sizes of inputs: `seq`,
`seq + 1`, `16 - seq`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import Mod, PythonMod

Sizes = Mapping[Any, Any]


class SymbolicSize(int):
    """A number of a trace, and torch's formula of it, by symbols for the sizes of inputs."""

    formula: Any


def sized(formula: Any, sizes: Sizes) -> int:
    """A formula whose symbols have these sizes; a plain number where it has none."""
    number = int(formula.xreplace(sizes))
    if not formula.free_symbols:
        return number
    found = SymbolicSize(number)
    found.formula = formula
    return found


def formula_of(size: Any) -> Any:
    """The formula of a size, one of torch's too; of a plain number that itself."""
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return size.formula if isinstance(size, SymbolicSize) else sympy.Integer(size)


def formulas(shape: Iterable[int]) -> list[Any]:
    """Those of a shape, equal for two shapes that are one at all sizes of inputs."""
    return list(map(formula_of, shape))


def _carried(name: str) -> Any:
    def method(self: SymbolicSize, other: Any) -> Any:
        number = getattr(int, name)(self, other)
        if type(number) is not int:
            return number
        found = SymbolicSize(number)
        found.formula = getattr(formula_of(self), name)(formula_of(other))
        return found if found.formula.free_symbols else number

    return method


for _name in ("add", "sub", "mul", "floordiv"):
    setattr(SymbolicSize, f"__{_name}__", _carried(f"__{_name}__"))
    setattr(SymbolicSize, f"__r{_name}__", _carried(f"__r{_name}__"))


def symbol_sizes(formulas: Iterable[Any], sizes: Iterable[int]) -> Sizes:
    """The sizes of the symbols of formulas that are these: torch writes a dim that must be even as
    twice a symbol."""
    found = {}
    for formula, size in zip(formulas, sizes, strict=True):
        for symbol in formula.free_symbols:
            found[symbol] = sympy.solve(formula - size, symbol)[0]
    return found


def is_one(one: int, other: int) -> bool:
    """Whether two sizes are one at all sizes of inputs."""
    return bool(formula_of(one) == formula_of(other))


def bounds(start: int | None, end: int | None, wide: int) -> tuple[int, int]:
    """The first place of a slice of a dim, and the one behind its last."""
    first, last = (0 if start is None else start), (wide if end is None else end)
    first, last = (each + wide if each < 0 else each for each in (first, last))
    return min(max(first, 0), wide), min(max(last, 0), wide)


def chunked(formula: Any, sizes: Sizes) -> tuple[Any, list[int]]:
    """A formula without the rests of divisions, as the language has none, and up to which sizes it
    is that: what pads 6 to a whole chunk of 16 is `16 - seq`, up to 16."""
    ends = []
    for rest in formula.atoms(Mod, PythonMod):
        whole, chunk = rest.args
        before = chunk * (whole.xreplace(sizes) // chunk)
        formula = formula.xreplace({rest: whole - before})
        for symbol in whole.free_symbols:
            falls = whole.coeff(symbol) < 0
            ends.append(int(sympy.solve(whole - before - (0 if falls else chunk - 1), symbol)[0]))
    return formula, ends


def linear(size: int, dims: Iterable[Any]) -> tuple[Any, int, int] | None:
    """A size as so many times a dim, and more: the plainest such, as (dim, times, more). dims: what
    has a `size`."""
    formula, found = formula_of(size), []
    for dim in dims:
        by = formula_of(dim.size)
        symbol = next(iter(by.free_symbols & formula.free_symbols), None)
        if symbol is not None and formula.is_polynomial(symbol) and by.is_polynomial(symbol):
            times = sympy.cancel(sympy.diff(formula, symbol) / sympy.diff(by, symbol))
            more = sympy.expand(formula - times * by)
            if times.is_Integer and more.is_Integer and (abs(times) == 1 or not more):
                found.append((dim, int(times), int(more)))
    return min(found, key=lambda each: (abs(each[1]), each[1] < 0, abs(each[2])), default=None)
