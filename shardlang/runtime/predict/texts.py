"""Texts -> token numbers, and back, for a model with so many tokens.

Token numbers are those that `shardc tokens` writes: of bytes, or of a tokenizer.json. Or a text is
the numbers themselves, with blanks between."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from shardlang.errors import RunError
from shardlang.runtime.data.token_files import ByteTokenizer, FromFile

BYTES, NUMBERS = "bytes", "numbers"


class Texts:
    """name: of a tokenizer, or BYTES, or NUMBERS. vocab: how many tokens may be drawn: those that
    both the model, with `rows`, and the tokenizer know. RunError where the tokenizer knows more
    than the model, or cannot be read."""

    def __init__(self, name: str, rows: int) -> None:
        self.tokenizer = None if name == NUMBERS else ByteTokenizer() if name == BYTES else FromFile(Path(name))
        self.vocab = rows if self.tokenizer is None else min(rows, self.tokenizer.vocab)
        if self.tokenizer is not None and self.tokenizer.vocab > rows:
            fact = f"`{name}` has {self.tokenizer.vocab:,} tokens, and the model has {rows:,}"
            raise RunError("SH518", fact, help="give the tokenizer that made the training data: --tokenizer FILE")

    def numbers(self, text: str, what: str = "prompt") -> list[int]:
        """The tokens of a prompt; RunError where it has none, or is no numbers below `vocab`. what:
        what it is, if no prompt."""
        if self.tokenizer is not None:
            # As `shardc tokens` reads a text: line by line, with the ends of lines.
            found = [int(n) for part in self.tokenizer.encode(io.StringIO(text, newline="\n")) for n in part]
        else:
            found = [self._number(word, what) for word in text.split()]
        if not found:
            raise RunError("SH518", f"the {what} {text!r} has no token", help=f"a {what} has one token or more")
        return found

    def _number(self, word: str, what: str) -> int:
        if not word.isascii() or not word.isdigit() or int(word) >= self.vocab:
            fact = f"the {what} has {word!r}, and a token is a number from 0 to {self.vocab - 1}"
            raise RunError("SH518", fact, help=f"--tokenizer bytes reads a {what} as text")
        return int(word)

    def end(self, text: str) -> int:
        """The token that a user names to end a text: by its number, or by itself."""
        special = self.tokenizer.special(text) if isinstance(self.tokenizer, FromFile) else None
        if special is not None:
            return special
        found = self.numbers(text, "text of --end")
        if len(found) != 1:
            fact = f"the end {text!r} is {len(found)} tokens, and one token ends a text"
            raise RunError("SH518", fact, help="name a single token, such as <|endoftext|>")
        return found[0]

    def after(self, prompt: Sequence[int], made: Sequence[int]) -> str:
        """The text that tokens add to that of a prompt."""
        if self.tokenizer is None:
            return "".join(f" {number}" for number in made)
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *made])
        # The last tokens of a prompt may be the beginning of a character.
        pairs = enumerate(zip(before, whole, strict=False))
        same = next((at for at, (one, other) in pairs if one != other), min(len(before), len(whole)))
        return whole[same:]
