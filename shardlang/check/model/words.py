"""`categories("red", "green")`, `categories(most = 1000)`, `hashed(1000)` -> how words of csv data
become numbers; `words(most = 1000)`, `tokenizer("tokenizer.json", 30522)`, `bytes()` -> how its
texts do.

Reading the words and texts of a file is the runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.check.constants import whole
from shardlang.check.context import Frame, attempted
from shardlang.check.declared import TEXTS, WORDS
from shardlang.check.model.arguments import Argument, by_name, declared_arguments, settled
from shardlang.check.values import UNKNOWN, CsvText, CsvWords, unfit
from shardlang.sources.source import Span
from shardlang.syntax import ast

# CRC-32 gives no more numbers.
_MOST_HASHED = 2**32
# The numbers of a vocabulary before its words: padding, beginning, end, unknown.
_MARKS = 4
_BYTES = 256
_EXAMPLE = '`categories("red", "green")` lists them, `categories(most = 1000)` takes those of the training file'


def numbered_words(name: str, positional: Sequence[Argument], node: ast.Call, frame: Frame) -> Any:
    """The value of a call of `categories`, of `hashed` or of one of TEXTS; UNKNOWN after a
    report."""
    if name in TEXTS:
        return _text(name, node, frame)
    if name == "hashed":
        return _hashed(positional, node, frame)
    given: dict[str, Argument] = {}
    params = {param.name: param for param in WORDS[name].params}
    if not by_name(name, node.keywords, params, given, frame):
        return UNKNOWN
    found = {named: settled(params[named], given[named], frame) for named in params if named in given}
    listed = _listed(positional, frame)
    if listed is None or UNKNOWN in found.values():
        return UNKNOWN
    if not listed and "most" not in found:
        return frame.wrong("SH235", "`categories` has no words", node.span, "no word is listed", help=_EXAMPLE)
    if listed and "most" in found:
        fact = "`categories` lists words, and has `most` too"
        return frame.wrong("SH235", fact, given["most"].span, "words are listed already", help=_EXAMPLE)
    return CsvWords(listed, found.get("most", 0), found.get("unknown", not listed))


def _listed(positional: Sequence[Argument], frame: Frame) -> tuple[str, ...] | None:
    """The words that a call lists; None after a report."""
    found: dict[str, Span] = {}
    for argument in positional:
        word = argument.evaluate(frame)
        if not isinstance(word, str):
            if word is not UNKNOWN:
                help = "a word stands in quotes; numbers are bounded by a number: `label: i64[batch] < 10`"
                unfit("a word must be a text", word, argument.span, frame.context.sink, help)
            return None
        if word != word.strip():
            fact = f'no cell is "{word}": blanks around a word do not count'
            frame.wrong("SH235", fact, argument.span, "blanks at an end", help=f'write "{word.strip()}"')
            return None
        if word in found:
            help = "each word is listed once"
            frame.context.sink.again("SH235", f'"{word}" is listed twice', argument.span, found[word], help)
            return None
        found[word] = argument.span
    return tuple(found)


def _hashed(positional: Sequence[Argument], node: ast.Call, frame: Frame) -> Any:
    if not by_name("hashed", node.keywords, (), {}, frame):
        return UNKNOWN
    if len(positional) > 1:
        fact = "`hashed` takes 1 argument"
        return frame.wrong("SH218", fact, positional[1].span, "one too many", help="write `hashed(1000)`, say")
    if not positional:
        fact = "`hashed` needs a number, below which the hashes are"
        return frame.wrong("SH221", fact, node.span, "no number", help="write `hashed(1000)`, say")
    value, span = positional[0].evaluate(frame), positional[0].span
    count = whole(value, span, frame.context.sink, "what `hashed` counts to")
    if count is UNKNOWN or 1 <= count <= _MOST_HASHED:
        return count if count is UNKNOWN else CsvWords(hashed=count)
    fact = f"`hashed` gives 1 to 2**32 numbers, and this is {count}"
    return frame.wrong("SH213", fact, span, str(count), help="write `hashed(1000)`, say")


def _text(name: str, node: ast.Call, frame: Frame) -> Any:
    """How texts become numbers: of `words`, `tokenizer` or `bytes`."""
    params = TEXTS[name].params
    found = attempted(declared_arguments, name, params, node, frame, 2 if name == "tokenizer" else 0)
    if found is None:
        return UNKNOWN
    given = {**TEXTS[name].defaults, **found}
    if name == "words":
        return CsvText(name, given["most"] + _MARKS)
    pad = given["pad"]
    if name == "bytes":
        return CsvText(name, max(_BYTES, pad + 1), pad=pad) if pad <= _BYTES else _beyond(pad, _BYTES + 1, node, frame)
    size = given["size"]
    return CsvText(name, size, given["path"], pad) if pad is None or pad < size else _beyond(pad, size, node, frame)


def _beyond(pad: int, size: int, node: ast.Call, frame: Frame) -> Any:
    span = next(each.value.span for each in node.keywords if each.name.text == "pad")
    fact = f"`pad` is {pad}, and the numbers of these texts are below {size}"
    return frame.wrong("SH237", fact, span, str(pad), help=f"a number from 0 to {size - 1}")
