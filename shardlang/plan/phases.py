"""Which steps of a plan with microbatches run once, and when: before the first microbatch, or after the last.

A value without gradient that is summed over all microbatches is either made of data alone, then it is known ahead; or
read by metrics alone, then it is known last. Everything else runs with every microbatch.
"""

from __future__ import annotations

from shardlang.graph.graph import Kind
from shardlang.plan.plan import Conversion, MoveKind, Plan, Step
from shardlang.records import dataclass

Form = tuple[int, int]  # (value, conversion), -1 for the value as produced


@dataclass(frozen=True)
class Phases:
    """The plan's steps, sorted; each keeps its order.

    ahead: with every microbatch, before the first forward: what the totals are made of (most of it is in `body` too).
    totals: forms that are sums over all microbatches, of data alone. known: what is computed from them once.
    body: with every microbatch. sums: forms whose sums over all microbatches `after` begins with. after: once.
    """

    ahead: tuple[Step, ...]
    totals: tuple[Form, ...]
    known: tuple[Step, ...]
    body: tuple[Step, ...]
    sums: tuple[Form, ...]
    after: tuple[Step, ...]


def summed_in_time(plan: Plan, conversion: Conversion) -> bool:
    """Whether a conversion sums a value over all microbatches."""
    time, move = plan.meshes[conversion.to.mesh].time, conversion.move
    return time is not None and time.name in move.axes and move.kind in (MoveKind.P_TO_I, MoveKind.P_TO_R)


def phases(plan: Plan) -> Phases:
    """All in `body` where there are no microbatches."""
    early = _of_data_alone(plan)
    known: list[Step] = []
    body: list[Step] = []
    after: list[Step] = []
    once: dict[Form, list[Step]] = {}  # forms that are computed once -> the list of steps they stand in
    for step in plan.steps:
        reads, makes, value = _forms(plan, step)
        home = _home(plan, step, value in early, [once[r] for r in reads if r in once], known, after)
        if home is None:
            body.append(step)
            continue
        home.append(step)
        once.update(dict.fromkeys(makes, home))
    totals = _begins(plan, known)
    return Phases(_needed(plan, totals), totals, tuple(known), tuple(body), _begins(plan, after), tuple(after))


def _home(plan: Plan, step: Step, early: bool, read: list[list[Step]], known: list[Step],
          after: list[Step]) -> list[Step] | None:  # fmt: skip
    """Where a step stands that runs once; None for one that runs with every microbatch."""
    if step.kind == "conversion":
        conversion = plan.conversions[step.index]
        if summed_in_time(plan, conversion):
            return known if early else after
        return read[0] if read else None
    op = plan.ops[step.index]
    if any(home is after for home in read):
        return after
    forms = [(use.value, use.conversion) for use in op.operands]
    values = plan.graph.values
    constant = [values[v].kind is Kind.CONSTANT for v, _ in forms]
    return known if read and len(read) + sum(constant) == len(forms) else None


def _forms(plan: Plan, step: Step) -> tuple[list[Form], list[Form], int]:
    """What a step reads and makes, and the value it is about."""
    if step.kind == "conversion":
        conversion = plan.conversions[step.index]
        return [(conversion.value, conversion.parent)], [(conversion.value, conversion.id)], conversion.value
    op = plan.ops[step.index]
    results = plan.graph.ops[op.op].results
    return [(u.value, u.conversion) for u in op.operands], [(v, -1) for v in results], results[0]


def _of_data_alone(plan: Plan) -> set[int]:
    found = {v.id for v in plan.graph.values if v.kind in (Kind.DATA, Kind.CONSTANT)}
    for op in plan.graph.ops:
        if found.issuperset(op.operands):
            found.update(op.results)
    return found


def _begins(plan: Plan, steps: list[Step]) -> tuple[Form, ...]:
    """The forms that sums over all microbatches start from."""
    conversions = [plan.conversions[s.index] for s in steps if s.kind == "conversion"]
    return tuple(dict.fromkeys((c.value, c.parent) for c in conversions if summed_in_time(plan, c)))


def _needed(plan: Plan, wanted: tuple[Form, ...]) -> tuple[Step, ...]:
    """The steps that make some forms, in order."""
    need = set(wanted)
    found = []
    for step in reversed(plan.steps):
        reads, makes, _ = _forms(plan, step)
        if need.intersection(makes):
            need.update(reads)
            found.append(step)
    return tuple(reversed(found))
