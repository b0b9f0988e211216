"""Diagnostics -> the same; a mistake of many layers of an array is one, of `blocks[0..6]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from shardlang.diagnostics.diagnostic import Diagnostic, Label
from shardlang.paths.patterns import span

_INDEX = re.compile(r"(?<=\w)\[(\d+)\]")


def in_runs(found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Diagnostics of neighbours that differ only in the index of a layer, as one, at the first."""
    alike: dict[object, list[Diagnostic]] = {}
    for diagnostic in found:
        alike.setdefault(_without_indexes(diagnostic), []).append(diagnostic)
    return [each for group in alike.values() for each in _run(group)]


def _texts(diagnostic: Diagnostic) -> list[str]:
    labels = [label.text for label in (diagnostic.primary, *diagnostic.labels) if label is not None]
    return [diagnostic.message, *diagnostic.notes, *diagnostic.help, *labels]


def _without_indexes(diagnostic: Diagnostic) -> object:
    """A key that is equal for diagnostics that may be one: all but the indexes."""
    spans = [label.span for label in (diagnostic.primary, *diagnostic.labels) if label is not None]
    texts = tuple(_INDEX.sub("[]", text) for text in _texts(diagnostic))
    return diagnostic.code, diagnostic.severity, tuple(spans), len(diagnostic.notes), texts


def _run(group: list[Diagnostic]) -> list[Diagnostic]:
    """One for all of a group if each differing index counts up by one; else they stay."""
    columns = list(zip(*([int(i) for text in _texts(d) for i in _INDEX.findall(text)] for d in group), strict=True))
    if len(group) == 1 or any(len(set(c)) > 1 and c != tuple(range(c[0], c[0] + len(c))) for c in columns):
        return group
    ranges = iter([span(c[0], c[-1] + 1) for c in columns])

    def text(written: str) -> str:
        return _INDEX.sub(lambda _: next(ranges), written)

    one = group[0]
    message, notes, help = text(one.message), tuple(map(text, one.notes)), tuple(map(text, one.help))
    primary = Label(one.primary.span, text(one.primary.text)) if one.primary is not None else None
    labels = tuple(Label(label.span, text(label.text)) for label in one.labels)
    return [replace(one, message=message, primary=primary, labels=labels, notes=notes, help=help)]
