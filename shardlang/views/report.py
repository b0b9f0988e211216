"""The reports of plans, with the course of a step and the differences -> one HTML page, which needs
no network. It is report.html with the data in it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardlang.ops.declaration import REGISTRY
from shardlang.paths.runs import called, patterns, unindexed
from shardlang.terminal.display import duration, percent, size

Found = Mapping[str, Any]
Entry = dict[str, Any]
TEMPLATE = Path(__file__).with_name("report.html")
# Kinds of what takes time, as the bars have them.
PRODUCTS, ATTENTION, STREAMS, UPDATE = "products", "attention", "memory-bound operators", "update"
WAITS, IDLE = "collectives", "idle"
_MARK = "/*DATA*/null"


def page(plans: Sequence[Found], differences: Found | None = None, sources: Mapping[str, str] | None = None) -> str:
    """The page of one plan or of two. A plan is its report, with `timeline`, `memory` and `cluster`
    beside. sources: the texts of the programs that operators come from, by name."""
    data = {
        "plans": [_plan(found) for found in plans],
        "diff": differences,
        "sources": {name: text.split("\n") for name, text in (sources or {}).items()},
    }
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    before, mark, after = TEMPLATE.read_text("utf-8").partition(_MARK)
    assert mark
    return before + text.replace("&", "\\u0026") + after


def _plan(found: Found) -> Entry:
    parts = _parts(found)
    return {
        "title": title(found), "sentences": sentences(found), "parts": parts, "facts": list(_facts(found)),
        "mesh": [{"name": a["name"], "size": a["size"]} for a in found["meshes"][0]["axes"]],
        **{key: found.get(key) for key in ("ranks", "microbatches", "cluster", "timeline", "memory")},
        "limit": found["per_rank"]["device_memory_bytes"], "device": found["per_rank"]["device"],
        "seconds": "predicted" in found, "layers": _layers(found), "operators": _operators(found),
        "stages": _stages(found), "assumptions": list(_assumptions(found)),
    }  # fmt: skip


def title(found: Found) -> str:
    strategy = f", strategy {found['strategy']}" if found["strategy"] else ""
    return f"{found['program']} on {found['ranks']:,} rank{'s' * (found['ranks'] != 1)}{strategy}"


# --- the sentences that sum it up ---


def sentences(found: Found) -> list[str]:
    """The time of a step and its bottleneck; then the memory."""
    step = found.get("predicted")
    return [*(_timed(found, step) if step is not None else _untimed(found)), _held(found)]


def _timed(found: Found, step: Found) -> Iterator[str]:
    whole, parts = step["step_s"], _parts(found)
    tokens = f", {step['tokens_per_s']:,.0f} tokens a second" if step["tokens_per_s"] else ""
    yield f"A step is predicted to take {duration(whole)}{tokens}: an MFU of {percent(step['mfu'])}."
    useful = [part for part in parts if part["kind"] in (PRODUCTS, ATTENTION)]
    works = sum(part["value"] for part in useful)
    losses = _losses(step, parts)
    if not losses:
        return
    lost = max(losses, key=lambda name: losses[name])
    share = f"{duration(losses[lost])}, {losses[lost] / whole:.0%} of the step"
    bound = f"Products and attention compute for {works / whole:.0%} of it."
    if works > whole * 0.7:
        yield f"{bound} They are the bottleneck; the largest loss beside them is {lost}: {share}."
    else:
        yield f"{bound} The bottleneck is {lost}: {share}."


def _losses(step: Found, parts: Sequence[Found]) -> dict[str, float]:
    """The seconds of a step that are no products: those of collectives by axes."""
    found: dict[str, float] = {}
    for each in step["exposed_s"]:
        name = f"waiting for collectives over {', '.join(each['axes'])}"
        found[name] = found.get(name, 0.0) + each["seconds"]
    for part in parts:
        if part["kind"] not in (PRODUCTS, ATTENTION, WAITS):
            found[part["name"]] = part["value"]
    return found


def _untimed(found: Found) -> Iterator[str]:
    totals = found["per_rank"]
    whole = totals["forward_bytes"] + totals["backward_bytes"]
    if not whole:
        yield "A rank sends nothing to others."
    else:
        axes: dict[str, int] = {}
        for each in found["sent"]:
            name = ", ".join(each["axes"])
            axes[name] = axes.get(name, 0) + each["forward_bytes"] + each["backward_bytes"]
        most = max(axes, key=lambda name: axes[name])
        largest = found["largest"]["sent"][0]
        what = largest["forward"] or largest["backward"]
        share = f"{axes[most] / whole:.0%} of it over {most}"
        of = ", ".join(patterns(called(path) for path in largest["paths"]))
        yield f"A rank sends {size(whole)} in a step, {share}. Most is sent by the {_dashed(what)} of {of}."
    pipeline = found["pipeline"]
    if pipeline is not None:
        yield f"By the work of the stages, ranks are idle for {pipeline['bubble_by_cost']:.0%} of a step."
    yield "The program names no hardware with speeds, so no time is predicted."


def _held(found: Found) -> str:
    totals = found["per_rank"]
    has, peak = totals["device_memory_bytes"], totals["peak"]
    of = f" of the {size(has)} of {totals['device']}" if has else ""
    largest = peak["parts"][0] if peak["parts"] else {"what": "nothing", "bytes": 0}
    share = largest["bytes"] / max(totals["peak_bytes"], 1)
    return f"A rank holds at most {size(totals['peak_bytes'])}{of}; {share:.0%} of it are {largest['what']}."


# --- numbers ---


def _parts(found: Found) -> list[Entry]:
    """The parts of a step in seconds; without speeds in bytes that are sent, by collective."""
    step = found.get("predicted")
    if step is None:
        return [
            {"name": f"{_dashed(each['collective'])} over {', '.join(each['axes'])}, {each['what']}", "kind": WAITS,
             "value": each["forward_bytes"] + each["backward_bytes"]}
            for each in found["sent"]
        ]  # fmt: skip
    compute: dict[str, float] = {}
    for each in step["by_operator"]:
        kind = kind_of(each["operator"], each["layer"])
        compute[kind] = compute.get(kind, 0.0) + each["compute_s"]
    # Compute beside collectives is slower, which no operator has as its own.
    rest = step["compute_s"] - sum(compute.values())
    parts = [{"name": kind, "kind": kind, "value": compute[kind]} for kind in compute if compute[kind] > 0]
    parts += [{"name": "compute that collectives slow down", "kind": STREAMS, "value": rest}] if rest > 1e-9 else []
    parts += [
        {"name": f"waiting for the {_dashed(each['kind'])} over {', '.join(each['axes'])}", "kind": WAITS,
         "value": each["seconds"]}
        for each in step["exposed_s"]
    ]  # fmt: skip
    parts += [{"name": "waiting for other stages", "kind": IDLE, "value": step["idle_s"]}] if step["idle_s"] > 0 else []
    return sorted(parts, key=lambda part: -part["value"])


def kind_of(operator: str, layer: str) -> str:
    """The kind of work that an operator is."""
    known = REGISTRY.get(operator)
    if known is None:
        return UPDATE if layer == "step" else STREAMS
    return PRODUCTS if known.product is not None else ATTENTION if known.attends else STREAMS


def _layers(found: Found) -> list[Entry]:
    """Per class of layers what it takes, by kind."""
    step, rows = found.get("predicted"), dict[str, dict[str, float]]()
    if step is None:
        for row in _operators(found):
            name = row["layer"]
            mine = rows.setdefault(name, {})
            for each in row["sent"]:
                over = f"over {', '.join(each['axes'])}"
                mine[over] = mine.get(over, 0) + each["bytes"]
        return [{"name": name, "parts": parts} for name, parts in rows.items() if parts]
    for each in step["by_operator"]:
        mine, kind = rows.setdefault(each["layer"], {}), kind_of(each["operator"], each["layer"])
        mine[kind] = mine.get(kind, 0.0) + each["compute_s"]
    for each in step["by_layer"]:
        mine = rows.setdefault(each["layer"], {})
        slower = each["compute_s"] - sum(mine.values())
        mine[STREAMS] = mine.get(STREAMS, 0.0) + max(0.0, slower)
        mine[WAITS] = each["exposed_s"]
    kept = {name: {kind: value for kind, value in parts.items() if value > 1e-12} for name, parts in rows.items()}
    found_rows = [{"name": name, "parts": parts} for name, parts in kept.items() if parts]
    return sorted(found_rows, key=lambda row: -sum(row["parts"].values()))


def _operators(found: Found) -> list[Entry]:
    """The operators, those of equal layers together, in order."""
    seconds = {each["path"]: each for each in found.get("predicted", {}).get("by_operator", ())}
    rows: dict[tuple[str, ...], Entry] = {}
    for entry in _walk(found["blocks"], found["operators"]):
        result = entry["local_shapes"]["result"]
        key = unindexed(entry["name"]), entry["text"], entry["layout"], str(result["local_shape"])
        row = rows.get(key)
        if row is None:
            path = unindexed(entry["name"]).replace("[]", "[*]")
            timed = seconds.get(path, {})
            row = rows[key] = {
                "layer": _layer(path), "path": path, "operator": entry["operator"], "text": entry["text"],
                "source": entry["source"], "layout": f"{result['dtype']}{entry['layout']}", "count": 0,
                "shape": "x".join(map(str, result["local_shape"])) or "one number", "sent": [],
                "recomputed": entry["recomputed"], "stages": [], "compute_s": timed.get("compute_s"),
                "exposed_s": timed.get("exposed_s"),
            }  # fmt: skip
        row["count"] += entry["times"]
        if entry["stage"] is not None and entry["stage"] not in row["stages"]:
            row["stages"].append(entry["stage"])
        for each in entry["collectives"]:
            _add(row["sent"], each)
    return list(rows.values())


def _layer(path: str) -> str:
    """The outermost layer of an array that a path is in; else its first name."""
    names = path.removeprefix("train.").split(".")
    at = next((n for n, name in enumerate(names) if name.endswith("]")), 0)
    return ".".join(names[: at + 1]).partition(":")[0]


def _add(sent: list[Entry], each: Found) -> None:
    """Adds a collective to those of a row; the same ones are one."""
    what = _dashed(each["forward"] or each["backward"] or each["kind"])
    sizes = (each["forward_bytes"] + each["backward_bytes"]) * each["times"]
    if not sizes:
        return
    of = called(unindexed(each["value"]).replace("[]", "[*]"))
    known = next((one for one in sent if (one["what"], one["axes"], one["of"]) == (what, each["axes"], of)), None)
    if known is None:
        sent.append({"what": what, "axes": each["axes"], "of": of, "bytes": sizes})
    else:
        known["bytes"] += sizes


def _walk(items: Sequence[Found], operators: Sequence[Found]) -> Iterator[Found]:
    """The operators of the blocks."""
    for item in items:
        if "items" in item:
            yield from _walk(item["items"], operators)
        elif "collective" not in item:
            yield operators[item["operator"]]


def _stages(found: Found) -> list[Entry]:
    pipeline = found["pipeline"]
    stages = pipeline["stages"] if pipeline is not None else ()
    return [
        {"stage": each["stage"], "coordinate": each["coordinate"], "layers": patterns(each["layers"]),
         "bytes": size(each["total_bytes"]), "sent": size(each["forward_bytes"] + each["backward_bytes"])}
        for each in stages
    ]  # fmt: skip


def _facts(found: Found) -> Iterator[tuple[str, str]]:
    totals, step, pipeline = found["per_rank"], found.get("predicted"), found["pipeline"]
    if step is not None:
        yield "step", duration(step["step_s"])
        yield "MFU", percent(step["mfu"])
    yield "peak memory", size(totals["peak_bytes"])
    yield "sent by a rank", size(totals["forward_bytes"] + totals["backward_bytes"])
    if pipeline is not None:
        bubble = step["bubble"] if step is not None else pipeline["bubble_by_cost"]
        yield f"idle, {pipeline['schedule']}", percent(bubble)
    yield "microbatches", f"{found['microbatches']:,}"
    yield "precision", found["precision"]


def _assumptions(found: Found) -> Iterator[Entry]:
    for each in found.get("predicted", {}).get("assumptions", ()):
        yield {"what": each["what"], "value": f"{each['value']:.4g}", "rests_on": each["rests_on"]}


def _dashed(name: str) -> str:
    return name.replace("_", "-")
