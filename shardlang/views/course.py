"""A plan, and the hardware where its speeds are known -> the course of a step for the page of
`shardc report`: spans by coordinate and lane, what each of them consists of, and the memory of the
fullest coordinate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardlang.cost.hardware import Hardware
from shardlang.cost.planned import work
from shardlang.cost.predict import operators, waits
from shardlang.cost.prices import Prices
from shardlang.cost.scripts import Scripts
from shardlang.cost.timeline import CoordinateTimeline, Course, course
from shardlang.cost.work import Collective
from shardlang.facts.actions import FORWARD, Action
from shardlang.folds.peak.step import Peak, peaks_by_action, step_peaks
from shardlang.folds.pipeline_report import action_cost, stage_costs
from shardlang.plan.pipeline import actions as lists
from shardlang.plan.plan import Plan
from shardlang.views.diff import PlanFacts
from shardlang.views.program_text import LEAST, SLOWER, beside, by_layer, kind_of, over

Found = dict[str, Any]
# A span: its lane, begin, end, name.
Drawn = tuple[int, float, float, str]
# Spans begin and end at multiples of the whole by this. Those of one name with less between are
# one.
GRID, GAP = 100_000, 200
# Actions of the memory that are drawn at most.
MOST = 600


def with_course(seen: PlanFacts, hardware: Hardware | None) -> Found:
    """The report of a plan, with the course of its step, the cluster that it runs on, and what
    stands beside the text of its program."""
    plan, step = seen.plan, seen.found.get("predicted")
    keys = ("cluster", "devices", "nodes")
    of = {key: getattr(hardware, key) for key in keys} if hardware is not None else None
    found = course(Prices(work(plan), hardware), hardware.overlap) if hardware is not None else None
    seconds = [_by_class(line) for line in found.lines] if found is not None else None
    return {
        **seen.found, "memory": memory(plan), "cluster": of, "of_layers": by_layer(plan),
        "timeline": timeline(plan, hardware, found),
        "waits": by_wait(found.lines[step["coordinate"]]) if found is not None and step is not None else {},
        "text": beside(plan, seconds),
    }  # fmt: skip


def _by_class(line: CoordinateTimeline) -> dict[str, float]:
    """The seconds that operators and values take at a coordinate, by their class."""
    found: dict[str, float] = {}
    for place, part in operators(line).items():
        found[place.path] = found.get(place.path, 0.0) + part.total
    return found


def by_wait(line: CoordinateTimeline) -> dict[str, dict[str, float]]:
    """Seconds that are waited for, by layer and by what is sent."""
    found: dict[str, dict[str, float]] = {}
    for layer, kind, axes, seconds in waits(line):
        mine = found.setdefault(layer, {})
        mine[over(kind, axes)] = mine.get(over(kind, axes), 0.0) + seconds
    return found


def timeline(plan: Plan, hardware: Hardware | None, found: Course | None) -> Found | None:
    """The lanes of each coordinate, in seconds; without speeds in work, where there are stages."""
    if hardware is not None and found is not None:
        end = max((span.end for line in found.lines for span in line.spans), default=0.0)
        lines = [[(s.lane, s.begin, s.end, _shown(s.name)) for s in line.spans] for line in found.lines]
        lanes = {-1: "compute", 0: "links of a node", 1: "network"}
        names = lanes | {at + 1: f"network, {level.name}" for at, level in enumerate(hardware.levels)}
        return {**_drawn("s", end, lines, names, plan), **opened(plan, hardware)} if end else None
    if plan.pipeline is None:
        return None
    costs, actions = stage_costs(plan), plan.pipeline.actions
    shown = lists.timeline(actions, len(plan.pipeline.coordinates), lambda a: action_cost(costs[a.stage], a))
    rows = [
        [(-1, float(begin), float(stop), _name(action)) for action, (begin, stop) in zip(line, spans, strict=True)]
        for line, spans in zip(actions, shown.spans, strict=True)
    ]
    return _drawn("work", float(shown.end), rows, {-1: "compute"}, plan)


def _shown(name: str) -> str:
    """The name of a span: of a collective as the rest of the page has it."""
    kind, _, axes = name.partition(" ")
    return over(kind, axes.split(", ")) if axes else name


def opened(plan: Plan, hardware: Hardware) -> Found:
    """The parts that passes consist of: `passes`, each as rows (layer, how many of it, parts of
    one), where a part is what it is, its seconds and the bytes that it sends; and `pass_of` the
    stage and the kind of an action (`2B`) its number among them."""
    scripts = Scripts(Prices(work(plan), hardware), hardware.overlap)
    known: dict[str, int] = {}
    found, passes = dict[str, int](), list[Any]()
    for stage, kind in dict.fromkeys((action.stage, action.kind) for line in plan.actions for action in line):
        made = list(_pass(scripts, stage, kind))
        if repr(made) not in known:
            known[repr(made)] = len(passes)
            passes.append(made)
        found[f"{stage}{kind}"] = known[repr(made)]
    return {"passes": passes, "pass_of": found}


def _pass(scripts: Scripts, stage: int, kind: str) -> Iterator[tuple[str, int, list[tuple[str, float, int]]]]:
    of, beats, at = scripts.prices.work.stages[stage], scripts.script(stage, kind), 0
    for segment in (of.forward if kind == FORWARD else of.backward) if beats else ():
        beat, at = beats[at], at + segment.times
        parts: dict[str, list[float]] = {}  # seconds and bytes
        for item, seconds in beat.parts:
            match item:
                case Collective():
                    what, sends = over(item.kind, item.axes), item.bytes * segment.items[item]
                case _:
                    what, sends = kind_of(item.place.operator, item.place.layer), 0
            mine = parts.setdefault(what, [0.0, 0.0])
            mine[0] += seconds
            mine[1] += sends
        rest = beat.total - sum(seconds for seconds, _ in parts.values())
        parts.update({SLOWER: [rest, 0.0]} if rest > LEAST else {})
        yield (
            segment.layer,
            segment.times,
            [(what, round(time, 9), round(size)) for what, (time, size) in parts.items()],
        )


def _name(action: Action) -> str:
    return f"{action.stage}{action.kind}{action.microbatch}"


def _drawn(unit: str, end: float, lines: Sequence[Sequence[Drawn]], names: Mapping[int, str], plan: Plan) -> Found:
    """The spans as whole numbers of GRID, their names as places in a list."""
    known: dict[str, int] = {}
    axis = plan.pipeline.axis if plan.pipeline is not None else ""
    rows = []
    for at, line in enumerate(lines):
        lanes: dict[int, list[tuple[int, int, int]]] = {}
        for lane, begin, stop, name in line:
            number = known.setdefault(name, len(known))
            lanes.setdefault(lane, []).append((round(begin / end * GRID), round(stop / end * GRID), number))
        shown = [{"name": names.get(lane, "network"), "spans": list(_joined(lanes[lane]))} for lane in sorted(lanes)]
        rows.append({"name": f"{axis} {at}" if axis else "a rank", "lanes": shown})
    microbatches = 1 + max((int(name) for each in known if (name := each.rpartition("F")[2]).isdigit()), default=0)
    return {"unit": unit, "end": end, "grid": GRID, "names": list(known), "lines": rows, "microbatches": microbatches}


def _joined(spans: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """The spans in order, neighbours of one name as one."""
    last: tuple[int, int, int] | None = None
    for span in sorted(spans):
        if last is not None and last[2] == span[2] and span[0] - last[1] < GAP:
            last = (last[0], max(last[1], span[1]), last[2])
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def memory(plan: Plan) -> Found:
    """The most that a rank of the fullest coordinate holds in each action, by kind."""
    peaks = step_peaks(plan)
    at = max(range(len(peaks)), key=lambda each: peaks[each].bytes)
    seen = peaks_by_action(plan, at)
    names = [*map(_name, plan.actions[at]), "update"]
    return {"coordinate": at, "of": len(seen), **_by_kind(list(zip(names, seen, strict=True)))}


def _by_kind(moments: list[tuple[str, Peak]]) -> Found:
    """Rows of bytes by kind, the largest kind first; of very many actions those around the most."""
    most = max(range(len(moments)), key=lambda at: moments[at][1].bytes)
    first = max(0, min(most - MOST // 2, len(moments) - MOST))
    shown = moments[first : first + MOST]
    every = dict.fromkeys(kind for _, peak in shown for kind in peak.parts)
    kinds = sorted(every, key=lambda kind: -max(peak.parts.get(kind, 0) for _, peak in shown))
    return {
        "first": first, "most": most - first, "actions": [name for name, _ in shown],
        "kinds": [{"kind": kind, "bytes": [peak.parts.get(kind, 0) for _, peak in shown]} for kind in kinds],
    }  # fmt: skip
