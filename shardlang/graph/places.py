"""The paths of a graph, sorted -> those that a pattern covers, without a look at each.

patterns.py says what a pattern means; this says only which paths it need not be held against."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.hints.nearest import nearest
from shardlang.paths.patterns import RUN, matcher
from shardlang.sources.source import Span

# What of a pattern stands for nothing but itself.
_LEAD = re.compile(r"(?:[^*\[]|\[\d+\])*")
_NUMBER, _BRACKETS = re.compile(r"\[[\d-]+\]"), re.compile(r"\[[^\]]*\]")


# The most paths that the patterns of a strategy, of `train` or of a map are held against together.
MOST_LOOKED = 500_000


class PathIndex:
    """Paths by how they begin, so that a pattern is held only against those that begin as it does.

    Layers that differ in their numbers alone are tried once for all of them. looked: how many paths
    were held against patterns so far; who reads patterns ends where that is too many."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.looked = 0
        self.order = {path: at for at, path in enumerate(dict.fromkeys(paths))}
        self._paths = sorted(self.order)
        self._alike: dict[str, list[str]] = {}
        for path in self.order:
            self._alike.setdefault(_NUMBER.sub("[0]", path), []).append(path)
        self._names = sorted(self._alike)
        self._runs = any("-" in path and RUN.search(path) for path in self.order)

    def near(self, pattern: str, compiled: Callable[[str], Callable[[str], object]]) -> list[str]:
        """All paths that a pattern may cover, in order, and some others. compiled: pattern -> path
        -> whether it fits."""
        lead = _lead(pattern)
        if self._runs and "[" in lead:
            near = _beginning(self._paths, lead.partition("[")[0])
        elif "[" in lead or lead == pattern:
            near = _beginning(self._paths, lead)
        else:
            names = _beginning(self._names, _BRACKETS.sub("[0]", pattern).partition("*")[0])
            self.looked += len(names)
            if any(len(self._alike[name]) > 1 for name in names):
                names = list(filter(compiled(_BRACKETS.sub("[*]", pattern)), names))
            near = [path for name in names for path in self._alike[name]]
        self.looked += len(near)
        return sorted(near, key=self.order.__getitem__)

    def too_many(self, span: Span, sink: Sink) -> bool:
        """Whether that were too many paths; reports it (SH331) at the pattern that was the last."""
        if self.looked > MOST_LOOKED:
            sink.report(
                "SH331", f"patterns up to this one are held against more than {MOST_LOOKED:,} paths", span,
                help="let one pattern cover what many do: `blocks[*]` in place of a line for each layer",
            )  # fmt: skip
        return self.looked > MOST_LOOKED

    def covered(self, pattern: str) -> list[tuple[str, str]]:
        """Each path that a pattern covers, with the part of it that the pattern names, in order.
        SingleLayers as `matcher`."""
        near = self.near(pattern, matcher)
        if _lead(pattern) == pattern and not self._runs:
            return [(path, pattern) for path in near if path[len(pattern) :][:1] in ("", ".", "[", ":")]
        match = matcher(pattern) if near else str
        return [(path, own) for path in near if (own := match(path))]

    def nearest(self, pattern: str) -> str | None:
        """The pattern that was probably meant by one that covers nothing: it with other names,
        or a path; None where nothing is near enough."""
        names, written = _BRACKETS.sub("[0]", pattern), _BRACKETS.findall(pattern)
        near = names if names in self._alike else nearest(names, [name for name in self._names if ":" not in name])
        if near is None:
            return None
        if near.count("[0]") != len(written):
            return self._alike[near][0]
        rest = iter(written)
        meant = _NUMBER.sub(lambda _: next(rest), near)
        return meant if meant != pattern and self.covered(meant) else min(self._alike[near], key=_far_from(written))

    def by_path(self, patterns: Iterable[tuple[str, Span]], sink: Sink) -> dict[str, list[tuple[int, str]]]:
        """Each path that is covered -> the numbers of the patterns that do, ascending, and what of
        the path they name; none of the further patterns where they are too many (SH331)."""
        found: dict[str, list[tuple[int, str]]] = {}
        for number, (pattern, span) in enumerate(patterns):
            for path, own in self.covered(pattern):
                found.setdefault(path, []).append((number, own))
            if self.too_many(span, sink):
                break
        return found


def _far_from(written: Sequence[str]) -> Callable[[str], list[int]]:
    """How far the numbers of a path are from those that are written; `*` is near to all."""

    def far(path: str) -> list[int]:
        numbers = (int(number.strip("[]").rpartition("-")[2]) for number in _NUMBER.findall(path))
        given = (each.strip("[]") for each in written)
        return [abs(n - int(each)) if each.isdigit() else 0 for n, each in zip(numbers, given, strict=False)]

    return far


def _lead(pattern: str) -> str:
    """The beginning of a pattern that stands for nothing but itself."""
    found = _LEAD.match(pattern)
    return found[0] if found is not None else ""


def _beginning(ordered: Sequence[str], lead: str) -> Sequence[str]:
    """Those of sorted texts that begin so."""
    return ordered[bisect_left(ordered, lead) : bisect_left(ordered, lead + chr(0x10FFFF))]
