"""The source `csv`: the numbers, words or texts of named or counted columns, and the line of each
example.

Cells are as RFC 4180 has them: one in quotes may hold delimiters, quotes and ends of lines. Columns
that no field takes may hold anything. How text is decoded is in data_files.py, how numbers fit
their fields in dataset.py, how texts become numbers in csv_text.py."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from shardlang.errors import RunError
from shardlang.facts.dtypes import INTEGERS
from shardlang.runtime.data import csv_text, data_files
from shardlang.runtime.data.dataset import Arrays, Dataset, Origin, path_of
from shardlang.runtime.program import BatchSource, Extent, SourceField
from shardlang.runtime.words import Text, Vocabulary, Words, vocabulary_note

# A cell may be as long as a file. The limit of Python's reader is one of all readers.
csv.field_size_limit(2**31 - 1)


@dataclass
class _Text:
    """The lines of a file; `start`: how many of them the header takes."""

    path: Path
    lines: list[str]
    delimiter: str
    start: int = 0

    def wrong(self, line: int, what: str, help: str = "") -> RunError:
        return RunError("SH502", what, file=self.path, line=line, help=help)

    def is_blank(self, line: str) -> bool:
        """Whether a line is none of a record: delimiters alone are one of empty cells."""
        return not line.strip() and (self.delimiter == " " or self.delimiter not in line)

    def records(self) -> Iterator[tuple[int, int, list[str]]]:
        """The cells of every record after the header: its line, the lines up to its end, its cells.
        Blank lines are none."""
        texts = (f"{line}\n" for line in self.lines[self.start :])
        space = self.delimiter != " "
        reader, at = csv.reader(texts, delimiter=self.delimiter, skipinitialspace=space, strict=True), self.start + 1
        try:
            for cells in reader:
                end = self.start + reader.line_num
                if not all(map(self.is_blank, self.lines[at - 1 : end])):
                    yield at, end, cells
                at = end + 1
        except csv.Error as error:
            help = 'a quote that begins a cell ends it too; one within a cell is written twice: ""'
            raise self.wrong(at, f"the line cannot be cut into cells: {error}", help) from None


def read_csv(source: BatchSource, base: Path, like: Dataset | None = None) -> Table:
    """csv("file.csv", ...): numbers, packed with gzip or not. With a header, a field takes its
    columns by name (`x`, or `x0`, `x1`, ...; `x_0`, `x.0` too); without one, the columns go to the
    fields in their order."""
    path = path_of(source, base)
    text = _Text(path, data_files.text(path).split("\n"), str(source.arguments.get("delimiter", ",")))
    line, end, head = next(text.records(), (1, 1, []))
    if not head:
        raise RunError("SH502", "the file has no line of text", file=path, help="name a file that holds examples")
    head = [cell.strip() for cell in head]
    given = source.arguments.get("header")
    named = _named(source, head, text, line) if given is None else bool(given)
    text.start = end if named else 0
    if named:
        columns = {field.name: _columns(field, head, text, line) for field in source.fields}
    else:
        columns = _in_order(source, len(head), text, line)
    numbers = [field for field in source.fields if field.words is None]
    used = sorted({at for field in numbers for at in columns[field.name]})
    read = sorted({at for field in source.fields if field.words is not None for at in columns[field.name]})
    titles = {name: [f"`{head[at]}`" if named else str(at + 1) for at in places] for name, places in columns.items()}
    lines, table, words = _table(text, len(head), used, read)
    origin = Origin(path, lines, titles)
    arrays = {field.name: table[:, [used.index(at) for at in columns[field.name]]] for field in numbers}
    return Table(source, arrays, words, columns, like if isinstance(like, Table) else None, base, origin)


def _named(source: BatchSource, head: Sequence[str], text: _Text, line: int) -> bool:
    """Whether a first line is a header: where its cells are not all numbers, or, without a header,
    would not be numbers of the fields that want some."""
    numbers = [_number(cell) is not None for cell in head]
    if all(field.words is None for field in source.fields):
        return not all(numbers)
    widths = [(field, _width(field)) for field in source.fields]
    if sum(width for _, width in widths) != len(head):
        return True
    due = [field.words is None for field, width in widths for _ in range(width)]
    if any(due):
        return not all(number for number, wanted in zip(numbers, due, strict=True) if wanted)
    if all(any(name == field.name or _is_one(field, name) for name in head) for field in source.fields):
        return True
    fact = "no field is of numbers, and nothing says whether the first line names the columns"
    raise text.wrong(line, fact, "write `header = true`, or `header = false`, in `csv(..)`")


def _number(cell: str) -> float | None:
    try:
        return float(cell) if "_" not in cell else None  # Python's `1_000` is none of csv's numbers
    except ValueError:
        return None


class _Cells:
    """The words of some columns of a file: each a number in the order of first appearance."""

    def __init__(self, read: Sequence[int]) -> None:
        self.read = read
        self.first: dict[str, int] = {}
        self.rows = array("q")
        self.vocabularies: dict[str, Vocabulary] = {}

    def add(self, cells: Sequence[str]) -> None:
        """Takes the words of an example; blanks around one do not count."""
        first = self.first
        self.rows.extend([first.setdefault(cells[at].strip(), len(first)) for at in self.read])

    def of(self, columns: Sequence[int]) -> np.ndarray:
        """The number of the word in each cell of some columns, int64 [examples, columns]."""
        table = np.array(self.rows, np.int64).reshape(-1, len(self.read))
        return table[:, [self.read.index(at) for at in columns]]

    def numbered(
        self, worded: Mapping[str, Words], columns: Mapping[str, Sequence[int]], known: Mapping[str, Vocabulary],
        origin: Origin,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """The numbers of each field that reads words, int64 [examples, columns]. known: the
        vocabularies of the training data, where this is `eval`."""
        words, found = list(self.first), {}
        for name, how in worded.items():
            if how.name not in self.vocabularies:
                own = {at for other, each in worded.items() if each.name == how.name for at in columns[other]}
                counts = np.bincount(self.of(sorted(own)).ravel(), minlength=len(words))
                occurring = {word: int(count) for word, count in zip(words, counts, strict=True) if count}
                self.vocabularies[how.name] = known.get(how.name) or Vocabulary.of(how, occurring)
            numbers = np.array(self.vocabularies[how.name].numbers(words), np.int64)
            cells = self.of(columns[name])
            found[name] = numbers[cells] if len(words) else cells
            self._require(name, found[name], cells, words, self.vocabularies[how.name], origin)
        return found

    def _require(
        self, name: str, numbers: np.ndarray, read: np.ndarray, words: Sequence[str], vocabulary: Vocabulary,
        origin: Origin,
    ) -> None:  # fmt: skip
        """RunError where a word has no number, with its line and column."""
        if (numbers >= 0).all():
            return
        example, column = (int(at) for at in np.argwhere(numbers < 0)[0])
        word = words[read[example, column]]
        listed = ", ".join(repr(each) for each in vocabulary.known[:8]) + ", ..." * (len(vocabulary.known) > 8)
        cell = f"is {word!r}" if word else "is empty"
        fact = f"column {origin.columns[name][column]} {cell}, which is none of the words of `{name}`: {listed}"
        quoted = '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
        known = "a greater `most`" if vocabulary.words.most else f"list {quoted} in `categories(..)`"
        help = f"mend the cell, {known}, or give all others a number: `unknown = true`"
        raise origin.wrong(fact, example, help)


class Table(Arrays):
    """The arrays of a file, with the vocabularies of its words, by name; its texts, with what made
    their numbers. categories: of each field that reads words or texts, what a checkpoint records.

    arrays: of the fields that read numbers. like: the training data, where this is `eval`."""

    vocabularies: Mapping[str, Vocabulary]
    encoders: Mapping[str, csv_text.Encoder]

    def __init__(
        self, source: BatchSource, arrays: Mapping[str, np.ndarray], cells: _Cells,
        columns: Mapping[str, Sequence[int]], like: Table | None, base: Path, origin: Origin,
    ) -> None:  # fmt: skip
        worded = {field.name: field.words for field in source.fields if isinstance(field.words, Words)}
        texts = {field.name: field for field in source.fields if isinstance(field.words, Text)}
        known, encoders = (like.vocabularies, like.encoders) if like is not None else ({}, {})
        numbered = cells.numbered(worded, columns, known, origin)
        super().__init__([f for f in source.fields if f.name not in texts], {**arrays, **numbered}, origin)
        assert origin.lines is not None
        self.length, self.vocabularies = len(origin.lines), cells.vocabularies
        given = {name: (field, cells.of(columns[name])[:, 0]) for name, field in texts.items()}
        self.texts, self.encoders = csv_text.encoded(given, list(cells.first), encoders, base)
        self.categories = {name: self.vocabularies[each.name].told for name, each in worded.items()}
        self.categories.update({name: each.encoder.told for name, each in self.texts.items()})
        made = {name: each for name, each in self.vocabularies.items() if each.words.most and name not in known}
        self.notes = [vocabulary_note(name, each.known) for name, each in made.items()]
        self.notes += [each.note for name, each in self.encoders.items() if each.note and name not in encoders]
        self.notes += [each.note for each in self.texts.values()]

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        text = self.texts.get(field.name)
        return super().take(field, examples, block) if text is None else text.take(examples, block)


def _table(text: _Text, width: int, used: Sequence[int], read: Sequence[int]) -> tuple[np.ndarray, np.ndarray, _Cells]:
    """The line of each example, int64, its used columns, float64 [examples, len(used)], and the
    words of the columns that are to be `read` so."""
    lines = enumerate(text.lines[text.start :], text.start + 1)
    numbered = [(number, line) for number, line in lines if not text.is_blank(line)]
    words = _Cells(read)
    table = _at_once([line for _, line in numbered], width, used, text.delimiter)
    if table is not None:
        for _, content in numbered if read else ():
            words.add(content.split(text.delimiter))
        return np.array([number for number, _ in numbered]), table, words
    places, rows = [], []
    for line, _, cells in text.records():
        places.append(line)
        rows.append(_row(text, line, cells, width, used))
        words.add(cells)
    return np.array(places), np.array(rows).reshape(len(places), len(used)), words


def _at_once(lines: Sequence[str], width: int, used: Sequence[int], delimiter: str) -> np.ndarray | None:
    """The used columns by numpy's fast reader; None if something is quoted, wrong, infinite, or no
    line."""
    if not lines or any(line.count(delimiter) != width - 1 or '"' in line for line in lines):
        return None
    if not used:
        return np.empty((len(lines), 0))
    try:
        found = np.loadtxt(lines, delimiter=delimiter, usecols=used, ndmin=2, comments=None)
    except ValueError:
        return None
    return None if np.isinf(found).any() else found


def _row(text: _Text, line: int, cells: Sequence[str], width: int, used: Sequence[int]) -> list[float]:
    if len(cells) != width:
        help = f'a value with `{text.delimiter}` in it stands in quotes; another delimiter is `delimiter = ";"`, say'
        raise text.wrong(line, f"the line has {len(cells)} values, where {width} are due", help)
    row = []
    for at in used:
        number = _number(cells[at])
        if number is None:
            help = "write a number there, or delete the line; a column of words is `i64[batch] < categories(..)`"
            raise text.wrong(line, f"value {at + 1} is {cells[at].strip()!r}, which is no number", help)
        if math.isinf(number) and "inf" not in cells[at].lower():
            fact = f"value {at + 1} is {_short(cells[at].strip())}, which is beyond the largest number of f64"
            raise text.wrong(line, fact, "write a number below 1.8e308, or `inf`")
        row.append(number)
    return row


def _short(cell: str) -> str:
    return cell if len(cell) < 40 else f"{cell[:30]}... ({len(cell)} characters)"


def _width(field: SourceField) -> int:
    """How many columns a field takes. A text is in one."""
    return 1 if isinstance(field.words, Text) else math.prod(field.shape[1:])


def _in_order(source: BatchSource, width: int, text: _Text, line: int) -> dict[str, list[int]]:
    due = sum(_width(field) for field in source.fields)
    if due != width:
        help = "a first line of names lets fields take the columns that they name"
        raise text.wrong(line, f"the line has {width} values, where the fields need {due}", help)
    columns, start = {}, 0
    for field in source.fields:
        columns[field.name] = list(range(start, start + _width(field)))
        start += _width(field)
    return columns


def _columns(field: SourceField, head: Sequence[str], text: _Text, line: int) -> list[int]:
    """The positions of a field's columns: those of its name, or its name and a number, in order."""
    named = [at for at, name in enumerate(head) if name == field.name]
    numbered = sorted((int(match[1]), at) for at, name in enumerate(head) if (match := _is_one(field, name)))
    numbered = [] if isinstance(field.words, Text) else numbered
    again = next((a for a, b in pairwise(numbered) if a[0] == b[0]), None)
    if not named and again is not None:
        raise text.wrong(line, f"two columns are number {again[0]} of `{field.name}`", "rename one in the header")
    at, due = named or [place for _, place in numbered], _width(field)
    if len(at) != due:
        fact = f"field `{field.name}` needs {due} column{'s' * (due != 1)}; the header names {len(at)} of it"
        raise text.wrong(line, fact, _naming(field, head))
    return at


def _is_one(field: SourceField, name: str) -> re.Match[str] | None:
    """Whether a column is a numbered one of a field."""
    return re.fullmatch(re.escape(field.name) + r"[_.\[]?(\d+)\]?", name)


def _naming(field: SourceField, head: Sequence[str]) -> str:
    """How a field that finds no column could."""
    if field.name in head and len(field.shape) == 2 and field.dtype in INTEGERS:
        return "one column of text is bounded by `words(most = 20000)`, or by a `tokenizer(..)`"
    alike = [name for name in head if name.casefold().startswith(field.name.casefold()) and name[:1].isalpha()]
    if alike and not alike[0].startswith(field.name):
        return f"capitals count: rename the column `{alike[0]}`, or the field"
    shown = ", ".join(f"`{name}`" for name in head[:8]) + (" ..." if len(head) > 8 else "")
    return f"the columns are {shown}"
