"""The form into which a data source is read: examples by number, as the program's fields are
declared.

Arrays as a file has them become arrays of a field's shape and type, or an error that names the
file, the place and the cell that does not fit. How arrays are read is left to each source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardlang.errors import RunError
from shardlang.facts.dtypes import DTYPES
from shardlang.runtime.program import BatchSource, Extent, SourceField

# numpy lacks bf16.
_NUMPY = {name: np.dtype(facts.bits if name != "bf16" else np.float32) for name, facts in DTYPES.items()}
# From 2**53 on, float64 no longer has every whole number.
_EXACT = 2**53 - 1


@dataclass(frozen=True)
class Origin:
    """Where examples come from: the file and, where it is text, the line of each. columns: of a
    table, the columns of each field. numbers: of the examples, where they are some of all."""

    file: Path
    lines: Sequence[int] | np.ndarray | None = None
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    numbers: Sequence[int] | None = None

    def line(self, example: int) -> int | None:
        return None if self.lines is None else int(self.lines[example])

    def wrong(self, what: str, example: int | None = None, help: str = "") -> RunError:
        line = None if example is None else self.line(example)
        return RunError("SH502", what, file=self.file, line=line, help=help)

    def refused(self, name: str, rule: str, array: np.ndarray, broken: np.ndarray, help: str) -> RunError:
        """That the array of a field breaks a rule, at the first of the cells that are `broken`."""
        at = tuple(int(i) for i in np.argwhere(broken)[0])
        number = at[0] if self.numbers is None else self.numbers[at[0]]
        where = f"example {number}" if self.lines is None else "the line"
        index = f" at {list(at[1:])}" if len(at) > 1 else ""
        if name in self.columns:
            index = f" in column {self.columns[name][int(np.flatnonzero(broken[at[0]])[0])]}"
        return self.wrong(f"{rule}; {where} has {shown(array[at])}{index}", at[0], help)


class Dataset(Protocol):
    """Examples by number, 0 to length - 1. `notes` tell the user what was read, and what of it is
    not in the examples as it stands in the file."""

    @property
    def length(self) -> int: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        """The given examples of a field [len(examples), *block.shape[1:]], dims past the batch
        sliced as `block` says."""


class Arrays:
    """Equally long numpy arrays, one per field name: [examples, ...]. Errors name `origin`."""

    def __init__(self, fields: Iterable[SourceField], arrays: Mapping[str, np.ndarray], origin: Origin) -> None:
        self.arrays = {field.name: fitted(field, arrays, origin) for field in fields}
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"`{name}` has {length}" for name, length in lengths.items())
            raise origin.wrong(f"the fields are not equally long: {listed}", help="save as many examples of each")
        self.length, self.origin = next(iter(lengths.values()), 0), origin
        self.notes: list[str] = []

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        array = self.arrays[field.name]
        if block.shape[1:] == array.shape[1:]:
            # Whole examples are copied at once; by slices numpy goes through the elements.
            return array.take(examples, 0)
        rest: tuple[Any, ...] = block.slices()[1:]
        found: np.ndarray = array[(examples, *rest)]
        return found


def path_of(source: BatchSource, base: Path) -> Path:
    """The path of a source, which it cannot do without."""
    if "path" not in source.arguments:
        raise RunError("SH502", f"data source `{source.kind}` needs `path`")
    return base / str(source.arguments["path"])


def shown(number: np.generic) -> str:
    """A number as a user would write it: a whole one without a point."""
    value = number.item()
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e16
    return str(int(value)) if whole else str(value)


def fitted(field: SourceField, arrays: Mapping[str, np.ndarray], origin: Origin) -> np.ndarray:
    """The array of a field in its shape and type [examples, ...], or an error that says why it does
    not fit."""
    if field.name not in arrays:
        there = ", ".join(f"`{name}`" for name in arrays) or "none"
        raise origin.wrong(f"there is no array `{field.name}`; there are: {there}")
    array = arrays[field.name]
    if array.dtype.kind not in "biuf":
        contents = f"{_KINDS.get(array.dtype.kind, 'dates or times')} ({array.dtype})"
        help = "save it as numbers: `array.astype(numpy.float32)`"
        raise origin.wrong(f"`{field.name}` holds {contents}, where {field.dtype} is due", help=help)
    array = _shaped(field, array, origin)
    dtype = _NUMPY[field.dtype]
    if dtype.kind in "bi":
        _require_whole(field, array, dtype, origin)
    broken = outside(field, array)
    if broken is not None:
        assert field.bound is not None
        further = "".join(f", or {number}" for number in field.ignored if not 0 <= number < field.bound)
        greatest = int(array.max())
        help = (
            f"where {greatest} is right, declare `{field.name}` with `< {greatest + 1}`; else "
            if array.min() >= 0
            else ""
        )
        help += "mend the number, or leave the example out; where it marks a label that is not to count, the loss "
        help += f"that reads it takes `ignore_index = {shown(array[broken][0])}`"
        rule = f"`{field.name}` must be from 0 to {field.bound - 1}{further}"
        raise origin.refused(field.name, rule, array, broken, help)
    return _converted(field, array, dtype, origin)


# What an array that holds no numbers holds, by numpy's letter.
_KINDS = {"U": "text", "S": "bytes", "O": "Python objects", "c": "complex numbers", "V": "records or raw bytes"}


def _shaped(field: SourceField, array: np.ndarray, origin: Origin) -> np.ndarray:
    """Examples in the field's shape, where both say the same order of numbers: dims of 1 aside, and
    flat ones."""
    if not array.ndim:
        fact = f"array `{field.name}` is a single number, not one entry an example"
        raise origin.wrong(fact, help=f"numpy.array([{field.name}])")
    there, due = array.shape[1:], tuple(field.shape[1:])
    alike = [size for size in there if size != 1], [size for size in due if size != 1]
    if math.prod(there) != math.prod(due) or (alike[0] != alike[1] and min(map(len, alike)) > 1):
        help = f"declare it as the file has it: `{field.name}: [{', '.join(['batch', *map(str, there)])}]`"
        if sorted(alike[0]) == sorted(alike[1]):
            help = "bring the dims of the array in order: `numpy.moveaxis`"
        fact = f"an example of `{field.name}` has shape {list(there)}, where the program has {list(due)}"
        raise origin.wrong(fact, help=help)
    return array.reshape(len(array), *due)


def _require_whole(field: SourceField, array: np.ndarray, dtype: np.dtype, origin: Origin) -> None:
    """Whether all numbers are of a whole type as they are, so that none is cut off or wrapped
    around."""
    name, kind = f"`{field.name}`", array.dtype.kind
    if dtype.kind == "b":
        if kind != "b" and (broken := (array != 0) & (array != 1)).any():
            help = f"other numbers want `{field.name}: i64[..]`"
            raise origin.refused(field.name, f"{name} must be 0 or 1", array, broken, help)
        return
    if kind == "f" and (broken := array != np.floor(array)).any():
        help = f"mend the value, or declare the field without {field.dtype}"
        raise origin.refused(field.name, f"{name} must be whole numbers", array, broken, help)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if kind == "f":
        least, most = max(least, -_EXACT), min(most, _EXACT)
    elif np.can_cast(array.dtype, dtype):
        return
    broken = (array < least) | (array > most)
    if broken.any():
        help = "numbers up to 2**63 - 1 are read from an .npz of int64 into `i64`" if kind == "f" else "declare it i64"
        raise origin.refused(field.name, f"{name} must be from {least} to {most} to be exact", array, broken, help)


def outside(field: SourceField, array: np.ndarray) -> np.ndarray | None:
    """Which numbers are neither indices below the field's bound nor ignored by what uses them; None
    where none is."""
    if field.bound is None or not array.size or (array.min() >= 0 and array.max() < field.bound):
        return None
    broken = ((array < 0) | (array >= field.bound)) & ~np.isin(array, field.ignored)
    return broken if broken.any() else None


def _converted(field: SourceField, array: np.ndarray, dtype: np.dtype, origin: Origin) -> np.ndarray:
    """The array in its type. A finite number that the type has not would become infinite."""
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype, copy=False)
    except FloatingPointError:
        broken = np.isfinite(array) & (np.abs(array) > np.finfo(dtype).max)
        rule = f"`{field.name}` is {field.dtype}, whose numbers go up to {np.finfo(dtype).max:.3g}"
        raise origin.refused(field.name, rule, array, broken, "scale the column, or declare the field f64") from None
