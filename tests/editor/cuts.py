"""Of how many tokens of a program completion offers the text, where they are cut out of it: by what they are.

`python -m tests.editor.cuts [--step N]` prints the figures of examples, library and pages, and the misses.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardlang.check.model.forward import UNUSED
from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.complete import complete
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.scopes import NameRole
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from shardlang.syntax.tables import tables
from shardlang.syntax.tokens import TokenStream
from tests.editor import texts

_NUMBER, _WORD = re.compile(r"[0-9._]*(?:[eE][-+]?[0-9]+)?"), re.compile(r'"?\w+"?')
# What nothing declares: fresh where no table has it.
_FREE = (NameRole.VALUE, NameRole.FUNCTION, NameRole.SELECTOR, NameRole.LAYER, NameRole.DIM, NameRole.AXIS)


@dataclass(frozen=True)
class Cut:
    """A token that is offered, or should be: its place in a text, and what it is."""

    source: Source
    start: int
    end: int
    role: str

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    def texts(self) -> Iterator[str]:
        """The text without the token; and without the rest of its line too."""
        before, after = self.source.text[: self.start], self.source.text[self.end :]
        yield before + after
        yield before + "\n" * ("\n" in after) + after.partition("\n")[2]


@dataclass
class Counted:
    """Cuts by what they are, and those of them that were not offered."""

    all: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    by_role: Counter[str] = field(default_factory=Counter)

    def add(self, cut: Cut) -> None:
        for way, text in zip(("kept", "removed"), cut.texts(), strict=True):
            self.all[cut.role] += 1
            if cut.text not in offered(Source(cut.source.name, text), cut.start):
                line = cut.source.text[: cut.start].rpartition("\n")[2] + "^" + cut.source.text[cut.start :]
                place = "/".join(cut.source.name.split("/")[-2:])
                self.missing.append(f"{cut.role:10} {way:8} {place}: {line.partition(chr(10))[0].strip()}")
                self.by_role[cut.role] += 1

    @property
    def share(self) -> float:
        return 1 - len(self.missing) / self.all.total()


def offered(source: Source, offset: int) -> set[str]:
    """What is offered, and the first words of it."""
    found = complete(texts.table(source), offset, texts.beside(source).load)
    words = {word[0] for offer in found if (word := _WORD.match(offer.label))}
    return words | {offer.label for offer in found}


def cuts(source: Source) -> Iterator[Cut]:
    """The tokens of a text that are no fresh name, number or text."""
    table, sink = texts.table(source), Sink()
    parse(source, sink)
    mistaken = {
        at for each in sink.found if each.primary for at in range(each.primary.span.start, each.primary.span.end + 1)
    }
    for kind, start, end in TokenStream(source, tables()):
        role = _role(table, kind, start, source.text[start:end])
        if kind == "NUMBER" and role:
            start = _NUMBER.match(source.text, start).end()  # type: ignore[union-attr]
        if role and start not in mistaken:
            yield Cut(source, start, end, role)


def _role(table: NameTable, kind: str, start: int, text: str) -> str:
    use = table.at(start + 1) if text.isidentifier() and text != UNUSED else None
    if use is not None and use.span.start <= start < use.span.end:
        fresh = use.declares or (use.declared is None and use.role in _FREE)
        return "" if fresh else use.role.value
    if kind in tables().keywords.values():
        return "keyword"
    if kind == "NUMBER" and _NUMBER.fullmatch(text) is None:
        return "unit"
    return ""


def counted(sources: Iterable[Source], step: int = 1) -> Counted:
    found = Counted()
    for source in sources:
        for cut in list(cuts(source))[::step]:
            found.add(cut)
    return found


if __name__ == "__main__":
    step = int(sys.argv[2]) if sys.argv[1:2] == ["--step"] else 1
    for name, sources in (("examples and library", texts.files()), ("pages", texts.pages())):
        made = counted(sources, step)
        print(f"\n{name}: {made.all.total()} cuts, {100 * made.share:.2f} % offered")
        for role, count in made.all.most_common():
            print(f"  {role:14} {count:6} {100 * (1 - made.by_role[role] / count):7.2f} %")
        print("\n".join(made.missing))
