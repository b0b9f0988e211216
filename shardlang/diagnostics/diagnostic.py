"""A diagnostic as a value, and the sink that passes report to. Others render it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from enum import Enum
from itertools import islice

from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


ORDER = tuple(Severity)  # the most severe first
# So many diagnostics are shown.
SHOWN = 100


@dataclass(frozen=True, slots=True)
class Label:
    """A place and what is to be said about it (may be empty)."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: a stable code, the fact with the user's names and numbers, places, and text to
    type.

    `primary` is None only for mistakes outside of any file (a command-line override, say)."""

    code: str
    message: str
    primary: Label | None = None
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR


_QUOTE = re.compile(r"`[^`]*`")
_LONGEST_QUOTE, _LONGEST = 120, 600
# One of more than 120 characters: its first 80 and its last 30.
_LONG_QUOTE = re.compile(r"(`[^`]{80})[^`]{11,}([^`]{30}`)")


def bounded(text: str, one_line: bool = False) -> str:
    """A text of at most some 600 characters: long quotes of a program lose their middle, and
    further text its end.

    With `one_line` what a program has on several lines is quoted in one."""
    if one_line and "\n" in text:
        text = _QUOTE.sub(lambda quote: re.sub(r"\s*\n\s*", " ", quote.group()), text)
    if len(text) > _LONGEST_QUOTE:
        text = _LONG_QUOTE.sub(r"\1...\2", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class InternalError(Exception):
    """A fault of ours: the message says which invariant did not hold. Shown to users as SH900."""


@dataclass
class Sink:
    """Collects diagnostics; the same mistake (code, place, message) is kept once, as what is most
    severe.

    callers: the user's own places that lead to what is looked at now: of a mistake in a library
    they are shown too."""

    found: list[Diagnostic] = field(default_factory=list)
    callers: tuple[tuple[Span, str], ...] = ()
    _seen: dict[tuple[str, int, int, str, str], Diagnostic] = field(default_factory=dict)

    def placed(self, span: Span) -> Span:
        """A place that knows its callers, for mistakes that are found later."""
        return replace(span, callers=self.callers) if span.source.library and not span.callers else span

    @contextmanager
    def called(self, made: Span | None, called: Span | None) -> Iterator[None]:
        """Enters a layer declared at `made`, or a call at `called`, and remembers these places."""
        before = self.callers
        there = () if made is None else made.callers if made.source.library else ((made, "the layer is declared here"),)
        calls = before[-1:] if called is not None and called.source.library else ((called, "called here"),)
        self.callers = there if called is None else (*there, *calls)
        yield
        self.callers = before

    def report(
        self, code: str, message: str, span: Span | None, label: str = "", *, labels: Iterable[tuple[Span, str]] = (),
        notes: Sequence[str] = (), help: Sequence[str] | str | Callable[[], str] = (),
        severity: Severity = Severity.ERROR,
    ) -> None:  # fmt: skip
        """Report one mistake at `span`; `label` is written under it, `labels` at further places.

        A help that takes time to find, such as the nearest name, is a function: it is called only
        where the mistake may be among those that are shown."""
        key = (code, span.start, span.end, span.source.name, message) if span else (code, -1, -1, "", message)
        before = self._seen.get(key)
        if before is not None:
            if ORDER.index(before.severity) <= ORDER.index(severity):
                return
            self.found[:] = [d for d in self.found if d is not before]
        if callable(help):
            help = help() if self._may_show(severity) else ""
        helps, labels = (help,) if isinstance(help, str) else help, list(labels)
        if span is not None:
            span, shown = self.placed(span), {at for at, _ in labels}
            labels += [caller for caller in span.callers if caller[0] not in shown]
        primary = Label(span, bounded(label, True)) if span else None
        places = tuple(Label(s, bounded(t, True)) for s, t in labels)
        texts = tuple(map(bounded, notes)), tuple(bounded(text) for text in helps if text)
        self._seen[key] = Diagnostic(code, bounded(message, True), primary, places, *texts, severity)
        self.found.append(self._seen[key])

    def _may_show(self, severity: Severity) -> bool:
        """Whether the next mistake, if it is so severe, may be among those that are shown."""
        before = (d for d in self.found if ORDER.index(d.severity) <= ORDER.index(severity))
        return len(list(islice(before, SHOWN))) < SHOWN

    def again(self, code: str, message: str, span: Span, first: Span, help: str = "") -> None:
        """Report what is there already, at `first`."""
        self.report(code, message, span, "again here", labels=[(first, "first here")], help=help)

    def add(self, diagnostic: Diagnostic) -> None:
        """Report a diagnostic made elsewhere."""
        first, labels = diagnostic.primary, [(label.span, label.text) for label in diagnostic.labels]
        self.report(
            diagnostic.code, diagnostic.message, first.span if first else None, first.text if first else "",
            labels=labels, notes=diagnostic.notes, help=diagnostic.help, severity=diagnostic.severity,
        )  # fmt: skip

    @property
    def failed(self) -> bool:
        return any(d.severity is Severity.ERROR for d in self.found)
