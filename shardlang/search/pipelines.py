"""A point of a deep program -> its pipeline: the layers of each stage, and where stages are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.paths import patterns
from shardlang.plan.pipeline.balance import parts, stage_starts
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.plan.strategy.axis_sizes import evaluate
from shardlang.search.layers import ArrayOfLayers
from shardlang.search.space import Open, Point, stage_count
from shardlang.syntax import ast


@dataclass(frozen=True)
class Pipe:
    """layers: the numbers of those of each stage. coordinates: of each stage; size: how many there
    are. count: of microbatches."""

    layers: Sequence[range]
    coordinates: tuple[int, ...]
    size: int
    count: int
    schedule: str = ""

    @cached_property
    def on(self) -> Sequence[tuple[int, ...]]:
        """The stages of each coordinate."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for stage, at in enumerate(self.coordinates):
            found[at].append(stage)
        return [tuple(mine) for mine in found]

    def sends(self, stage: int) -> bool:
        """Whether a stage is sent what it reads; none is behind the last."""
        return 0 < stage < len(self.layers) and self.coordinates[stage] != self.coordinates[stage - 1]

    def runs(self, stage: int) -> Mapping[int, int]:
        """How often the runs of a profile are in a stage: 0 is what is before the layers, 1 the
        first, 3 the last, 2 one between, 4 what is after."""
        mine, last = self.layers[stage], self.layers[-1].stop - 1
        first, end, (begins, ends) = 0 in mine, last in mine, (stage == 0, stage == len(self.layers) - 1)
        return {0: begins, 1: first, 2: len(mine) - first - end, 3: end, 4: ends}


def pipe(of: Open, array: ArrayOfLayers, point: Point) -> Pipe | None:
    """The pipeline of a point, found once; None where it has none so."""
    key = point.sizes, point.virtual, point.microbatches, point.schedule
    return of.found.table((pipe, key), lambda: _pipe(of, array, point))


def _pipe(of: Open, array: ArrayOfLayers, point: Point) -> Pipe | None:
    degrees = {**of.program.statics, **dict(point.sizes)}
    size, count = stage_count(of, dict(point.sizes)), _count(of, point, degrees)
    if count is None:
        return None
    if size == 1 or of.stages is None:
        return Pipe([range(array.count)], (0,), 1, count)
    written = of.stages.virtual
    virtual = point.virtual or (evaluate(written, degrees) if written is not None else 1)
    if not isinstance(virtual, int) or not of.stages.balanced:
        return None
    stages = size * virtual
    name = point.schedule or _schedule(of, virtual, count, stages)
    known = SCHEDULES.get(name)
    if known is None or not known.takes(virtual) or not known.fits(stages, size, count):
        return None
    layers = of.found.table(
        (stage_layers, stages), lambda: of.program.in_runs(lambda program: stage_layers(program.graph, array, stages))
    )
    if layers is None:
        return None
    return Pipe(layers, known.place(stages, size), size, count, name)


def _count(of: Open, point: Point, names: dict[str, int | float]) -> int | None:
    """The microbatches."""
    written = next((r.count for r in of.rules if isinstance(r, ast.Microbatches)), None)
    count = point.microbatches or (evaluate(written, names) if written is not None else 1)
    return count if isinstance(count, int) else None


def _schedule(of: Open, virtual: int, count: int, stages: int) -> str:
    written = next((r.name.value for r in of.rules if isinstance(r, ast.Schedule) and r.name is not None), "")
    return written or ("interleaved_1f1b" if virtual > 1 else "1f1b" if count >= stages else "gpipe")


def stage_layers(graph: Graph, array: ArrayOfLayers, count: int) -> list[range] | None:
    """The layers of each stage, as `balanced` cuts them; None where it cuts layers themselves, or
    there are too few."""
    units, groups = parts(graph, count)
    if any(unit.startswith(array.path + "[") and not unit.endswith("]") for group in groups for unit in group):
        return None
    mine = [sum(patterns.count(unit) for unit in group if unit.startswith(array.path + "[")) for group in groups]
    begins = [sum(mine[:at]) + turn for at, turn in stage_starts(graph, units, groups, count)]
    return [range(*ends) for ends in pairwise((*begins, array.count))] if begins else None
