"""A plan -> its steps by layers of the arrays that have a run of equal layers, which is told once.

Each layer of a run takes what its steps take, where those of a layer beside it take the same
(course.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import count
from shardlang.plan.plan import Plan, Step


@dataclass(frozen=True)
class Windows:
    """of: step -> the window that it is in, -1 for none; times: how many layers a window is.
    runs: the windows of runs, each with the one before and the one after."""

    of: Mapping[Step, int]
    times: Mapping[int, int]
    runs: Sequence[tuple[int, int, int]]

    def turns(self, window: int) -> range:
        """The numbers of the layers that a window is."""
        return range(self.times.get(window, 1))


def windows(plan: Plan) -> Windows:
    """Those of a plan. A conversion is of the layer before it; from one of a parameter on, of the
    layer whose operator follows. None where each layer of an array is told."""
    calls, found, window = plan.graph.calls, dict[Step, int](), -1
    times = [count(call.path) for call in calls]
    arrays = {(call.within, call.path.rpartition("[")[0]) for call, n in zip(calls, times, strict=True) if n > 1}
    outer: dict[int, int] = {-1: -1}
    for at, call in enumerate(calls):
        mine = call.path.endswith("]") and (call.within, call.path.rpartition("[")[0]) in arrays
        outer[at] = outer[call.within] if outer[call.within] >= 0 or not mine else at
    waiting = list[Step]()
    for step in plan.steps:
        if step.kind == "op":
            window = outer[plan.graph.ops[plan.ops[step.index].op].within]
            found.update(dict.fromkeys((*waiting, step), window))
            waiting = []
        elif waiting or plan.conversions[step.index].value in plan.params:
            waiting.append(step)
        else:
            found[step] = window
    found.update(dict.fromkeys(waiting, window))
    order = [window for window, _ in groupby(found[step] for step in plan.steps) if window >= 0]
    beside = zip(order[1:], order, order[2:], strict=False)
    return Windows(found, dict(enumerate(times)), [each for each in beside if times[each[0]] > 1])
