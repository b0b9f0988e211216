"""The peak of a rank -> its part of the plan's report."""

from __future__ import annotations

from typing import Any

from shardlang.folds.peak.step import Peak
from shardlang.frozen.records import remembered
from shardlang.paths.patterns import in_turn, last_of_run
from shardlang.plan.plan import Plan
from shardlang.step.blocks.call import is_below
from shardlang.terminal.display import rounded_up

# What a rank does, as the report calls it.
_DOING = {"again": "recomputation", "reduce": "reduction of gradients"}


def moment(plan: Plan, peak: Peak) -> str:
    """`backward of microbatch 3 at train.loss`."""
    doing = _DOING.get(peak.doing, peak.doing)
    of = f" of microbatch {peak.microbatch}" if peak.microbatch >= 0 and plan.microbatches > 1 else ""
    at = f" at `{_path(plan, peak)}`" if peak.op >= 0 else ""
    return f"{doing}{of}{at}"


def _path(plan: Plan, peak: Peak) -> str:
    """The path of the operator of a peak: a cast that a layer makes has that of what it casts."""
    op = plan.graph.ops[peak.op]
    own = op.within >= 0 and is_below(op.path, plan.graph.calls[op.within].path)
    return in_turn(op.path, peak.turn) if own else last_of_run(op.path)


def parts(peak: Peak) -> str:
    """`activations 12 GB, ..`, the largest first."""
    largest = sorted(peak.parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{what} {rounded_up(most)}" for what, most in largest)


@remembered
def lacks(plan: Plan) -> str | None:
    """The part that is not counted: the two halves of a backward are followed as one."""
    split = any(action.half for row in plan.actions for action in row)
    return "what a backward that is cut in two holds between its halves" if split else None


def peak_entry(plan: Plan, peak: Peak) -> dict[str, Any]:
    """When the most is there, at which operator, and what."""
    op = plan.graph.ops[peak.op] if peak.op >= 0 else None
    return {
        "doing": _DOING.get(peak.doing, peak.doing),
        "microbatch": peak.microbatch if peak.microbatch >= 0 else None,
        "path": _path(plan, peak) if op is not None else None,
        "file": op.span.source.name if op is not None else None,
        "line": op.span.line if op is not None else None,
        "lacks": lacks(plan),
        "parts": [{"what": what, "bytes": most} for what, most in sorted(peak.parts.items(), key=lambda p: -p[1])],
    }
