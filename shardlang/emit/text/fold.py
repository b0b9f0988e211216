"""Many paths -> few: layers of an array that are the same are written once, `encoder.blocks[0..6]`.

patterns.py reads the result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import SingleLayers, indexes, span

_LAYER = re.compile(r"(.*?)\[([\d-]+)\]\.(.+)")
_PART = re.compile(r"[^.\[\]]+|\[[\d-]+\]")


@dataclass(frozen=True, slots=True)
class Item:
    """A tensor, by its path below the layers around it, and what is said of it."""

    path: str
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of an array from `start` up to, not with, `end`, all with the same `items`."""

    array: str
    start: int
    end: int
    items: tuple[Item | Layers, ...]

    @property
    def path(self) -> str:
        return f"{self.array}{span(self.start, self.end)}"


def folded(items: Sequence[Item]) -> list[Item | Layers]:
    """The items with equal neighbouring layers joined. The order is layer by layer."""
    found: list[Item | Layers] = []
    split = ((item, _LAYER.fullmatch(item.path)) for item in items)
    for array, group in groupby(split, lambda pair: pair[1] and pair[1][1]):
        if array is None:
            found.extend(item for item, _ in group)
            continue
        below = ((indexes(match[2]), (match[3], item.said)) for item, match in group if match)
        layers = ((at, tuple([pair for _, pair in own])) for at, own in groupby(below, itemgetter(0)))
        for start, end, same in runs(layers):
            found.append(Layers(array, start, end, tuple(folded([Item(*pair) for pair in same]))))
    return found


def runs(layers: Iterable[tuple[range, Any]]) -> Iterator[tuple[int, int, Any]]:
    """(first index, behind the last, what they have) of neighbours that have the same. SingleLayers
    where layers that are told as one are not among such neighbours."""
    found: list[tuple[list[range], Any]] = []
    for at, has in layers:
        if found and (found[-1][0][-1].stop, found[-1][1]) == (at.start, has):
            found[-1][0].append(at)
        else:
            found.append(([at], has))
    for each, has in found:
        if len(each[0]) > 1 or len(each[-1]) > 1:
            raise SingleLayers
        yield each[0].start, each[-1].stop, has


@dataclass(slots=True)
class _Tree:
    """Paths below one, and how many there are with its own."""

    below: dict[str, _Tree] = field(default_factory=dict)
    size: int = 0


@lru_cache(maxsize=1)
def _tree(paths: tuple[str, ...]) -> tuple[_Tree, dict[str, tuple[_Tree, ...]]]:
    """The tree of these paths, and for each path the nodes that lead to it."""
    root, lines = _Tree(), {}
    for path in paths:
        line = [root]
        for part in _PART.findall(path):
            line.append(line[-1].below.setdefault(part, _Tree()))
        lines[path] = tuple(line)
    for node in (node for line in lines.values() for node in line):
        node.size += 1
    return root, lines


def patterns(chosen: Iterable[str], paths: Sequence[str]) -> tuple[str, ...]:
    """A short list of paths that cover `chosen`, and no other of `paths`."""
    root, lines = _tree(tuple(paths))
    counts = Counter(id(node) for path in set(chosen) for node in lines[path])
    return tuple(text.removeprefix(".") or "**" for text in _patterns(root, counts))


def _patterns(node: _Tree, counts: Mapping[int, int]) -> list[str]:
    """The pattern after the path of `node` for what is chosen below; [""] for all. counts: node (by
    its id) -> how many paths of it are chosen."""
    chosen = counts.get(id(node), 0)
    if chosen in (0, node.size):
        return [""] if chosen else []
    each = [(part, _patterns(below, counts)) for part, below in node.below.items() if id(below) in counts]
    texts: list[str] = []
    for indexed, group in groupby(each, lambda pair: pair[0].startswith("[")):
        if indexed:
            layers = ((indexes(part[1:-1]), found) for part, found in group)
            texts.extend(f"{span(start, end)}{text}" for start, end, found in runs(layers) for text in found)
        else:
            texts.extend(f".{part}{text}" for part, found in group for text in found)
    return texts
