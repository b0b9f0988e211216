"""The source `criteo`: click logs in the raw tab-separated format, read line by line as their
examples are asked for.

A line is a label (0 or 1), 13 whole numbers and 26 categories of hexadecimal digits; any but the
label may be empty. Only where each line begins is kept in memory. How examples are ordered and cut
is in loader.py."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import BinaryIO

import numpy as np

from shardlang.errors import RunError
from shardlang.runtime.data import data_files
from shardlang.runtime.data.dataset import Dataset, path_of
from shardlang.runtime.program import BatchSource, Extent, SourceField

NUMBERS, CATEGORIES = 13, 26
FIELDS = NUMBERS + CATEGORIES
_CHUNK = 1 << 24


class Clicks:
    """Examples by line. ids: field i of the numbers has id i; a category has an id from 13 on, by
    hash or vocabulary.

    values: sign(x) ln(1 + |x|) of a number x, 0 where it is empty, and 1 for a category."""

    def __init__(self, path: Path, bound: int | None, threshold: int | None) -> None:
        self.path = path
        self.starts = _line_starts(path)
        self.length = len(self.starts) - 1
        self.bound = bound
        self.vocabulary = self._count(threshold) if threshold is not None else None
        ids = "categories hashed"
        if self.vocabulary is not None:
            ids = f"{len(self.vocabulary):,} categories seen {threshold} times or more, the others one id a field"
        self.notes = [f"{path.name}: {self.length:,} lines, {ids}"]
        self._kept: tuple[bytes, dict[str, np.ndarray]] | None = None
        if self.vocabulary is None and bound is None:
            help = "use `ids` in an `embedding`, or give `threshold`"
            raise RunError("SH502", "nothing says how many ids there are to hash categories to", file=path, help=help)
        if bound is not None and bound <= FIELDS:
            fact = f"{bound} rows are too few: {FIELDS} fields need an id each, and categories more"
            raise RunError("SH502", fact, file=path, help="a table of more rows")

    def _count(self, threshold: int) -> dict[tuple[int, str], int]:
        """The frequent categories, numbered field by field after the fields' own ids for others."""
        counts: Counter[tuple[int, str]] = Counter()
        with data_files.reading(self.path), self.path.open("rb") as file:
            for example in range(self.length):
                counts.update(enumerate(self._read(file, example)[1 + NUMBERS :]))
        kept = sorted(key for key, count in counts.items() if count >= threshold)
        due = FIELDS + len(kept)
        if self.bound is not None and due > self.bound:
            fact = f"{len(kept)} categories and {FIELDS} fields need {due} ids, and the table has {self.bound} rows"
            raise RunError("SH502", fact, file=self.path, help="a greater `threshold`, or a table of more rows")
        return {key: FIELDS + number for number, key in enumerate(kept)}

    def _read(self, file: BinaryIO, example: int) -> list[str]:
        file.seek(int(self.starts[example]))
        raw = file.read(int(self.starts[example + 1] - self.starts[example]))
        cells = raw.decode("utf-8", "replace").rstrip("\r\n").split("\t")
        if len(cells) != 1 + FIELDS:
            raise self._wrong(example, f"the line has {len(cells)} columns, where {1 + FIELDS} are due")
        return cells

    def _wrong(self, example: int, what: str) -> RunError:
        help = f"a line is a label, {NUMBERS} whole numbers and {CATEGORIES} categories, with tabs between and no names"
        return RunError("SH502", what, file=self.path, line=example + 1, help=help)

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        key = examples.tobytes()
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self._parse(examples)
        return self._kept[1][field.name][(slice(None), *block.slices()[1:])]

    def _parse(self, examples: np.ndarray) -> dict[str, np.ndarray]:
        """The fields of some lines: ids [n, 39] int64, values [n, 39] and label [n, 1] float32."""
        ids = np.tile(np.arange(FIELDS, dtype=np.int64), (len(examples), 1))
        values = np.ones((len(examples), FIELDS), np.float32)
        label = np.empty((len(examples), 1), np.float32)
        with data_files.reading(self.path), self.path.open("rb") as file:
            for row, example in enumerate(map(int, examples)):
                cells = self._read(file, example)
                if cells[0] not in ("0", "1"):
                    raise self._wrong(example, f"the label is {cells[0]!r}, where 0 or 1 is due")
                label[row] = float(cells[0])
                values[row, :NUMBERS] = [self._number(cell, at, example) for at, cell in enumerate(cells[1:14], 1)]
                ids[row, NUMBERS:] = [self._category(cell, at, example) for at, cell in enumerate(cells[14:])]
        return {"ids": ids, "values": values, "label": label}

    def _number(self, cell: str, at: int, example: int) -> float:
        if not cell:
            return 0.0
        digits = cell.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise self._wrong(example, f"number {at} is {cell!r}, which is no whole number")
        number = int(cell)
        return float(np.copysign(np.log1p(abs(number)), number))

    def _category(self, cell: str, at: int, example: int) -> int:
        """The id of a category of field `at`; an empty one is a category like others."""
        if cell and not (len(cell) <= 16 and all(c in "0123456789abcdefABCDEF" for c in cell)):
            raise self._wrong(example, f"category {at + 1} is {cell!r}, which is no hexadecimal number")
        if self.vocabulary is not None:
            return self.vocabulary.get((at, cell), NUMBERS + at)
        assert self.bound is not None
        return NUMBERS + zlib.crc32(f"{at}:{cell.lower()}".encode()) % (self.bound - NUMBERS)


def _line_starts(path: Path) -> np.ndarray:
    """int64 [lines + 1]: where each line begins, and the end of the file."""
    found, at, last = [np.zeros(1, np.int64)], 0, b"\n"
    head = data_files.head(path, 3)
    data_files.require_unpacked(path, head, "its lines")
    with data_files.reading(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + at + 1)
            at, last = at + len(chunk), chunk[-1:]
    if head == data_files.BOM:
        found[0][0] = len(head)
    starts = np.concatenate(found)
    return starts if last == b"\n" else np.append(starts, at)


def read_criteo(source: BatchSource, base: Path, like: Dataset | None = None) -> Clicks:
    """criteo("train.txt", threshold = 10): without `threshold`, categories are hashed to the rows
    of the table. As `eval` it takes the vocabulary of the training data."""
    path = path_of(source, base)
    bound = next((field.bound for field in source.fields if field.name == "ids"), None)
    threshold = source.arguments.get("threshold")
    known = like.vocabulary if isinstance(like, Clicks) else None
    clicks = Clicks(path, bound, threshold if known is None else None)
    clicks.vocabulary = clicks.vocabulary if known is None else known
    return clicks
