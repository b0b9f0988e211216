"""The text that mistakes of syntax keep out of the trees -> which further mistakes follow from it:
a name that it may declare, something that it may have.

Which text that is, is the parser's."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span
from shardlang.syntax import ast

_WORD = re.compile(r"[^\W\d]\w*")
_LAST = re.compile(r"([^\W\d]\w*)\s*(?:\n|$)")
_SIGN = re.compile(r"[^\w\s.,:=\[\](){}]")
_COMMENT = re.compile(r"#[^\n]*")
# Mistakes in a name that nobody declares: it comes first at their place.
_UNKNOWN = frozenset(("SH200", "SH202", "SH223", "SH235", "SH236", "SH239", "SH250", "SH306"))
# The same, where any name at their place may be the one.
_UNKNOWN_AMONG = frozenset(("SH237", "SH307", "SH308", "SH319", "SH324", "SH329", "SH411", "SH420"))
# Something that is not there, of the item that they are in, or of `train` and models.
_MISSING = frozenset(("SH207", "SH610"))
# What another rule of the strategy may mend: the mesh, the stages, one that is more specific.
_MENDED = frozenset((
    "SH303", "SH305", "SH309", "SH311", "SH315", "SH316", "SH318", "SH322", "SH410", "SH421", "SH422", "SH423", "SH424",
    "SH425", "SH440", "SH442", "SH443",
))  # fmt: skip
_MISSING_SOMEWHERE = frozenset(("SH226", "SH233", "SH238"))
# Statements that declare any number of names, or whose first word is just being written.
_LISTS = re.compile(r"(?:use|dim|mesh)\b|\w+\s*(?:\n|$)")
_BESIDE = ast.Strategy | ast.Hardware


@dataclass(frozen=True)
class Lost:
    """A text that is lost, its words, and the item that has the rest; None where nothing is
    left."""

    text: str
    words: frozenset[str]
    item: ast.Item | None

    def of(self, place: Span) -> bool:
        """Whether a place is in the item."""
        return self.item is not None and within(place, self.item.span)

    def declares(self, name: str, near: bool) -> bool:
        """Whether it may declare a name: it has it, also with a wrong sign within, or its beginning
        at the end of its first line, or it may go on with any names. near: there is another name
        that was probably meant."""
        begun = _LAST.search(self.text)
        starts = begun is not None and name.startswith(begun[1])
        squashed = name in _SIGN.sub("", self.text)
        return name in self.words or starts or squashed or (not near and _LISTS.match(self.text) is not None)


def within(place: Span, item: Span) -> bool:
    return item.source is place.source and item.start <= place.start < item.end


def lost_texts(files: Iterable[ast.File]) -> tuple[Lost, ...]:
    """All that is lost of some files."""
    found = []
    for file in files:
        for span in file.lost:
            text = _COMMENT.sub("", span.text).strip()
            words = frozenset(_WORD.findall(text))
            found.append(Lost(text, words, next((item for item in file.items if within(span, item.span)), None)))
    return tuple(found)


def follows(mistake: Diagnostic, lost: tuple[Lost, ...]) -> bool:
    """Whether a mistake may be there because of lost text alone."""
    if not lost or mistake.primary is None:
        return bool(lost) and mistake.code == "SH224"  # `--set` of what is not there
    code, place = mistake.code, mistake.primary.span
    if code in _UNKNOWN or code in _UNKNOWN_AMONG:
        names = _WORD.findall(place.text)[: None if code in _UNKNOWN_AMONG else 1]
        near = any(help.startswith("did you mean") for help in mistake.help)
        seen = [each for each in lost if each.item is None or each.of(place) or _selected(each, code, place)]
        return any(each.declares(name, near) for each in seen for name in names)
    if code == "SH221" and any(isinstance(each.item, ast.Train) and each.of(place) for each in lost):
        return True  # what it lacks may stand in a more general setting
    if code == "SH231":
        return any(each.of(place) and each.item is not None and place == each.item.span for each in lost)
    if code in _MISSING or code in _MENDED:
        return any(each.of(place) for each in lost)
    return code in _MISSING_SOMEWHERE and any(not isinstance(each.item, _BESIDE) for each in lost)


def _selected(lost: Lost, code: str, place: Span) -> bool:
    """Whether what is lost may be named by the rules of a strategy, or as a part: `model.h`."""
    part = code == "SH200" and place.source.text[place.start - 1] == "."
    return (part or code in ("SH307", "SH308")) and not isinstance(lost.item, ast.Strategy)


def without_following(found: Sink, lost: tuple[Lost, ...], sink: Sink) -> None:
    """Tells the mistakes that do not follow from lost text."""
    for mistake in found.found:
        if not follows(mistake, lost):
            sink.add(mistake)
