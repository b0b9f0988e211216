"""The texts of csv columns -> their numbers, cut to the length of a field and filled up to it: by
the words of the training file, by bytes, or by a tokenizer.json.

Reading the cells is left to csv_columns.py, tokenizer.json to token_files.py."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardlang.errors import RunError
from shardlang.hints.paths import OF_PROGRAM, instead
from shardlang.runtime.data.text import PAD, UNKNOWN, Ragged, TextVocabulary
from shardlang.runtime.data.token_files import FromFile
from shardlang.runtime.program import Extent, SourceField
from shardlang.runtime.words import Text, checksum, vocabulary_note


class Encoder(ABC):
    """Texts to numbers. pad: the number that fills a text up, at the `left` or behind it. unit:
    what a number stands for. unknown: the number of what has none. told: a text for a checkpoint,
    which differs where the numbers of texts do. note: a line about what was made of the training
    data."""

    pad: int
    left = False
    unit: str
    unknown: int | None = None
    told: str
    note = ""

    @abstractmethod
    def numbers(self, texts: Sequence[str], length: int, field: str) -> Iterator[tuple[np.ndarray, bool]]:
        """The numbers of each text, int32, at most `length`, and whether it was cut."""


class _OneByOne(Encoder):
    """An encoder that takes each text by itself."""

    @abstractmethod
    def number(self, text: str) -> np.ndarray:
        """The numbers of a whole text, int32."""

    def numbers(self, texts: Sequence[str], length: int, field: str) -> Iterator[tuple[np.ndarray, bool]]:
        for found in map(self.number, texts):
            yield found[:length], len(found) > length


class _Words(_OneByOne):
    """The most frequent words, numbered as those of `parallel_text`."""

    pad, unit, unknown = PAD, "words", UNKNOWN

    def __init__(self, text: Text, texts: Iterator[str]) -> None:
        self.vocabulary = TextVocabulary.built(texts, text.size)
        known = self.vocabulary.words
        self.told = f"text of {len(known)} words ({checksum(known)})"
        self.note = vocabulary_note(text.name, known)

    def number(self, text: str) -> np.ndarray:
        return np.array(self.vocabulary.encode(text), np.int32)


class _Bytes(_OneByOne):
    """The bytes of a text in UTF-8."""

    unit = "bytes"

    def __init__(self, text: Text) -> None:
        assert text.pad is not None
        self.pad, self.told = text.pad, f"bytes of text, filled up with {text.pad}"

    def number(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class _Tokens(Encoder):
    """The tokens of a tokenizer.json, with its own marks."""

    unit = "tokens"

    def __init__(self, text: Text, base: Path) -> None:
        self.path, self.written = base / text.path, json.dumps(text.path)
        if not self.path.is_file():
            help = instead(self.path, f"{OF_PROGRAM}, which names {self.written}")
            raise RunError("SH502", "no tokenizer file is there", file=self.path, help=help)
        self.tokenizer = FromFile(self.path)
        if self.tokenizer.vocab > text.size:
            fact = f"the tokenizer has {self.tokenizer.vocab:,} tokens, and `{text.name}` has {text.size:,} numbers"
            help = f"write `tokenizer({self.written}, {self.tokenizer.vocab})`"
            raise RunError("SH502", fact, file=self.path, help=help)
        own, self.left = self.tokenizer.padding
        pad = own if text.pad is None else text.pad
        if pad is None or pad >= text.size:
            raise self._unpadded(text, pad)
        self.pad = pad
        side = " at the left" if self.left else ""
        self.told = f"text by a tokenizer (checksum {self._checksum():08x}), filled up with {pad}{side}"

    def _unpadded(self, text: Text, pad: int | None) -> RunError:
        """That no number is known that fills texts up, or one that is none of the field's."""
        fact = "the tokenizer has no padding token"
        if pad is not None:
            fact = f"the tokenizer fills texts up with {pad}, and `{text.name}` has {text.size:,} numbers"
        help = f"say which number fills texts up: `tokenizer({self.written}, {text.size}, pad = 0)`, say"
        if text.size == self.tokenizer.vocab:
            further = f"`tokenizer({self.written}, {text.size + 1}, pad = {text.size})`"
            help += f"; one that no text has is one more: {further}"
        return RunError("SH502", fact, file=self.path, help=help)

    def _checksum(self) -> int:
        """A checksum of the file, in whatever order and layout its JSON is, but for how the library
        cuts and fills texts."""
        content = json.loads(self.path.read_text("utf-8"))
        kept = {name: value for name, value in content.items() if name not in ("truncation", "padding")}
        return zlib.crc32(json.dumps(kept, sort_keys=True).encode())

    def numbers(self, texts: Sequence[str], length: int, field: str) -> Iterator[tuple[np.ndarray, bool]]:
        marks = self.tokenizer.marks
        if length <= marks:
            fact = f"a text of `{field}` is cut to {length} tokens, and the tokenizer's own marks are {marks} of them"
            raise RunError("SH502", fact, file=self.path, help=f"a length of {marks + 1} or more")
        return self.tokenizer.whole(texts, length)


@dataclass(frozen=True)
class Column:
    """The texts of a field. rows: the numbers of each text that the file has. which: the text of
    each example, int64 [examples]. cut: whether a text was."""

    field: SourceField
    encoder: Encoder
    rows: Ragged
    which: np.ndarray
    cut: np.ndarray

    @classmethod
    def of(cls, field: SourceField, encoder: Encoder, texts: Sequence[str], which: np.ndarray) -> Column:
        used, place = np.unique(which, return_inverse=True)
        found = list(encoder.numbers([texts[at] for at in used], field.shape[1], field.name))
        return cls(
            field, encoder, Ragged([numbers for numbers, _ in found]), place.reshape(-1),
            np.array([cut for _, cut in found], bool),
        )  # fmt: skip

    def take(self, examples: np.ndarray, block: Extent) -> np.ndarray:
        """int64 [len(examples), the block's part of the length]"""
        length = self.field.shape[1]
        taken = np.full((len(examples), length), self.encoder.pad, np.int64)
        for at, text in enumerate(self.which[examples]):
            row = self.rows.row(int(text))
            start = length - len(row) if self.encoder.left else 0
            taken[at, start : start + len(row)] = row
        return taken[:, block.slices()[1]]

    @property
    def note(self) -> str:
        """A line about the texts: how many are cut, and what of them is unknown."""
        length, unit, many = self.field.shape[1], self.encoder.unit, len(self.which)
        long = int(self.cut[self.which].sum())
        said = f"{long:,} of {many:,} texts {'is' if long == 1 else 'are'} longer than {length} {unit} and cut there"
        if not long:
            said = f"{many:,} texts, none longer than {length} {unit}"
        if self.encoder.unknown is not None:
            before = np.concatenate([[0], np.cumsum(self.rows.flat == self.encoder.unknown)])
            unknown = int(np.diff(before[self.rows.starts])[self.which].sum())
            total = int(self.rows.lengths[self.which].sum())
            said += f"; {unknown:,} of {total:,} words in them are unknown" if unknown else ""
        return f"{self.field.name}: {said}"


def encoded(
    fields: Mapping[str, tuple[SourceField, np.ndarray]], texts: Sequence[str], known: Mapping[str, Encoder], base: Path
) -> tuple[dict[str, Column], dict[str, Encoder]]:
    """The columns of the fields, each given with the text of each example, and what made their
    numbers, by the name that fields share. known: that of the training data, where this is
    `eval`."""
    encoders: dict[str, Encoder] = {}
    for name, shared in _by_name(fields).items():
        text = shared[0][0].words
        assert isinstance(text, Text)
        encoders[name] = known.get(name) or _encoder(text, (texts[at] for _, which in shared for at in which), base)
    columns = {}
    for name, (field, which) in fields.items():
        assert isinstance(field.words, Text)
        columns[name] = Column.of(field, encoders[field.words.name], texts, which)
    return columns, encoders


def _by_name(fields: Mapping[str, tuple[SourceField, np.ndarray]]) -> dict[str, list[tuple[SourceField, np.ndarray]]]:
    found: dict[str, list[tuple[SourceField, np.ndarray]]] = {}
    for field, which in fields.values():
        assert isinstance(field.words, Text)
        found.setdefault(field.words.name, []).append((field, which))
    return found


def _encoder(text: Text, texts: Iterator[str], base: Path) -> Encoder:
    if text.form == "words":
        return _Words(text, texts)
    return _Bytes(text) if text.form == "bytes" else _Tokens(text, base)
