"""From the report of a plan to what one rank sees: its coordinates, its groups, its shapes and
slices of every tensor.

Follows from the report alone (cut, sizes, meshes), as specs/plan-json.md describes; printing is
left to show.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Axes = Mapping[str, tuple[int, int]]


def coordinates(mesh: Mapping[str, Any], rank: int) -> dict[str, tuple[int, int]]:
    """Axis -> (this rank's coordinate, the axis's size); row-major, the first axis outermost."""
    found: dict[str, tuple[int, int]] = {}
    for axis in reversed(mesh["axes"]):
        found[axis["name"]] = (rank % axis["size"], axis["size"])
        rank //= axis["size"]
    return dict(reversed(found.items()))


def slices(tensor: Mapping[str, Any], axes: Axes, count: int = 1) -> list[tuple[int, int]]:
    """Per dim, the half-open range of indexes of a rank; of the first of `count` microbatches."""
    whole = [size // count if d == tensor.get("microbatches") else size for d, size in enumerate(tensor["shape"])]
    rows = zip(whole, tensor["cut"], tensor["sizes"], strict=True)
    return [_range(size, cut, sizes, axes) for size, cut, sizes in rows]


def _range(size: int, cut: Sequence[str], sizes: Sequence[int] | None, axes: Axes) -> tuple[int, int]:
    index, parts = 0, 1
    for name in cut:
        at, count = axes[name]
        index, parts = index * count + at, parts * count
    each = list(sizes) if sizes is not None else [size // parts] * parts
    start = sum(each[:index])
    return start, start + each[index]


def group(mesh: Mapping[str, Any], names: Sequence[str], rank: int) -> list[int]:
    """The ranks that differ from this one only along `names`, in the order of blocks."""
    strides: dict[str, tuple[int, int]] = {}
    stride = 1
    for axis in reversed(mesh["axes"]):
        strides[axis["name"]] = (stride, axis["size"])
        stride *= axis["size"]
    members = [rank - sum(rank // strides[n][0] % strides[n][1] * strides[n][0] for n in names)]
    for name in names:
        step, count = strides[name]
        members = [m + i * step for m in members for i in range(count)]
    return members


def of_rank(found: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The report with, for one rank: `rank`, `coordinates` per mesh, each tensor's own
    `local_shape` and `slices`, each collective's own `group` in place of all; with a pipeline only
    what the rank's own stages do and hold."""
    meshes = found["meshes"]
    places = [coordinates(mesh, rank) for mesh in meshes]
    mine = _stages(found, places[0])

    def tensor(t: Mapping[str, Any]) -> dict[str, Any]:
        ranges = slices(t, places[t["mesh"]], found["microbatches"])
        return {**t, "local_shape": [end - start for start, end in ranges], "slices": [list(r) for r in ranges]}

    def collective(c: Mapping[str, Any], o: Mapping[str, Any]) -> dict[str, Any]:
        rest = {key: value for key, value in c.items() if key != "groups"}
        members = group(meshes[c["mesh"]], c["axes"], rank)
        if c["kind"] == "send":
            members = [members[found["pipeline"]["stages"][s]["coordinate"]] for s in (o["stage"] - 1, o["stage"])]
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
        "coordinates": [{name: at for name, (at, _) in place.items()} for place in places],
        "operators": [operator(found["operators"][at]) for at in kept],
        "blocks": _items(found["blocks"], {at: number for number, at in enumerate(kept)}),
        "parameters": [tensor(p) for p in found["parameters"] if mine is None or mine.intersection(p["stages"])],
        **({} if mine is None else _own(found, places[0])),
    }


def _stages(found: Mapping[str, Any], place: Axes) -> set[int] | None:
    """The stages that a rank runs; None without a pipeline."""
    pipeline = found["pipeline"]
    return None if pipeline is None else set(pipeline["coordinates"][place[pipeline["axis"]][0]]["stages"])


def _own(found: Mapping[str, Any], place: Axes) -> dict[str, Any]:
    """The tensors of a rank, and its part of the pipeline."""
    pipeline = found["pipeline"]
    at = place[pipeline["axis"]][0]
    own = pipeline["coordinates"][at]
    totals = {key: own.get(key, value) for key, value in found["per_rank"].items()}
    return {"per_rank": totals, "sent": own["sent"], "largest": own["largest"]}


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
