"""Paths that stand for several: `**.bias`, `encoder.blocks[0..6]`.

`*` is any name or part of one, `**` any number of parts, `[*]` any index, `[0..6]` the indexes 0 to
5. The compiler reads what users write so, and the runtime what the compiler wrote.

In the graph a run of equal layers may be told once: `blocks[3-123]` is the place of 120 of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

_PART = re.compile(r"([^.\[\]]+)(?:\[([^\]]*)\])?")
_RANGE = re.compile(r"\[(\d+)\.\.(\d+)\]")
_NUMBERED = re.compile(r"\[(\d+)(?:\.\.(\d+))?\]")
_PARTS = r"(?:[^.]+\.)*"
_ANY = ("**", "")
# How many `**` of a pattern are tried at all places.
_MANY = 3
RUN = re.compile(r"\[(\d+)-(\d+)\]")
_SEVERAL = re.compile(r"\[(\d+)(?:-|\.\.)(\d+)\]")


R = TypeVar("R")
# What is reported alike whether runs of equal layers are told once or not.
TOLD_ONCE = ("SH450",)
# So often runs are cut: each time all of the work is done again.
MOST_CUTS = 6
# Array of layers -> the numbers of its layers that a run begins or ends at.
Cuts = Mapping[str, frozenset[int]]


class SingleLayers(Exception):
    """Raised where something depends on single layers of a run that is told once. cuts: where runs
    are to be cut for that; without any each layer is to be told."""

    def __init__(self, cuts: Cuts | None = None) -> None:
        super().__init__()
        self.cuts = cuts or {}


def cut_as_asked(work: Callable[[Cuts], R], cuts: Cuts | None = None) -> R | None:
    """The outcome of `work` with runs that are cut where it asks for single layers; None where no
    cuts are enough, or it asks too often. cuts: those that it is known to ask for."""
    cuts = cuts or {}
    for _ in range(MOST_CUTS):
        try:
            return work(cuts)
        except SingleLayers as asked:
            more = {array: cuts.get(array, frozenset()) | at for array, at in asked.cuts.items()}
            if all(cuts.get(array) == at for array, at in more.items()):
                return None
            cuts = {**cuts, **more}
    return None


def indexes(index: str) -> range:
    """The layers of an index of a path: `3`, `3-123` of a run, or `3..123` of a range."""
    first, _, end = index.replace("..", "-").partition("-")
    return range(int(first), int(end or int(first) + 1))


def count(path: str) -> int:
    """How many places a path stands for: those of the runs and the ranges in it."""
    several = _SEVERAL.findall(path) if "-" in path or ".." in path else ()
    return math.prod(int(end) - int(first) for first, end in several)


def places(path: str) -> list[str]:
    """The places that a path stands for, in order."""
    return expanded(RUN.sub(r"[\1..\2]", path)) if "-" in path else [path]


def in_turn(path: str, turn: int) -> str:
    """The place of one layer of the run that a path is in; the path itself where it is in none."""
    return RUN.sub(lambda run: f"[{int(run[1]) + turn}]", path) if "-" in path else path


def last_of_run(path: str) -> str:
    """The place of the last layer of the runs that a path is in."""
    return RUN.sub(lambda run: f"[{int(run[2]) - 1}]", path) if "-" in path else path


def matcher(pattern: str) -> Callable[[str], str]:
    """Path -> the part of it, from its beginning, that `pattern` names; "" where it does not cover
    the path. A pattern covers all that is below what it names. SingleLayers where it names some
    layers of a run, and not others."""
    parts = _PART.findall(pattern)
    wanted = [range(int(start), int(end or int(start) + 1)) for start, end in _NUMBERED.findall(pattern)]
    expression = _whole(parts)
    compiled = re.compile(rf"({expression})(?:$|[.\[:])")

    def match(path: str) -> str:
        found = compiled.match(path)
        if found is None:
            return ""
        own, *numbers = found.groups()
        layers = [indexes(each) for each in numbers]
        both = list(zip(wanted, layers, strict=True))
        if any(each.start >= some.stop or each.stop <= some.start for some, each in both):
            return ""
        parted = [at for at, (some, each) in enumerate(both) if each.start < some.start or each.stop > some.stop]
        if parted:
            arrays = ((path[: found.start(at + 2) - 1], wanted[at]) for at in parted)
            raise SingleLayers({array: frozenset((some.start, some.stop)) for array, some in arrays})
        return str(own)

    return match


def _whole(parts: Sequence[tuple[str, str]]) -> str:
    """The expression for all parts. Where there are many `**`, each but the last
    stands for as few parts as it can: to try all would take time without a bound."""
    kept = [part for part, after in zip(parts, (*parts[1:], ("", "")), strict=True) if part != after or part != _ANY]
    texts = [_expression(name, index, at == len(kept) - 1) for at, (name, index) in enumerate(kept)]
    places = [at for at, text in enumerate(texts) if text == _PARTS]
    if len(places) <= _MANY:
        return "".join(texts)
    chunks = ["".join(texts[start:end]) for start, end in zip(places, (*places[1:], None), strict=True)]
    fewest = "".join(f"(?>{_PARTS}?{chunk.removeprefix(_PARTS)})" for chunk in chunks[:-1])
    return "".join(texts[: places[0]]) + fewest + chunks[-1]


def _expression(name: str, index: str, last: bool) -> str:
    if name == "**":
        return r".+" if last else _PARTS
    first, *others = map(re.escape, name.split("*"))
    few = "".join(rf"(?>[^.\[]*?{text})" for text in others[:-1])  # the first place serves where any does
    text = first + few + (rf"[^.\[]*{others[-1]}" if others else "")
    if index:
        text += r"\[[\d-]+\]" if index == "*" else r"\[([\d-]+)\]"
    return text if last else rf"{text}\."


def covered(patterns: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Those of `paths` that any of `patterns` covers."""
    matchers = [matcher(pattern) for pattern in patterns]
    return {path for path in paths if any(match(path) for match in matchers)}


def span(start: int, end: int) -> str:
    """`[0..6]`, and `[0]` for one index."""
    return f"[{start}]" if end == start + 1 else f"[{start}..{end}]"


def expanded(path: str) -> list[str]:
    """The paths that a path with ranges stands for, in order; the first range changes slowest."""
    found = _RANGE.search(path)
    if found is None:
        return [path]
    before, after = path[: found.start()], expanded(path[found.end() :])
    return [f"{before}[{at}]{rest}" for at in range(int(found[1]), int(found[2])) for rest in after]
