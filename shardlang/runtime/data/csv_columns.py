"""The source `csv`: the numbers of named or counted columns, and the line of each example.

Cells are as RFC 4180 has them: one in quotes may hold delimiters, quotes and ends of lines. Columns
that no field takes may hold anything. How text is decoded is in data_files.py, how numbers fit
their fields in dataset.py."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from shardlang.errors import RunError
from shardlang.runtime.data import data_files
from shardlang.runtime.data.dataset import Arrays, Dataset, Origin, require
from shardlang.runtime.program import Field, Source


@dataclass
class _Text:
    """The lines of a file; `start`: how many of them the header takes."""

    path: Path
    lines: list[str]
    delimiter: str
    start: int = 0

    def wrong(self, line: int, what: str, help: str = "") -> RunError:
        return RunError("SH502", what, file=self.path, line=line, help=help)

    def records(self) -> Iterator[tuple[int, int, list[str]]]:
        """The cells of every record after the header: its line, the lines up to its end, its cells.
        Blank lines are none."""
        texts = (f"{line}\n" for line in self.lines[self.start :])
        space = self.delimiter != " "
        reader, at = csv.reader(texts, delimiter=self.delimiter, skipinitialspace=space, strict=True), self.start + 1
        try:
            for cells in reader:
                end = self.start + reader.line_num
                if any(map(str.strip, cells)):
                    yield at, end, cells
                at = end + 1
        except csv.Error as error:
            help = 'a quote that begins a cell ends it too; one within a cell is written twice: ""'
            raise self.wrong(at, f"the line cannot be cut into cells: {error}", help) from None


def read_csv(source: Source, base: Path, like: Dataset | None = None) -> Arrays:
    """csv("file.csv", ...): numbers, packed with gzip or not. With a header, a field takes its
    columns by name (`x`, or `x0`, `x1`, ...; `x_0`, `x.0` too); without one, the columns go to the
    fields in their order."""
    path = base / str(require(source.arguments, "path", "csv"))
    text = _Text(path, data_files.text(path).split("\n"), str(source.arguments.get("delimiter", ",")))
    line, end, head = next(text.records(), (1, 1, []))
    if not head:
        raise RunError("SH502", "the file has no line of text", file=path, help="name a file that holds examples")
    head = [cell.strip() for cell in head]
    named = bool(source.arguments.get("header", any(_number(cell) is None for cell in head)))
    text.start = end if named else 0
    if named:
        columns = {field.name: _columns(field, head, text, line) for field in source.fields}
    else:
        columns = _in_order(source, len(head), text, line)
    used = sorted({at for places in columns.values() for at in places})
    lines, table = _table(text, len(head), used)
    arrays = {name: table[:, [used.index(at) for at in places]] for name, places in columns.items()}
    return Arrays(source, arrays, Origin(path, lines))


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _table(text: _Text, width: int, used: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The line of each example, int64, and its used columns, float64 [examples, len(used)]."""
    numbered = [(number, line) for number, line in enumerate(text.lines[text.start :], text.start + 1) if line.strip()]
    table = _at_once([line for _, line in numbered], width, used, text.delimiter)
    if table is not None:
        return np.array([number for number, _ in numbered]), table
    lines, rows = [], []
    for line, _, cells in text.records():
        lines.append(line)
        rows.append(_row(text, line, cells, width, used))
    return np.array(lines), np.array(rows).reshape(-1, len(used))


def _at_once(lines: Sequence[str], width: int, used: Sequence[int], delimiter: str) -> np.ndarray | None:
    """The used columns by numpy's fast reader; None if something is quoted, wrong, or no line."""
    if not lines or any(line.count(delimiter) != width - 1 or '"' in line for line in lines):
        return None
    try:
        return np.loadtxt(lines, delimiter=delimiter, usecols=used, ndmin=2, comments=None)
    except ValueError:
        return None


def _row(text: _Text, line: int, cells: Sequence[str], width: int, used: Sequence[int]) -> list[float]:
    if len(cells) != width:
        help = f'a value with `{text.delimiter}` in it stands in quotes; another delimiter is `delimiter = ";"`, say'
        raise text.wrong(line, f"the line has {len(cells)} values, where {width} are due", help)
    row = []
    for at in used:
        number = _number(cells[at])
        if number is None:
            help = "write a number there, or delete the line; a column of text cannot be a field"
            raise text.wrong(line, f"value {at + 1} is {cells[at].strip()!r}, which is no number", help)
        row.append(number)
    return row


def _width(field: Field) -> int:
    return math.prod(field.shape[1:])


def _in_order(source: Source, width: int, text: _Text, line: int) -> dict[str, list[int]]:
    due = sum(_width(field) for field in source.fields)
    if due != width:
        help = "a first line of names lets fields take the columns that they name"
        raise text.wrong(line, f"the line has {width} values, where the fields need {due}", help)
    columns, start = {}, 0
    for field in source.fields:
        columns[field.name] = list(range(start, start + _width(field)))
        start += _width(field)
    return columns


def _columns(field: Field, head: Sequence[str], text: _Text, line: int) -> list[int]:
    """The positions of a field's columns: those of its name, or its name and a number, in order."""
    named = [at for at, name in enumerate(head) if name == field.name]
    pattern = re.compile(re.escape(field.name) + r"[_.\[]?(\d+)\]?")
    numbered = sorted((int(match[1]), at) for at, name in enumerate(head) if (match := pattern.fullmatch(name)))
    again = next((a for a, b in pairwise(numbered) if a[0] == b[0]), None)
    if not named and again is not None:
        raise text.wrong(line, f"two columns are number {again[0]} of `{field.name}`", "rename one in the header")
    at, due = named or [place for _, place in numbered], _width(field)
    if len(at) != due:
        fact = f"field `{field.name}` needs {due} column{'s' * (due != 1)}; the header names {len(at)} of it"
        raise text.wrong(line, fact, _naming(field, head))
    return at


def _naming(field: Field, head: Sequence[str]) -> str:
    """How a field that finds no column could."""
    alike = [name for name in head if name.casefold().startswith(field.name.casefold()) and name[:1].isalpha()]
    if alike and not alike[0].startswith(field.name):
        return f"capitals count: rename the column `{alike[0]}`, or the field"
    shown = ", ".join(f"`{name}`" for name in head[:8]) + (" ..." if len(head) > 8 else "")
    return f"the columns are {shown}"
