"""Words of csv data -> their numbers, by a list, by how often they occur, or by their hash. And
what says how its texts become numbers.

Reading the words is left to data/csv_columns.py, texts to data/csv_text.py."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlang.errors import RunError


@dataclass(frozen=True)
class Words:
    """A vocabulary, which fields share by its name: the words that are listed, in their order, or
    (`most`) so many of the most frequent ones; `unknown`: every other word is the number after the
    last. Or CRC-32 of a word in UTF-8, modulo `hashed`."""

    name: str
    listed: tuple[str, ...] = ()
    most: int = 0
    unknown: bool = False
    hashed: int = 0


@dataclass(frozen=True)
class Text:
    """How texts become numbers below `size`, which fields share by its name. `form` "words": the
    most frequent ones; "bytes"; "tokenizer": of the file `path`. pad: what fills texts up; None
    where it is the tokenizer's own."""

    name: str
    form: str
    size: int
    path: str = ""
    pad: int | None = None


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a number of their own, by that number."""

    words: Words
    known: tuple[str, ...]

    @classmethod
    def of(cls, words: Words, counts: Mapping[str, int]) -> Vocabulary:
        """counts: how often each word of the data occurs."""
        return cls(words, tuple(by_frequency(counts)[: words.most]) if words.most else words.listed)

    def numbers(self, words: Sequence[str]) -> list[int]:
        """The number of each word, -1 where it has none."""
        if self.words.hashed:
            return [zlib.crc32(word.encode()) % self.words.hashed for word in words]
        other = (len(self.known) if self.words.listed else self.words.most) if self.words.unknown else -1
        numbers = {word: number for number, word in enumerate(self.known)}
        return [numbers.get(word, other) for word in words]

    @property
    def told(self) -> str:
        """A text for a checkpoint, which differs where the numbers of words do."""
        if self.words.hashed:
            return f"hashed to {self.words.hashed}"
        other = " and unknown" if self.words.unknown else ""
        return f"{len(self.known)} words{other} ({checksum(self.known)})"


def checksum(words: Sequence[str]) -> str:
    """A text that differs where words do."""
    return f"checksum {zlib.crc32(json.dumps(words).encode()):08x}"


def vocabulary_note(name: str, words: Sequence[str]) -> str:
    """A line about words that were made of the training data."""
    begin = ", ".join(map(repr, words[:4])) + ", ..." * (len(words) > 4)
    return f"{name}: a vocabulary of {len(words):,} words: {begin}"


def by_frequency(counts: Mapping[str, int]) -> list[str]:
    """Words, the most frequent first; equally frequent ones are ordered by their code points."""
    return sorted(counts, key=lambda word: (-counts[word], word))


def require_same(here: Mapping[str, str], there: Any, what: str, file: Any) -> None:
    """RunError SH508 where words of a field had other numbers in training, as `what` records."""
    if not isinstance(there, dict) or here == there:
        return
    name = next(name for name in dict.fromkeys([*here, *there]) if here.get(name) != there.get(name))
    mine, theirs = here.get(name, "numbers"), there.get(name, "numbers")
    fact = f"the words of `{name}` have other numbers than in training: it is read as {mine}, and {what} with {theirs}"
    help = "train with the same words: keep the training file as it was, or list them in `categories(..)`"
    raise RunError("SH508", fact, file=file, help=help)
