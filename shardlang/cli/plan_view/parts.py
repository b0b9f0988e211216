"""The report of a plan -> that of one rank, with its slice of every tensor, or that of a part of
the model: what a selector covers.

Both follow from the report alone, as specs/plan-json.md describes it; program.py prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.types.mesh import Axis, Mesh


def slices(tensor: Mapping[str, Any], mesh: Mesh, rank: int, count: int = 1) -> list[list[int]]:
    """Per dim, the half-open range of indexes of the whole that a rank has; with `count`
    microbatches, of the first."""
    whole = [size // count if d == tensor.get("microbatches") else size for d, size in enumerate(tensor["shape"])]
    found = []
    for size, cut, sizes in zip(whole, tensor["cut"], tensor["sizes"], strict=True):
        index, parts = mesh.index(rank, cut), mesh.degree(cut)
        each = sizes if sizes is not None else [size // parts] * parts
        found.append([sum(each[:index]), sum(each[: index + 1])])
    return found


def of_rank(found: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The report with, for one rank: `rank`, `coordinates` per mesh, each tensor's own
    `local_shape` and `slices`, each collective's own `group` in place of all; with a pipeline only
    what the rank's own stages do and hold."""
    # Ranks are row-major, the first axis outermost.
    meshes = [Mesh(tuple(Axis(**axis) for axis in mesh["axes"])) for mesh in found["meshes"]]
    pipeline = found["pipeline"]
    own = pipeline["coordinates"][meshes[0].coordinate(rank, pipeline["axis"])] if pipeline is not None else None
    mine = None if own is None else set(own["stages"])

    def tensor(t: Mapping[str, Any]) -> dict[str, Any]:
        ranges = slices(t, meshes[t["mesh"]], rank, found["microbatches"])
        return {**t, "local_shape": [end - start for start, end in ranges], "slices": ranges}

    def collective(c: Mapping[str, Any], o: Mapping[str, Any]) -> dict[str, Any]:
        rest = {key: value for key, value in c.items() if key != "groups"}
        members = meshes[c["mesh"]].group(rank, c["axes"])
        if c["kind"] == "send":
            members = [members[pipeline["stages"][s]["coordinate"]] for s in (o["stage"] - 1, o["stage"])]
        return {**rest, "group": members}

    def operator(o: Mapping[str, Any]) -> dict[str, Any]:
        shapes = o["local_shapes"]
        return {
            **o,
            "local_shapes": {"operands": [tensor(t) for t in shapes["operands"]], "result": tensor(shapes["result"])},
            "collectives": [collective(c, o) for c in o["collectives"]],
        }

    kept = [at for at, o in enumerate(found["operators"]) if mine is None or o["stage"] in mine]
    return {
        **found,
        "rank": rank,
        "coordinates": [{axis.name: mesh.coordinate(rank, axis.name) for axis in mesh.axes} for mesh in meshes],
        "operators": [operator(found["operators"][at]) for at in kept],
        "blocks": _items(found["blocks"], {at: number for number, at in enumerate(kept)}),
        "parameters": [tensor(p) for p in found["parameters"] if mine is None or mine.intersection(p["stages"])],
        **({} if own is None else _own(found["per_rank"], own)),
    }


def _own(totals: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a rank, and its part of the pipeline."""
    kept = {key: own.get(key, value) for key, value in totals.items()}
    return {"per_rank": kept, "sent": own["sent"], "largest": own["largest"]}


def _items(items: Sequence[Mapping[str, Any]], numbers: Mapping[int, int]) -> list[dict[str, Any]]:
    """The items of the remaining operators, with their new numbers."""
    found = []
    for item in items:
        if "layers" in item:
            inner = _items(item["items"], numbers)
            found += [{**item, "items": inner}] if inner else []
        elif item["operator"] in numbers:
            found.append({**item, "operator": numbers[item["operator"]]})
    return found


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
