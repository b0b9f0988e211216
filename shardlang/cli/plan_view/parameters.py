"""The report of a plan -> lines for its parameters, in runs and patterns of those stored alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from shardlang.cli.plan_view.columns import PlanLine, beside, paragraph
from shardlang.cli.plan_view.screen import over
from shardlang.paths.patterns import count
from shardlang.paths.runs import endings, patterns
from shardlang.terminal.display import one_line, size, width

Found = Mapping[str, Any]


def parameters(found: Found, room: int, full: bool) -> Iterator[PlanLine]:
    """A line for all that have one layout, shape and treatment; with `full` each by itself."""
    every = found["parameters"]
    if not every:
        return
    reduced: dict[str, list[str]] = {}
    for path, axes in ((path, r["axes"]) for r in found["gradient_reductions"] for path in r["parameters"]):
        reduced.setdefault(path, []).extend(axes)
    groups: dict[tuple[str, ...], list[str]] = {}
    for p in every:
        shape = ", ".join(f"{a}:{b}" for a, b in p["slices"]) if "slices" in p else "x".join(map(str, p["local_shape"]))
        gradient = f"summed{over(reduced[p['path']])}" if p["path"] in reduced else ""
        kind = "frozen" if p["frozen"] else "" if p["trained"] else "state"
        key = f"{p['layout']}  {shape or 'one number'}", size(p["local_bytes"]), kind, _notes(p), gradient
        groups.setdefault((*key, p["path"] if full else ""), []).append(p["path"])
    usual, number = _usual(groups), sum(count(p["path"]) for p in every)
    yield PlanLine("")
    notes = [usual[0], f"gradients {usual[1]}" if usual[1] else ""]
    title = ", ".join(filter(None, [f"{number:,} parameter{'s' * (number != 1)} (bytes of one)", *notes]))
    yield from paragraph(title, room, "title")
    for (tensor, each, kind, *own_notes, _), paths in groups.items():
        # Nobody expects the gradient of what is not trained.
        absent = ("", "") if kind else ("no zero", "not summed")
        said = [text or none for text, common, none in zip(own_notes, usual, absent, strict=True) if text != common]
        right = f"{tensor}  {', '.join(filter(None, [each, kind, *said]))}"
        names = ", ".join(patterns(paths))
        if width(names) + 2 + width(right) > room:
            own = set(paths)
            names = min(names, ", ".join(endings(paths, [p["path"] for p in every if p["path"] not in own])), key=len)
        yield from (PlanLine(text) for text in beside("", one_line(names), right, room))


def _usual(groups: Mapping[tuple[str, ...], list[str]]) -> list[str]:
    """The notes that most have, of what is trained if anything is: the title says them."""
    some = any(not kind for _, _, kind, *_ in groups)
    counts: tuple[Counter[str], ...] = (Counter(), Counter())
    for (_, _, kind, note, gradient, _), paths in groups.items():
        if not kind or not some:
            counts[0][note] += sum(map(count, paths))
            counts[1][gradient] += sum(map(count, paths))
    return [each.most_common(1)[0][0] for each in counts]


def _notes(p: Found) -> str:
    """The remarks on a parameter."""
    zero = f"zero {p['zero']}{over(p['zero_axes'])}{', keep' * p['keep']}" if p["zero"] else ""
    stages = p["stages"] if p["stages"] is not None and len(p["stages"]) > 1 else []
    shared = f"in stages {', '.join(map(str, stages))}" if stages else ""
    rows, host = "gradients of rows" if p["rows"] else "", "on the host" if p["place"] == "host" else ""
    return ", ".join(filter(None, [zero, rows, host, shared]))
