"""A plan and hardware -> `Prediction`: seconds of a step, what they go to, and what they rest on.

predict(plan, hardware) -> Prediction
predict_work(work, hardware, overlap) -> Prediction     of other items, or another executor"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from shardlang.cost.hardware import DATA_SHEET, DEFAULT, MEASURED, Hardware
from shardlang.cost.overlap import Overlap
from shardlang.cost.planned import work as work_of
from shardlang.cost.prices import Prices
from shardlang.cost.timeline import CoordinateTimeline, Course, course
from shardlang.cost.work import AGAIN, Attention, Collective, Place, Product, Workload
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Assumption:
    """A number that the prediction rests on: `measured`, from a `data sheet`, or a `default`."""

    what: str
    value: float
    rests_on: str


@dataclass(frozen=True, slots=True)
class CoordinateTime:
    """Seconds of a step at one coordinate: computed, and waited for in collectives."""

    compute_s: float = 0.0
    exposed_s: float = 0.0

    @property
    def total(self) -> float:
        return self.compute_s + self.exposed_s


@dataclass(frozen=True)
class Prediction:
    """A step. mfu counts attention whole, as PaLM does; mfu_causal only pairs that are seen; hfu
    what is computed again too. The seconds are those of the ranks at `coordinate` along the axis of
    the stages, where least is idle: by_layer adds up to the step less idle_s. exposed_s: by kind
    and axes. bubble: the share of the step that a rank is idle, in the mean over coordinates.
    by_operator: (place, parts) of each."""

    step_s: float
    tokens_per_s: float
    mfu: float
    mfu_causal: float
    hfu: float
    compute_s: float
    exposed_s: Mapping[tuple[str, tuple[str, ...]], float]
    idle_s: float
    bubble: float
    update_s: float
    coordinate: int
    by_layer: Mapping[str, CoordinateTime]
    by_operator: Mapping[Place, CoordinateTime]
    assumptions: tuple[Assumption, ...]


def predict(plan: Plan, hardware: Hardware, spread: float = 0.0) -> Prediction:
    """The prediction of a plan's step, as the emitted program does it. spread: by how much the
    slowest rank is slower than the others."""
    return predict_work(work_of(plan), hardware, None, spread)


def predict_work(work: Workload, hardware: Hardware, overlap: Overlap | None = None, spread: float = 0.0) -> Prediction:
    """That of items that an executor runs with this overlap table, by default the emitted
    program's on this hardware. The work keeps its last one."""
    kept, asked = vars(work), (hardware, overlap, spread)
    before, made = kept.get("predicted", (None, None))
    if before is None or made is None or any(a is not b for a, b in zip(before, asked, strict=True)):
        prices = Prices(work, hardware)
        made = _prediction(work, prices, course(prices, overlap or hardware.overlap), spread)
        kept["predicted"] = asked, made
    found: Prediction = made
    return found


def _prediction(work: Workload, prices: Prices, found: Course, spread: float) -> Prediction:
    at = min(range(len(found.lines)), key=lambda n: found.lines[n].idle)
    line, step = found.lines[at], found.step * (1 + spread)
    layers, exposed = _layers(line), _exposed(line)
    idle = line.idle + found.step * spread
    peak = prices.hardware.peak(_dtype(work)) * work.ranks * step
    bubble = sum(each.idle for each in found.lines) / len(found.lines) / found.step
    again = _again(work) * work.ranks // len(work.coordinates)
    return Prediction(
        step, work.tokens / step, (work.flops + work.hidden) / peak, mfu_causal=work.flops / peak,
        hfu=(work.flops + work.hidden + again) / peak, compute_s=sum(part.compute_s for part in layers.values()),
        exposed_s=exposed, idle_s=idle,
        bubble=bubble, update_s=sum(line.once.values()), coordinate=at, by_layer=layers, by_operator=operators(line),
        assumptions=tuple(_assumptions(prices.hardware)),
    )  # fmt: skip


def _dtype(work: Workload) -> str:
    """The type in which most is multiplied."""
    found: dict[str, int] = {}
    for stage in work.stages:
        for segment in stage.forward:
            for item, count in segment.items.items():
                if isinstance(item, Product | Attention):
                    found[item.dtype] = found.get(item.dtype, 0) + item.flops * count
    return max(found, key=lambda dtype: found[dtype], default="f32")


def _again(work: Workload) -> int:
    """Operations that each rank of all stages together computes again, masked pairs included."""
    total = 0.0
    for stage in work.stages:
        for segment in stage.backward:
            for item, count in segment.items.items():
                if isinstance(item, Product | Attention) and item.phase == AGAIN:
                    seen = 4 * item.heads * item.queries * item.keys * item.width if isinstance(item, Attention) else 0
                    total += (seen or item.flops) * count * segment.times * work.microbatches
    return round(total)


def waits(line: CoordinateTimeline) -> Iterator[tuple[str, str, tuple[str, ...], float]]:
    """The waits: layer, kind, axes, seconds."""
    for beat, times in line.beats.items():
        yield from ((beat.layer, kind, axes, seconds * times) for (kind, axes), seconds in beat.waits.items())
    yield from ((layer, kind, axes, seconds) for (layer, kind, axes), seconds in line.waits.items())


def _exposed(line: CoordinateTimeline) -> dict[tuple[str, tuple[str, ...]], float]:
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for _, kind, axes, seconds in waits(line):
        found[kind, axes] = found.get((kind, axes), 0.0) + seconds
    return {key: seconds for key, seconds in sorted(found.items(), key=lambda each: -each[1]) if seconds > 0}


def _layers(line: CoordinateTimeline) -> dict[str, CoordinateTime]:
    compute: dict[str, float] = {}
    exposed: dict[str, float] = {}
    for beat, times in line.beats.items():
        compute[beat.layer] = compute.get(beat.layer, 0.0) + beat.compute * times
    for layer, seconds in (*line.slower.items(), *(("step", seconds) for seconds in line.once.values())):
        compute[layer] = compute.get(layer, 0.0) + seconds
    for layer, _, _, seconds in waits(line):
        exposed[layer] = exposed.get(layer, 0.0) + seconds
    return {layer: CoordinateTime(compute.get(layer, 0.0), exposed.get(layer, 0.0)) for layer in {**compute, **exposed}}


def operators(line: CoordinateTimeline) -> dict[Place, CoordinateTime]:
    """The parts of a coordinate's step by operator, the longest first."""
    found: dict[Place, CoordinateTime] = {}
    for beat, times in line.beats.items():
        for item, seconds in beat.parts:
            before, waits = found.get(item.place, CoordinateTime()), isinstance(item, Collective)
            more = seconds * times
            part = CoordinateTime(before.compute_s + more * (not waits), before.exposed_s + more * waits)
            found[item.place] = part
    return dict(sorted(found.items(), key=lambda each: -each[1].total))


# The numbers of a hardware that its speeds are.
_NUMBERS = (
    "compute", "bandwidth", "link", "link_latency", "network", "network_latency", "host", "launch", "meeting", "base",
)  # fmt: skip


def _assumptions(hardware: Hardware) -> Iterator[Assumption]:
    for name in _NUMBERS:
        if value := getattr(hardware, name):
            yield Assumption(name, value, hardware.origin(name))
    for name, share in asdict(hardware.shares).items():
        yield Assumption(f"share of {name}", share, hardware.origin(f"shares.{name}"))


def rests_on(prediction: Prediction) -> str:
    """The weakest of what the speeds rest on."""
    found = {each.rests_on for each in prediction.assumptions if each.what in ("compute", "bandwidth", "network")}
    return next((each for each in (DATA_SHEET, DEFAULT, MEASURED) if each in found), DEFAULT)


def plain(prediction: Prediction) -> dict[str, Any]:
    """As `shardc plan --json` has it."""
    made = {
        name: getattr(prediction, name)
        for name in ("step_s", "tokens_per_s", "mfu", "mfu_causal", "hfu", "compute_s", "idle_s", "bubble", "update_s")
    }
    return {
        **made,
        "coordinate": prediction.coordinate,
        "exposed_s": [
            {"kind": kind, "axes": list(axes), "seconds": seconds}
            for (kind, axes), seconds in prediction.exposed_s.items()
        ],
        "by_layer": [{"layer": layer, **asdict(part)} for layer, part in prediction.by_layer.items()],
        "by_operator": [{**asdict(place), **asdict(part)} for place, part in prediction.by_operator.items()],
        "assumptions": [asdict(each) for each in prediction.assumptions],
    }
