"""Paths of layers, values and parameters -> few patterns: `blocks[0..6].{up,down}.weight`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from shardlang.paths.patterns import count, indexes, span

_INDEX = re.compile(r"\[(\d+(?:(?:-|\.\.)\d+)?)\]")
_INNER = re.compile(r"(:\w+)*(#\d+)?(@\w+)?$")
_ENDS = re.compile(r"(\d+)(?:\.\.(\d+))?")
_NAMES = re.compile(r"(?<!\.)\.(?!\.)")  # the dots of a range are none between names


def unindexed(path: str) -> str:
    """A path without the numbers of layers in arrays: what those of one array have in common."""
    return _INDEX.sub("[]", path)


def called(path: str) -> str:
    """The name of a value: a layer's result as the layer, a value within a statement as that."""
    return _INNER.sub("", path).removeprefix("train.").removesuffix(".return")


def in_runs(paths: Iterable[str]) -> list[str]:
    """The paths, neighbours of an array as a range: `blocks[0..6].h` ends at `blocks[5].h`."""
    alike: dict[str, list[tuple[tuple[int, int], ...]]] = {}
    for path in paths:
        layers = map(indexes, _INDEX.findall(path))
        ranges = tuple((each.start, each.stop) for each in layers)
        alike.setdefault(_INDEX.sub("{}", path.replace("{", "{{").replace("}", "}}")), []).append(ranges)
    return [text.format(*(span(*ends) for ends in ranges)) for text, each in alike.items() for ranges in _joined(each)]


def _joined(found: Sequence[tuple[tuple[int, int], ...]]) -> list[tuple[tuple[int, int], ...]]:
    """Ranges of each index; the last index is joined first."""
    joined = sorted(set(found))
    for at in reversed(range(len(joined[0]))):
        rows: dict[object, list[tuple[tuple[int, int], ...]]] = {}
        for one in joined:
            mine = rows.setdefault((one[:at], one[at + 1 :]), [])
            if mine and mine[-1][at][1] == one[at][0]:
                mine[-1] = (*one[:at], (mine[-1][at][0], one[at][1]), *one[at + 1 :])
            else:
                mine.append(one)
        joined = [one for row in rows.values() for one in row]
    return sorted(joined)


def patterns(paths: Iterable[str]) -> list[str]:
    """The paths in runs; those that differ in one name as one: `{q,k,v}.weight`, the last first."""
    found = [tuple(_NAMES.split(run)) for run in in_runs(paths)]
    for at in range(1, 1 + max((len(names) for names in found), default=0)):
        alike: dict[tuple[object, ...], list[tuple[str, ...]]] = {}
        for names in found:
            alone = len(names) < at or (len(names) == 1 and "[" not in names[0])
            alike.setdefault((names,) if alone else (names[:-at], names[len(names) - at + 1 :]), []).append(names)
        found = [each[0] if len(each) == 1 else _either(each, -at) for each in alike.values()]
    return [".".join(names) for names in found]


def _either(alike: Sequence[tuple[str, ...]], at: int) -> tuple[str, ...]:
    """One for names that differ at one place: `{q,k}`, of one array `blocks[0..4,8]`."""
    first, place = alike[0], len(alike[0]) + at
    arrays = [re.fullmatch(r"([^\[]+)\[([\d.,]+)\]", names[place]) for names in alike]
    whole = {array[1] for array in arrays if array is not None}
    if None not in arrays and len(whole) == 1:
        ends = [both for array in arrays if array is not None for both in _ENDS.findall(array[2])]
        joined = _joined([((int(begin), int(end or int(begin) + 1)),) for begin, end in ends])
        either = f"{whole.pop()}[{','.join(span(*both)[1:-1] for (both,) in joined)}]"
    else:
        either = f"{{{','.join(names[place] for names in alike)}}}"
    return *first[:place], either, *first[place + 1 :]


def endings(paths: Sequence[str], others: Iterable[str]) -> list[str]:
    """Patterns that cover `paths` and none of `others`, by last names if possible: `**.{q,k}`."""
    taken = {ending for path in others for ending in _endings(path)}
    shortest = [next((e for e in _endings(path) if e not in taken), path) for path in paths]
    both, shared = list(zip(shortest, paths, strict=True)), Counter[str]()
    for ending, path in both:
        shared[ending] += count(path) // count(ending)
    return patterns(dict.fromkeys(f"**.{ending}" if shared[ending] > 1 else path for ending, path in both))


def _endings(path: str) -> list[str]:
    names = _NAMES.split(path)
    return [".".join(names[at:]) for at in reversed(range(len(names)))]
