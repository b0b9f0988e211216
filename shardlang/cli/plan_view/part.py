"""The report of a plan -> that of a part of the model: what a selector covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardlang.records import dataclass

Found = Mapping[str, Any]


def part_of(found: Found, selects: Callable[[str], str]) -> dict[str, Any]:
    """The report with those layers, operators and parameters alone whose paths `selects` covers."""
    blocks = _Part(found, selects).items(found["blocks"], "", "")
    return {**found, "blocks": blocks, "parameters": [p for p in found["parameters"] if selects(p["path"])]}


@dataclass(frozen=True)
class _Part:
    """Items of equal layers are written for the first of them, and selected for each."""

    found: Found
    selects: Callable[[str], str]

    def items(self, given: Sequence[Found], first: str, layer: str) -> list[Found]:
        """Those of `given`, written for layer `first`, that are selected in `layer`."""
        kept = ((self._block if "layers" in item else self._line)(item, first, layer) for item in given)
        return [item for item in kept if item is not None]

    def _line(self, item: Found, first: str, layer: str) -> Found | None:
        path = _moved(self.found["operators"][item["operator"]]["name"], first, layer)
        return item if self.selects(path) else None

    def _block(self, item: Found, first: str, layer: str) -> Found | None:
        """A block with its layers that have something selected, and those items of the first."""
        mine, chosen = item["layers"][0], {}
        for path in item["layers"]:
            here = _moved(path, first, layer)
            ends = (mine, here) if mine else (first, layer)
            inside = item["items"] if here and self.selects(here) else self.items(item["items"], *ends)
            chosen.update({path: inside} if inside else {})
        if not chosen:
            return None
        return {**item, "written": mine, "layers": list(chosen), "items": next(iter(chosen.values()))}


def _moved(path: str, first: str, layer: str) -> str:
    """A path below layer `first` as that below `layer`."""
    return layer + path[len(first) :] if first and path.startswith(first) else path
