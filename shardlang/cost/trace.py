"""A plan and hardware -> the predicted course of a step in the format of Chrome's traces, which
Perfetto shows: a process for each coordinate along the axis of stages, a thread for each lane."""

from __future__ import annotations

from typing import Any

from shardlang.cost.hardware import Hardware
from shardlang.cost.planned import work
from shardlang.cost.prices import Prices
from shardlang.cost.timeline import course
from shardlang.plan.plan import Plan

_MICRO = 1e6


def trace_of(plan: Plan, hardware: Hardware) -> dict[str, Any]:
    """The trace; every microbatch is in it."""
    made = work(plan)
    events: list[dict[str, Any]] = []
    for at, line in enumerate(course(Prices(made, hardware), hardware.overlap, whole=True).lines):
        name = f"{made.axis} {at}" if made.axis else "a rank"
        events.append(_named("process_name", at, 0, name))
        for lane in sorted({span.lane for span in line.spans}):
            events.append(_named("thread_name", at, lane + 1, _lane(hardware, lane)))
        for span in line.spans:
            times = {"ts": span.begin * _MICRO, "dur": (span.end - span.begin) * _MICRO}
            events.append({"name": span.name, "ph": "X", "pid": at, "tid": span.lane + 1, **times})
    return {"written_by": "shardlang", "displayTimeUnit": "ms", "traceEvents": events}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _lane(hardware: Hardware, lane: int) -> str:
    if lane <= 0:
        return "compute" if lane else "links of a node"
    named = hardware.levels[lane - 1].name if lane <= len(hardware.levels) else ""
    return f"network, {named}" if named else "network"
