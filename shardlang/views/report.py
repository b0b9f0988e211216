"""The reports of plans, with the course of a step, the text of the program and the differences ->
one HTML page, which needs no network. It is report.html with the data in it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardlang.paths.runs import called, patterns
from shardlang.sources.source import Source
from shardlang.terminal.display import duration, percent, size
from shardlang.views.program_text import ATTENTION, LEAST, PRODUCTS, SLOWER, kind_of, over, shown_text

Found = Mapping[str, Any]
Entry = dict[str, Any]
TEMPLATE = Path(__file__).with_name("report.html")
IDLE = "idle"
# What the page has as it is in the report.
_AS_THEY_ARE = ("ranks", "microbatches", "cluster", "timeline", "memory", "text")
_MARK = "/*DATA*/null"


def page(plans: Sequence[Found], differences: Found | None = None, sources: Mapping[str, Source] | None = None) -> str:
    """The page of one plan or of two. A plan is its report with what `with_course` adds. sources:
    the files of their programs, by name."""
    data = {
        "plans": [_plan(found) for found in plans],
        "diff": differences,
        "sources": {name: shown_text(source) for name, source in (sources or {}).items()},
    }
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    before, mark, after = TEMPLATE.read_text("utf-8").partition(_MARK)
    assert mark
    return before + text.replace("&", "\\u0026") + after


def _plan(found: Found) -> Entry:
    parts = _parts(found)
    return {
        "title": title(found), "sentences": sentences(found), "parts": parts, "facts": list(_facts(found)),
        **{key: found.get(key) for key in _AS_THEY_ARE},
        "limit": found["per_rank"]["device_memory_bytes"], "device": found["per_rank"]["device"],
        "seconds": "predicted" in found, "layers": _layers(found),
        "meshes": [mesh["axes"] for mesh in found["meshes"]], "stages": _stages(found),
        "axis": found["pipeline"]["axis"] if found["pipeline"] is not None else None,
        "apart": _sent(found, ("gradients", "parameters")),
        "assumptions": list(_assumptions(found)),
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
    works = sum(part["value"] for part in parts if part["kind"] in (PRODUCTS, ATTENTION))
    losses = _losses(parts)
    if not losses:
        return
    lost = max(losses, key=lambda name: losses[name])
    most = f"{lost}: {duration(losses[lost])}, {losses[lost] / whole:.0%} of the step"
    useful = f"Products and attention take {works / whole:.0%} of the step"
    if works > losses[lost]:
        yield f"{useful}. Of the rest most goes to {most}."
    else:
        yield f"The bottleneck is {most}. {useful}."


def _losses(parts: Sequence[Found]) -> dict[str, float]:
    """The seconds of a step that are no products: those of collectives by axes."""
    found: dict[str, float] = {}
    for part in parts:
        if part["kind"] not in (PRODUCTS, ATTENTION):
            sent = part["sent"] and part["sent"].partition(" over ")
            name = f"waiting for collectives over {sent[2]}" if sent else part["name"]
            found[name] = found.get(name, 0.0) + part["value"]
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
        return _sent(found, ("values", "gradients", "parameters"))
    compute: dict[str, float] = {}
    for each in step["by_operator"]:
        kind = kind_of(each["operator"], each["layer"])
        compute[kind] = compute.get(kind, 0.0) + each["compute_s"]
    # Compute beside collectives is slower, which no operator has as its own.
    rest = step["compute_s"] - sum(compute.values())
    parts = [{**_part(kind, compute[kind]), "kind": kind} for kind in compute if compute[kind] > 0]
    parts += [{**_part(SLOWER, rest), "kind": SLOWER}] if rest > LEAST else []
    for each in step["exposed_s"]:
        way = over(each["kind"], each["axes"])
        parts.append(_part(f"waiting for the {way}", each["seconds"], way))
    parts += [{**_part("waiting for other stages", step["idle_s"]), "kind": IDLE}] if step["idle_s"] > 0 else []
    return sorted(parts, key=lambda part: -part["value"])


def _sent(found: Found, kinds: Sequence[str]) -> list[Entry]:
    """All that a rank sends in a step of values, of gradients or of parameters."""
    return [
        _part(f"{way}, {each['what']}", each["forward_bytes"] + each["backward_bytes"], way)
        for each in found["sent"]
        if each["what"] in kinds
        for way in [over(each["collective"], each["axes"])]
    ]


def _part(name: str, value: float, sent: str = "") -> Entry:
    """A part of a bar. sent: by what, where it is sent; the kind is then that of the collective."""
    return {"name": name, "value": value, "sent": sent, "kind": sent.partition(" ")[0]}


def _layers(found: Found) -> list[Entry]:
    """Per class of layers what it takes, by kind; without speeds what it sends, by collective. Also
    by what it sends at all, and the stages that run it."""
    of, step = found["of_layers"], found.get("predicted")
    rows = _seconds(found, step) if step is not None else {name: each["sent"] for name, each in of.items()}
    none: dict[str, Any] = {"sent": {}, "stages": []}
    made = [
        {"name": name, "parts": parts, "sent": of.get(name, none)["sent"], "stages": of.get(name, none)["stages"]}
        for name, parts in rows.items()
        if parts
    ]
    return sorted(made, key=lambda row: -sum(row["parts"].values()))


def _seconds(found: Found, step: Found) -> dict[str, dict[str, float]]:
    """Layer -> seconds by kind; of what is waited for by what is sent."""
    rows: dict[str, dict[str, float]] = {}
    for each in step["by_operator"]:
        mine, kind = rows.setdefault(each["layer"], {}), kind_of(each["operator"], each["layer"])
        mine[kind] = mine.get(kind, 0.0) + each["compute_s"]
    for each in step["by_layer"]:
        mine = rows.setdefault(each["layer"], {})
        mine[SLOWER] = max(0.0, each["compute_s"] - sum(mine.values()))
        mine.update(found["waits"].get(each["layer"], {}))
    return {name: {kind: value for kind, value in parts.items() if value > LEAST} for name, parts in rows.items()}


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
