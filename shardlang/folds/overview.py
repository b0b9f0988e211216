"""A plan -> the first parts of its report: bytes sent by kind, and the largest of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeVar

from shardlang.folds.traffic import Sent, sent
from shardlang.paths.patterns import count
from shardlang.paths.runs import called, in_runs, unindexed
from shardlang.plan.pipeline import actions as lists
from shardlang.plan.plan import Plan
from shardlang.step.parameters import all_held
from shardlang.step.saved_activations import saved_activations
from shardlang.step.stages import used

# How many of the largest are listed.
MOST = 5

Entry = dict[str, Any]
Found = TypeVar("Found")


def overview(plan: Plan, sending: Collection[int], keeping: Collection[int]) -> Entry:
    """The bytes that a rank of some stages sends in a step, and the largest of these and of those
    that a rank of others keeps."""
    return {
        "sent": _by_kind(plan, sending),
        "largest": {"sent": _largest_sent(plan, sending), "kept": _largest_kept(plan, keeping)},
    }


def _by_kind(plan: Plan, stages: Collection[int]) -> list[Entry]:
    """Bytes sent, by collective, axes and purpose."""
    found: dict[tuple[str, tuple[str, ...], str], list[int]] = {}
    for each in _of(plan, stages):
        sizes = each.forward_bytes, each.backward_bytes
        for phase, (collective, size) in enumerate(zip(each.collectives, sizes, strict=True)):
            if size:
                found.setdefault((collective, each.axes, each.what), [0, 0])[phase] += size
    return [
        {"collective": c, "axes": list(axes), "what": what, "forward_bytes": forward, "backward_bytes": backward}
        for (c, axes, what), (forward, backward) in sorted(found.items(), key=lambda entry: -sum(entry[1]))
    ]


def _of(plan: Plan, stages: Collection[int]) -> Iterator[Sent]:
    return (each for each in sent(plan) if not each.stages.isdisjoint(stages))


def _largest_sent(plan: Plan, stages: Collection[int]) -> list[Entry]:
    """The collectives that send most, those of equal layers together."""
    found: dict[object, list[Sent]] = {}
    for each in _of(plan, stages):
        found.setdefault((each.what, _alike(each.path), each.axes, each.collectives), []).append(each)
    largest = _largest((sum(one.forward_bytes + one.backward_bytes for one in each), each) for each in found.values())
    return [
        {
            "forward": each[0].collectives[0], "backward": each[0].collectives[1], "axes": list(each[0].axes),
            "what": each[0].what, "count": sum(count(one.path) for one in each),
            "paths": in_runs(one.path for one in each),
            "forward_bytes": sum(one.forward_bytes for one in each),
            "backward_bytes": sum(one.backward_bytes for one in each),
        }
        for _, each in largest
    ]  # fmt: skip


def _largest_kept(plan: Plan, stages: Collection[int]) -> list[Entry]:
    """The largest parts of the memory, those of equal layers together."""
    paths: dict[tuple[str, str], list[str]] = {}
    sizes = Counter[tuple[str, str]]()
    for what, path, size in _kept(plan, stages):
        paths.setdefault((what, _alike(path)), []).append(path)
        sizes[what, _alike(path)] += size
    largest = _largest((size, kind) for kind, size in sizes.items())
    return [
        {"what": kind[0], "count": sum(map(count, paths[kind])), "paths": in_runs(sorted(paths[kind])), "bytes": size}
        for size, kind in largest
    ]


def _alike(path: str) -> str:
    """The path that values of equal layers have in common, and values of one statement."""
    return unindexed(called(path))


def _kept(plan: Plan, stages: Collection[int]) -> Iterator[tuple[str, str, int]]:
    """The kind of each, its path, and its bytes: of an activation for all live microbatches."""
    values, found = plan.graph.values, saved_activations(plan)
    for param in plan.params.values():
        if used(plan, param.value, stages):
            mine = values[param.value]
            yield "parameter", mine.path, sum(all_held(plan)[param.value]) * mine.times
    for value in plan.graph.data:
        if value in plan.produced and used(plan, value, stages):
            yield "data", values[value].path.removeprefix("train."), found.data(value)
    alive = lists.most_alive([plan.actions[at] for at in {plan.coordinates[stage] for stage in stages}])
    for stage in stages:
        for path, size, stays in found.tensors(stage):
            yield "activation", path, size * (alive.get(stage, 1) * count(path) if stays else 1)


def _largest(found: Iterable[tuple[int, Found]]) -> list[tuple[int, Found]]:
    """The largest of what has any bytes."""
    return sorted((entry for entry in found if entry[0]), key=lambda entry: -entry[0])[:MOST]
