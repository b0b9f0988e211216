"""The best strategies with their predictions -> what is told of them: the text with its reasons,
the rows of a table, plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardlang.cost.hardware import Hardware
from shardlang.cost.planned import work
from shardlang.cost.predict import Prediction, plain, predict_work
from shardlang.folds.fits import taken
from shardlang.frozen.records import dataclass
from shardlang.paths.runs import in_runs
from shardlang.search import print_rules
from shardlang.search.best_of_space import Outcome
from shardlang.search.fit_memory import FittedPoint
from shardlang.search.print_rules import FOUND
from shardlang.search.tune import Tuned
from shardlang.search.write import MARK, text_of
from shardlang.syntax import ast
from shardlang.terminal.display import duration, percent, rounded_up, size

VERSION = 1


@dataclass(frozen=True)
class RankedStrategy:
    """One of the best: what each hole is filled with, and what is predicted."""

    facts: Mapping[str, str]
    prediction: Prediction
    memory: int
    found: FittedPoint


@dataclass(frozen=True)
class Answer:
    """title: of the strategy; text: of its rules, with reasons. behind: the strategy of the file
    that it comes from, if any. gap: how much less time than the best any other strategy could
    take at most, as a share of it; 0 where all were planned. looked: at so many of all points.
    spare: the fastest that leaves `MARGIN` of the memory free, if any. stopped: by what the search
    was ended before its time; "" if it was not."""

    title: str
    behind: str | None
    ranks: int
    hardware: Hardware
    rows: Sequence[RankedStrategy]
    gap: float
    looked: int
    total: int
    text: str = ""
    spare: RankedStrategy | None = None
    stopped: str = ""

    def plain(self) -> dict[str, Any]:
        """As `shardc tune --json` prints it."""
        return {
            "version": VERSION, "ranks": self.ranks, "cluster": self.hardware.cluster, "device": self.hardware.device,
            "from": self.behind, "strategy": self.title, "text": self.text, "gap": self.gap,
            "points": {"looked_at": self.looked, "all": self.total},
            "best": [self._plain(row) for row in self.rows],
            "spare": self._plain(self.spare) if self.spare is not None else None,
        }  # fmt: skip

    def _plain(self, row: RankedStrategy) -> dict[str, Any]:
        text = text_of(_named(row.found, self.title), ())
        return {"facts": dict(row.facts), "text": text, "memory": row.memory, "predicted": plain(row.prediction)}


def answer(tuned: Tuned, ranks: int, hardware: Hardware) -> Answer:
    """The answer about the best strategies."""
    outcome = tuned.outcome
    rows = [_row(found, hardware) for found in outcome.best]
    spare = _row(outcome.spare, hardware) if outcome.spare is not None else None
    best, written = rows[0], tuned.of.span.source.name != FOUND
    gap = _gap(outcome, best.prediction)
    behind = tuned.of.name.text if written else None
    of = f" of `{hardware.cluster}`" if hardware.cluster else ""
    source = f"tuned from `{behind}`" if behind else "tuned"
    limit = f" of {size(int(hardware.memory))}" if hardware.memory else ""
    memory = f"{rounded_up(best.memory)}{limit}"
    first = (
        f"{source} for {ranks} ranks{of}: {duration(best.prediction.step_s)} a step (predicted), "
        f"MFU {percent(best.prediction.mfu)}, {memory}; gap {percent(gap)}."
    )
    text = text_of(_named(best.found, tuned.title), [first, *_second(rows)])
    assert text.startswith(MARK)
    stopped = outcome.stopped
    return Answer(
        tuned.title, behind, ranks, hardware=hardware, rows=rows, gap=gap, looked=outcome.looked, total=outcome.total,
        text=text, spare=spare, stopped=stopped,
    )  # fmt: skip


def _row(found: FittedPoint, hardware: Hardware) -> RankedStrategy:
    took = taken(found.plan)
    memory = max(found.memory, took.device if took is not None else 0)
    return RankedStrategy(facts(found), predict_work(work(found.plan), hardware), memory, found)


def _gap(outcome: Outcome, best: Prediction) -> float:
    """How much less time anything else could take at most. Nothing takes less than all operations
    of the model at the device's peak."""
    if outcome.all:
        return 0.0
    return max(0.0, 1 - outcome.open / best.step_s) if outcome.open is not None else 1 - min(1.0, best.mfu_causal)


def _named(found: FittedPoint, title: str) -> ast.Strategy:
    return print_rules.strategy(title, found.strategy.rules)


def facts(found: FittedPoint) -> dict[str, str]:
    """The facts that distinguish a strategy from others, in the words of the language."""
    point, plan = found.point, found.plan
    stages = plan.pipeline
    count = len(stages.coordinates) // stages.mesh.axis_size(stages.axis) if stages is not None else 1
    zero = max((param.zero for param in plan.params.values()), default=0)
    keep = any(param.keep for param in plan.params.values())
    splits = [f"{dim} over {', '.join(a + '?' * y for a, y in uses)}" for _, dim, uses in point.splits]
    splits += [f"{path}: {layout}" for path, layout in point.pins]
    host = [plan.graph.values[v].path for v in plan.params if v in plan.memory_of]
    return {
        "mesh": ", ".join(f"{axis} = {n}" for axis, n in point.sizes if n > 1) or "1 rank",
        "splits": ", ".join(splits) or "-",
        "virtual": str(count),
        "microbatches": str(plan.microbatches),
        "schedule": stages.schedule if stages is not None else "-",
        "zero": f"{zero}{', keep' * keep}",
        "bucket": size(plan.bucket_bytes),
        "recompute": (", ".join(in_runs(point.layers)) + f" {point.again}".rstrip()) if point.layers else "-",
        "host": ", ".join(in_runs(host)) or "-",
    }


def differing(these: Mapping[str, str], best: Mapping[str, str]) -> list[str]:
    """The facts in which a strategy is not the best one, as a sentence has them."""
    other = {what: value for what, value in these.items() if value != best[what]}
    return [f"no {what}" if value == "-" else f"{what} {value}" for what, value in other.items()]


def _second(rows: Sequence[RankedStrategy]) -> list[str]:
    """The next best, and where the time goes."""
    best = rows[0].prediction
    parts = [f"computing {percent(best.compute_s / best.step_s)}"]
    exposed = [(kind, axes, s) for (kind, axes), s in best.exposed_s.items() if s >= 0.01 * best.step_s]
    named = ((f"{kind.replace('_', '-')} over {', '.join(axes)}", seconds) for kind, axes, seconds in exposed[:3])
    parts += [f"{what} {percent(seconds / best.step_s)}" for what, seconds in named]
    parts += [f"waiting for other stages {percent(best.idle_s / best.step_s)}"] * (best.idle_s >= 0.01 * best.step_s)
    lines = []
    if len(rows) > 1:
        other = rows[1]
        differ = "; ".join(differing(other.facts, rows[0].facts))
        lines.append(f"Next best: {differ or 'the same'}: {duration(other.prediction.step_s)}.")
    return [*lines, f"Of the step's time: {', '.join(parts)}."]
