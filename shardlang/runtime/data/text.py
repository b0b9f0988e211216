"""The sources of text: `tokens`, memory-mapped files of token numbers, and `parallel_text`, pairs
of sentences.

How examples are ordered and cut is in loader.py, the format of token files in token_files.py."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from shardlang.errors import RunError
from shardlang.hints.paths import instead, typed
from shardlang.runtime.data import data_files, token_files
from shardlang.runtime.data.dataset import Dataset, outside, path_of
from shardlang.runtime.program import BatchSource, Extent, SourceField
from shardlang.runtime.words import by_frequency

# The first numbers of a vocabulary.
PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<begin>", "<end>", "<unknown>")
# A word: letters and digits, or any other visible character alone.
_WORD = re.compile(r"\w+|[^\w\s]")


class Tokens:
    """Examples of seq tokens and, as label, the token after each: the runs of a file from its
    start, file after file.

    A file of n tokens gives (n - 1) // seq examples; none crosses the end of a file."""

    def __init__(self, source: BatchSource, files: Sequence[tuple[Path, np.ndarray]]) -> None:
        self.seq = source.fields[0].shape[1]
        self.files = files
        counts = [max(0, len(tokens) - 1) // self.seq for _, tokens in files]
        self.ends = np.cumsum(counts)
        self.length = int(self.ends[-1])
        total = sum(len(tokens) for _, tokens in files)
        left = total - self.length * self.seq
        if not self.length:
            longest = max(len(tokens) for _, tokens in files)
            fact = f"an example is {self.seq} tokens and the one after them; the longest file has {longest}"
            help = f"a longer text, or `seq` at most {max(1, longest - 1)}"
            raise RunError("SH502", fact, file=files[0][0], help=help)
        self.notes = [
            f"tokens: {total:,} in {len(files)} file{'s' * (len(files) != 1)}, {self.length:,} examples of "
            f"{self.seq}; {left:,} tokens at the ends of files are in none"
        ]

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        first, width = block.offsets[1] + (field.name == "label"), block.shape[1]
        taken = np.empty((len(examples), width), np.int64)
        for row, example in enumerate(examples):
            at = int(np.searchsorted(self.ends, example, side="right"))
            path, tokens = self.files[at]
            start = (int(example) - (int(self.ends[at - 1]) if at else 0)) * self.seq + first
            taken[row] = tokens[start : start + width]
            broken = outside(field, taken[row])
            if broken is not None:
                place = start + int(np.argmax(broken))
                fact = f"token {place} is {int(tokens[place])}, and `{field.name}` must be below {field.bound}"
                help = "the model's vocabulary must be that of the tokenizer that made the file"
                raise RunError("SH502", fact, file=path, help=help)
        return taken


def read_tokens(source: BatchSource, base: Path, like: Dataset | None = None) -> Tokens:
    """tokens("data/*.bin", seq = seq): the files that match, in the order of their names."""
    pattern = str(path_of(source, Path()))
    # Only the pattern is one: the folder's own name may hold brackets.
    paths = sorted(base / found for found in glob.glob(pattern, root_dir=base))
    if not paths:
        made = base / pattern.replace("*", "text")
        help = instead(base / pattern, f"make one from text: shardc tokens TEXT -o {typed(made)}")
        raise RunError("SH502", "no token file is there", file=base / pattern, help=help)
    return Tokens(source, [(path, token_files.mapped(path, source.arguments.get("dtype"))) for path in paths])


class TextVocabulary:
    """Words and their numbers: `SPECIAL`, then words by frequency (equal ones alphabetically)."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.numbers = {word: number for number, word in enumerate((*SPECIAL, *words))}

    @classmethod
    def built(cls, sentences: Iterator[str], limit: int | None) -> TextVocabulary:
        """From text; words beyond `limit` numbers are unknown."""
        counts = Counter(word for sentence in sentences for word in _WORD.findall(sentence))
        words = by_frequency(counts)
        return cls(words if limit is None else words[: max(0, limit - len(SPECIAL))])

    @classmethod
    def read(cls, path: Path, limit: int | None) -> TextVocabulary:
        """A word a line, the first of number 4."""
        words = data_files.text(path).removesuffix("\n").split("\n")
        seen: dict[str, int] = {}
        for line, word in enumerate(words, 1):
            if not word.strip() or word in seen or word in SPECIAL:
                what = f"the word `{word}` stands on line {seen[word]} too" if word in seen else "a line is no word"
                raise RunError("SH502", what, file=path, line=line)
            seen[word] = line
        due = len(words) + len(SPECIAL)
        if limit is not None and due > limit:
            fact = f"{len(words)} words and {len(SPECIAL)} marks need {due} numbers, and the model has {limit}"
            raise RunError("SH502", fact, file=path, help=f"a vocabulary of {due} or more rows")
        return cls(words)

    def encode(self, sentence: str) -> list[int]:
        return [self.numbers.get(word, UNKNOWN) for word in _WORD.findall(sentence)]


class Ragged:
    """Lists of numbers end to end: int32 [total], and where each begins."""

    def __init__(self, rows: Sequence[Sequence[int] | np.ndarray]) -> None:
        self.lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.flat = np.concatenate([np.asarray(row, np.int32) for row in ((), *rows)])

    def row(self, at: int) -> np.ndarray:
        return self.flat[self.starts[at] : self.starts[at + 1]]


class Pairs:
    """Sentence pairs. source: its words and END. target: BEGIN and words; label: words and END."""

    def __init__(self, source: BatchSource, path: Path, pairs: Sequence[tuple[str, str]],
                 vocabularies: tuple[TextVocabulary, TextVocabulary]) -> None:  # fmt: skip
        self.vocabularies, self.length = vocabularies, len(pairs)
        self.sides = tuple(Ragged([v.encode(pair[i]) for pair in pairs]) for i, v in enumerate(vocabularies))
        widths = {field.name: field.shape[1] for field in source.fields}
        sides = (self._note(name, side, widths[name]) for side, name in enumerate(("source", "target")))
        self.notes = [f"{path.name}: {self.length:,} pairs", *sides]

    def _note(self, name: str, side: int, width: int) -> str:
        """The words of a side that are cut or unknown."""
        rows, words = self.sides[side], len(self.vocabularies[side].words)
        unknown = int((rows.flat == UNKNOWN).sum())
        long = int((rows.lengths + 1 > width).sum())
        longer = "sentence is" if long == 1 else "sentences are"
        cut = f"; {long:,} {longer} longer than {width - 1} words and cut there" if long else ""
        share = f"; {unknown:,} of {len(rows.flat):,} words in the text are unknown" if unknown else ""
        return f"{name}: a vocabulary of {words:,} words{share}{cut}"

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        taken = np.full((len(examples), field.shape[1]), PAD, np.int64)
        rows = self.sides[0 if field.name == "source" else 1]
        for at, example in enumerate(examples):
            words = rows.row(int(example))
            marked = ([BEGIN, *words] if field.name == "target" else [*words, END])[: field.shape[1]]
            taken[at, : len(marked)] = marked
        return taken[:, block.slices()[1]]


def _pairs(path: Path) -> list[tuple[str, str]]:
    """The lines of a file, each two sentences with a tab between; lines of no text are left out."""
    pairs = []
    for number, line in enumerate(data_files.text(path).split("\n"), 1):
        if not line.strip():
            continue
        parts = line.split("\t")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            what = "a side is empty" if len(parts) == 2 else f"it has {len(parts) - 1} tabs"
            fact, help = f"the line is no pair of sentences: {what}", "a pair is two sentences with one tab between"
            raise RunError("SH502", fact, file=path, line=number, help=help)
        pairs.append((parts[0], parts[1]))
    if not pairs:
        raise RunError("SH502", "the file has no pair of sentences", file=path)
    return pairs


def read_parallel(source: BatchSource, base: Path, like: Dataset | None = None) -> Pairs:
    """parallel_text("fr_en.txt", src = src, tgt = tgt): vocabularies are read where given, else
    those of the training data where this is `eval`, else built from the file."""
    path = path_of(source, base)
    pairs = _pairs(path)
    bounds = {field.name: field.bound for field in source.fields}
    targets = [bound for name, bound in bounds.items() if name != "source" and bound is not None]
    limits = (bounds.get("source"), min(targets) if targets else None)
    found = [_vocabulary(source, base, side, limits[side], pairs, like) for side in (0, 1)]
    return Pairs(source, path, pairs, (found[0], found[1]))


def _vocabulary(source: BatchSource, base: Path, side: int, limit: int | None, pairs: Sequence[tuple[str, str]],
                like: Dataset | None) -> TextVocabulary:  # fmt: skip
    given = source.arguments.get(("source_vocab", "target_vocab")[side])
    if given is not None:
        return TextVocabulary.read(base / str(given), limit)
    if isinstance(like, Pairs):
        return like.vocabularies[side]
    return TextVocabulary.built((pair[side] for pair in pairs), limit)
