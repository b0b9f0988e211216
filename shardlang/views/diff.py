"""Two plans with their reports -> the differences, as plain data (`shardc diff --json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import count
from shardlang.paths.runs import called, in_runs, patterns, unindexed
from shardlang.plan.plan import Plan
from shardlang.views.values import Form, forms

VERSION = 1
Found = Mapping[str, Any]
Rows = list[dict[str, Any]]
# Fewer seconds than this are what is left of adding up.
_LEAST = 1e-9
# How a value is made, and how it is read elsewhere; None where a plan lacks it.
Layouts = tuple[str, tuple[str, ...]] | None

# What a rank holds, as the report of a plan has it: the peak, then what is kept.
MEMORY = ("peak", "parameters", "copies", "gradients", "optimizer", "activations", "host")


@dataclass(frozen=True)
class PlanFacts:
    """A plan with what `shardc plan --json` says of it."""

    plan: Plan
    found: Found


def difference(left: PlanFacts, right: PlanFacts) -> dict[str, Any]:
    """The differences, left and right; a row that one of them lacks has null there."""
    both = left.found, right.found
    heads = [{key: found[key] for key in ("program", "strategy", "ranks")} for found in both]
    parts: dict[str, Rows] = {
        "settings": _rows(*map(_settings, both)),
        "time": _rows(*map(_time, both)),
        "memory": _rows(*map(_memory, both)),
        "sent": _rows(*map(_by_axes, both)),
        "stages": _rows(*map(_stages, both)),
        "values": _values(left, right),
    }
    return {"version": VERSION, "equal": not any(parts.values()), "left": heads[0], "right": heads[1], **parts}


def _rows(left: Mapping[str, Any], right: Mapping[str, Any]) -> Rows:
    """A row for each name under which the two have something else, in the order of both."""
    names = dict.fromkeys((*left, *right))
    pairs = ((name, left.get(name), right.get(name)) for name in names)
    return [{"what": name, "left": a, "right": b} for name, a, b in pairs if a != b]


def _settings(found: Found) -> dict[str, Any]:
    pipeline = found["pipeline"]
    named = ((mesh["name"], ", ".join(f"{a['name']} = {a['size']}" for a in mesh["axes"])) for mesh in found["meshes"])
    return {
        "ranks": found["ranks"],
        **dict(named),
        "microbatches": found["microbatches"],
        "precision": found["precision"],
        **({"schedule": pipeline["schedule"], "bubble": pipeline["bubble_by_cost"]} if pipeline else {}),
    }


def _time(found: Found) -> dict[str, float]:
    """Seconds of a step and what they go to, where a step is predicted; `MFU` is a share."""
    step = found.get("predicted")
    if step is None:
        return {}
    by: dict[str, float] = {"step": step["step_s"], "MFU": step["mfu"], "compute": step["compute_s"]}
    for each in step["exposed_s"]:
        name = f"waiting over {', '.join(each['axes'])}"
        by[name] = by.get(name, 0.0) + each["seconds"]
    by["idle"] = step["idle_s"]
    return {name: number for name, number in by.items() if number > _LEAST}


def _memory(found: Found) -> dict[str, int]:
    return {kind: found["per_rank"][f"{kind}_bytes"] for kind in MEMORY}


def _by_axes(found: Found) -> dict[str, int]:
    """Bytes that a rank sends in a step: of all, then over each group of axes."""
    totals = found["per_rank"]
    by: dict[str, int] = {"all": totals["forward_bytes"] + totals["backward_bytes"]}
    for each in found["sent"]:
        axes = ", ".join(each["axes"])
        by[axes] = by.get(axes, 0) + each["forward_bytes"] + each["backward_bytes"]
    return by


def _stages(found: Found) -> dict[str, Any]:
    """The layers of each stage, and what it keeps."""
    stages = found["pipeline"]["stages"] if found["pipeline"] else []
    return {
        str(stage["stage"]): {"layers": in_runs(stage["layers"]), "bytes": stage["total_bytes"]} for stage in stages
    }


def _values(left: PlanFacts, right: PlanFacts) -> Rows:
    """Values of other layouts, or for which other bytes are sent: those of the same layouts in both
    plans together, the largest difference first, in seconds where they are known. Bytes are the
    most of one of them; seconds are of all."""
    ours, theirs = forms(left.plan), forms(right.plan)
    waits = [_waits(each.found) for each in (left, right)]
    groups: dict[tuple[Layouts, Layouts], list[str]] = {}
    for name in dict.fromkeys((*ours, *theirs)):
        a, b = ours.get(name), theirs.get(name)
        if a != b:
            groups.setdefault((_layouts(a), _layouts(b)), []).append(name)
    rows = [
        {
            "paths": patterns(names), "count": sum(map(count, names)), "left": _form(a, names, ours, waits[0]),
            "right": _form(b, names, theirs, waits[1]),
        }
        for (a, b), names in groups.items()
    ]  # fmt: skip
    return sorted(rows, key=_gap, reverse=True)


def _gap(row: Found) -> tuple[float, int]:
    """The differences in seconds and in bytes; no seconds count as none."""
    a, b = row["left"], row["right"]
    seconds = [(side["exposed_s"] or 0.0) if side is not None else 0.0 for side in (a, b)]
    return round(abs(seconds[0] - seconds[1]), 9), row["count"] * abs(_bytes(a) - _bytes(b))


def _waits(found: Found) -> dict[str, float] | None:
    """Class of values -> the seconds of a step that are waited for their collectives."""
    step = found.get("predicted")
    if step is None:
        return None
    waits: dict[str, float] = {}
    for each in step["by_operator"]:
        name = called(each["path"])
        waits[name] = waits.get(name, 0.0) + each["exposed_s"]
    return waits


def _layouts(form: Form | None) -> Layouts:
    return (form.made, form.read) if form is not None else None


def _form(
    layouts: Layouts, names: Sequence[str], every: Mapping[str, Form], waits: Mapping[str, float] | None
) -> dict[str, Any] | None:
    if layouts is None:
        return None
    forms = [(every[name], count(name)) for name in names]
    forward, backward = max(((f.forward_bytes // n, f.backward_bytes // n) for f, n in forms), key=sum)
    sizes = {"forward_bytes": forward, "backward_bytes": backward}
    classes = dict.fromkeys(unindexed(name).replace("[]", "[*]") for name in names)
    seconds = sum(waits.get(name, 0.0) for name in classes) if waits is not None else None
    return {"layout": layouts[0], "read": list(layouts[1]), **sizes, "exposed_s": seconds}


def _bytes(form: Found | None) -> int:
    return form["forward_bytes"] + form["backward_bytes"] if form is not None else 0
