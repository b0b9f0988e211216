"""The work of a published row, as the measured system did it -> the seconds of its step, by the timeline.

predicted(row, machine, share) -> Parts   by kind; share: of the peak that products reach"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from executed import executed
from executors import Machine, System
from published_rows import Row

from shardlang.cost.prices import Prices
from shardlang.cost.timeline import CoordinateTimeline, course
from shardlang.cost.work import Collective, Item, Product, Workload

_KNOWN: dict[Row, Workload] = {}


class Parts(dict[str, float]):
    """Seconds by kind, of the coordinate that is idle least: products, attention, streams, gradients
    (adding up those of microbatches), update, idle (the bubble), beside (what collectives slow
    compute by, and the copies of what they send), and axes of collectives that are waited for."""

    @property
    def seconds(self) -> float:
        return sum(self.values())


def _work(row: Row, system: System) -> Workload:
    """`executed`, once for each row."""
    if row not in _KNOWN:
        _KNOWN[row] = executed(row, system)
    return _KNOWN[row]


def predicted(row: Row, machine: Machine, share: float) -> Parts:
    """The seconds of a row's step."""
    shares = dataclasses.replace(machine.hardware.shares, product=share)
    hardware = dataclasses.replace(machine.hardware, shares=shares)
    found = course(Prices(_work(row, machine.system), hardware), machine.system.overlap)
    line = min(found.lines, key=lambda line: line.idle)
    parts = Parts()
    for kind, seconds in _kinds(line):
        parts[kind] = parts.get(kind, 0.0) + seconds
    return parts


def _kinds(line: CoordinateTimeline) -> Iterator[tuple[str, float]]:
    for beat, times in line.beats.items():
        for item, seconds in beat.parts:
            if not isinstance(item, Collective):
                yield _kind(item), seconds * times
        computed = sum(seconds for item, seconds in beat.parts if not isinstance(item, Collective))
        yield "beside", (beat.compute - computed) * times
        for (_, axes), seconds in beat.waits.items():
            yield " ".join(axes), seconds * times
    for (_, _, axes), seconds in line.waits.items():
        yield " ".join(axes), seconds
    yield "beside", sum(line.slower.values())
    yield "update", sum(line.once.values())
    yield "idle", line.idle


def _kind(item: Item) -> str:
    known = {"attention": "attention", "gradient": "gradients", "step": "update"}
    return known.get(item.place.operator, "products" if isinstance(item, Product) else "streams")
