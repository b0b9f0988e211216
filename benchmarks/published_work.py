"""The plans of two and of three layers -> what one layer adds and what the ends of the model do.

    profile(row) -> Profile

All is of one rank and one microbatch. Layers are alike, so what a third one adds is what each adds,
exactly; the rest of the plan of two, less two layers, is the embedding and the head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from published_rows import Row

from shardlang.cost.planned import work
from shardlang.cost.work import FORWARD, Gather, Item, Pass, Reduction, Segment, Workload

NAMES = ("forward", "backward", "gathers", "reductions")
Counted = TypeVar("Counted", Item, Gather, Reduction)


@dataclass(frozen=True)
class Part:
    """What a layer, or an end of the model, does. updated: elements of parameters, or of the
    rank's share of them, that the optimizer goes over."""

    forward: Counter[Item]
    backward: Counter[Item]
    gathers: Counter[Gather]
    reductions: Counter[Reduction]
    updated: int


@dataclass(frozen=True)
class Profile:
    """first: before the layers; last: after them, but `updated` of both is in first. flops: of the
    model in a step of the row."""

    layer: Part
    first: Part
    last: Part
    flops: int


@cache
def _work(row: Row, layers: int) -> Workload:
    return work(row.plan(layers))


def whole(row: Row, layers: int) -> Part:
    """All that the plan of so many layers does."""
    return _part(_work(row, layers), lambda pass_: pass_)


def profile(row: Row) -> Profile:
    two, three = (_work(row, layers) for layers in (2, 3))
    layer = _less(whole(row, 3), whole(row, 2))
    rest = _less(_less(whole(row, 2), layer), layer)
    last = Part(*(getattr(_part(two, _behind), name) & getattr(rest, name) for name in NAMES), 0)
    added = three.flops - two.flops
    flops = row.microbatches * (two.flops + (row.layers - 2) * added)
    return Profile(layer, _less(rest, last), last, flops)


def _part(of: Workload, some: Callable[[Pass], Iterable[Segment]]) -> Part:
    stage, updates = of.stages[0], of.coordinates[0].updates
    forward, backward = some(stage.forward), some(stage.backward)
    return Part(
        _counted((s, s.items) for s in forward), _counted((s, s.items) for s in backward),
        _counted((s, dict(Counter(s.gathers))) for s in forward),
        _counted((s, dict(Counter(s.reductions))) for s in backward),
        sum(u.elements for u in updates if u.kind == "adamw"),
    )  # fmt: skip


def _counted(found: Iterable[tuple[Segment, dict[Counted, int]]]) -> Counter[Counted]:
    counts: Counter[Counted] = Counter()
    for segment, items in found:
        for item, times in items.items():
            counts[item] += times * segment.times
    return counts


def _behind(pass_: Pass) -> Pass:
    """The segments behind the layers of an array, in the order of the forward."""
    layers = [i for i, s in enumerate(pass_) if "[" in s.layer]
    back = any(item.phase != FORWARD for s in pass_ for item in s.items)
    return pass_[: layers[0]] if back else pass_[layers[-1] + 1 :]


def _less(a: Part, b: Part) -> Part:
    return Part(*(getattr(a, name) - getattr(b, name) for name in NAMES), a.updated - b.updated)
