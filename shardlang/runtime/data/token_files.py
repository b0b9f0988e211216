"""Files of token numbers: how they are written from text, and how they are mapped to be read.

A file is a header of 24 bytes (`MAGIC`, version, bytes a token, tokens; little endian) and the
tokens, 2 or 4 bytes each. A file without the header is taken as tokens alone, as nanoGPT and others
write them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardlang.disk.locks import Claims, drafted
from shardlang.disk.overwrite_guard import TOKENS, TOKENS_MARK
from shardlang.errors import RunError
from shardlang.hints.paths import typed
from shardlang.runtime.data import data_files

MAGIC, VERSION = TOKENS_MARK, 1
_HEADER = struct.Struct("<8sIIQ")
WIDTHS: dict[str, np.dtype[Any]] = {"u16": np.dtype("<u2"), "u32": np.dtype("<u4")}
# What tokenizers call the token that fills texts up.
_PADS = ("[PAD]", "<pad>", "<|pad|>")
# So many whole texts become tokens at once.
_TEXTS = 1024
# How much of a file is looked at, and the bytes of plain text.
_HEAD, _TEXT = 256, frozenset(b"\t\n\r" + bytes(range(32, 127)))


class Tokenizer(Protocol):
    """Text to token numbers from 0 to vocab - 1."""

    vocab: int

    def encode(self, text: Iterator[str]) -> Iterator[np.ndarray]:
        """uint32 arrays that together are the tokens of the text, line by line (ends kept)."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; what is no whole character of UTF-8 becomes U+FFFD."""


class ByteTokenizer:
    """Each byte of the text in UTF-8 is a token."""

    vocab = 256

    def encode(self, text: Iterator[str]) -> Iterator[np.ndarray]:
        for line in text:
            yield np.frombuffer(line.encode(), np.uint8).astype(np.uint32)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class FromFile:
    """A tokenizer.json of the `tokenizers` library."""

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ModuleNotFoundError:
            fact = "a tokenizer file needs the library tokenizers"
            raise RunError("SH502", fact, help="pip install tokenizers") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for whatever is wrong with the file
            raise RunError("SH502", f"the tokenizer cannot be read: {error}", file=path) from None
        self._path = path
        # The file may say to which length the library cuts and fills texts; a use has its own.
        self._cut, self._filled = self._tokenizer.truncation or {}, self._tokenizer.padding or {}
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Numbers may be left out, so there may be fewer tokens than the greatest says.
        self.vocab = 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: Iterator[str]) -> Iterator[np.ndarray]:
        for line in text:
            with self._reading(line):
                found = self._tokenizer.encode(line, add_special_tokens=False).ids
            yield np.asarray(found, np.uint32)

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode([*tokens], skip_special_tokens=False)
        return text

    def special(self, text: str) -> int | None:
        """The number of the token that is called so, if there is one."""
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    @property
    def marks(self) -> int:
        """How many tokens of its own it gives to a whole text."""
        found: int = self._tokenizer.num_special_tokens_to_add(False)
        return found

    @property
    def padding(self) -> tuple[int | None, bool]:
        """The number that fills whole texts up, as the file says or by a usual name; whether they
        are filled up at the left."""
        usual = (at for at in map(self.special, _PADS) if at is not None)
        return self._filled.get("pad_id", next(usual, None)), self._filled.get("direction") == "left"

    def whole(self, texts: Sequence[str], length: int) -> Iterator[tuple[np.ndarray, bool]]:
        """The tokens of each text, int32, with the tokenizer's own marks, at most `length`, which
        is more than `marks`; whether it was cut. The file says on which side."""
        self._tokenizer.enable_truncation(length, direction=self._cut.get("direction", "right"))
        for start in range(0, len(texts), _TEXTS):
            some = texts[start : start + _TEXTS]
            try:
                batch = self._tokenizer.encode_batch(some)
            except Exception:  # one by one they show which it is
                for text in some:
                    with self._reading(text):
                        self._tokenizer.encode(text)
                raise
            for found in batch:
                yield np.asarray(found.ids, np.int32), bool(found.overflowing)
        self._tokenizer.no_truncation()

    @contextmanager
    def _reading(self, text: str) -> Iterator[None]:
        """RunError where the library gives a text no tokens, as one without a token for what it
        does not know."""
        try:
            yield
        except Exception as error:  # the library raises plain Exception
            shown = repr(text if len(text) < 60 else f"{text[:50]}...")
            raise RunError("SH502", f"the tokenizer fails at the text {shown}: {error}", file=self._path) from None


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        head = data_files.head(path, 3)
        start = len(data_files.BOM) if head == data_files.BOM else 0
        with data_files.reading(path), (gzip.open if head.startswith(data_files.GZIP) else open)(path, "rb") as file:
            file.seek(start)
            for number, line in enumerate(file, 1):
                yield data_files.decoded(path, line, number)


def write(texts: Iterable[Path], to: Path, tokenizer: Tokenizer) -> int:
    """Writes the tokens of texts, in turn, to a file that appears when it is whole; how many."""
    kind, count = WIDTHS["u16" if tokenizer.vocab <= 1 << 16 else "u32"], 0
    with Claims() as claims, drafted(claims.file(to, TOKENS), "the tokens", "SH502") as file:
        file.write(_HEADER.pack(MAGIC, VERSION, kind.itemsize, 0))
        for tokens in tokenizer.encode(_lines(texts)):
            file.write(tokens.astype(kind).tobytes())
            count += len(tokens)
        file.seek(0)
        file.write(_HEADER.pack(MAGIC, VERSION, kind.itemsize, count))
    return count


def mapped(path: Path, width: str | None) -> np.ndarray:
    """The tokens of a file, mapped read-only. `width` ("u16", "u32"): if it has no header."""
    head = data_files.head(path, _HEAD)
    size = path.stat().st_size
    if head[:8] != MAGIC:
        _require_tokens(path, head)
        return _map(path, size, WIDTHS[width or "u16"], 0)
    if len(head) < _HEADER.size:
        raise RunError("SH502", f"the file ends within its header, after {size} bytes", file=path)
    _, version, each, count = _HEADER.unpack_from(head)
    kinds = {kind.itemsize: kind for kind in WIDTHS.values()}
    if version != VERSION or each not in kinds:
        raise RunError("SH502", f"version {version} with {each} bytes a token is not known", file=path)
    if size != _HEADER.size + count * each:
        raise RunError("SH502", f"the header says {count} tokens of {each} bytes; the file has {size} bytes", file=path)
    return _map(path, size, kinds[each], _HEADER.size)


def _require_tokens(path: Path, head: bytes) -> None:
    """Whether a file without a header may be tokens: text and packed files are mistaken for it."""
    data_files.require_unpacked(path, head, "tokens")
    if head.startswith(b"\x93NUMPY") or (len(head) > 15 and all(byte in _TEXT for byte in head)):
        what, help = "a numpy array", 'numpy.load(NAME).astype("uint16").tofile("tokens.bin") makes a file of tokens'
        if not head.startswith(b"\x93"):
            made = typed(path.with_suffix(".bin"))
            what, help = "text", f"make one of tokens from it: shardc tokens {typed(path)} -o {made}"
        raise RunError("SH502", f"the file holds {what}, where tokens are due", file=path, help=help)


def _map(path: Path, size: int, kind: np.dtype, offset: int) -> np.ndarray:
    if (size - offset) % kind.itemsize:
        raise RunError("SH502", f"{size - offset} bytes are no whole number of {kind.itemsize}-byte tokens", file=path)
    if size == offset:
        return np.empty(0, kind)
    return np.memmap(path, kind, "r", offset)
