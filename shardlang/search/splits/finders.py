"""A search mode and the choices of operators -> an option for each.

`exact` solves an integer program, `dynamic_programming` goes through the operators in order, and
`recursive_programming` takes axis by axis what saves most at each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.check.program import CheckedProgram
from shardlang.frozen.records import dataclass
from shardlang.plan.demand import ResolvedStrategy
from shardlang.plan.layouts.assignment import Assignment
from shardlang.search.request import DYNAMIC, RECURSIVE
from shardlang.search.splits.chain import in_sequence
from shardlang.search.splits.choices import Choices, found_choices
from shardlang.search.splits.halving import greedily
from shardlang.search.splits.integer_program import solved
from shardlang.search.splits.seconds import SplitPrices


@dataclass(frozen=True)
class Assigned:
    """chosen: the assignment of each operator. seconds: of a microbatch with them."""

    of: Choices
    chosen: Mapping[int, Assignment]
    seconds: float


def assigned(
    read: tuple[ResolvedStrategy, CheckedProgram], open: Sequence[str], rates: SplitPrices, mode: str,
    limit: int | None, lean: bool = False,
) -> Assigned | None:  # fmt: skip
    """The assignments along the axes that are open: along all together if that is not too much.
    lean: bytes of parameters count as much as seconds."""
    given: Mapping[int, Assignment] | None = None
    together = found_choices(read, open, open, rates) if mode != RECURSIVE or not open else None
    if together is not None:
        return _found(together, mode, limit, lean)
    found: Assigned | None = None
    for axis in open:
        choices = found_choices(read, open, (axis,), rates, given)
        found = _found(choices, mode, limit, lean) if choices is not None else None
        if found is None:
            return None
        given = found.chosen
    return found


def _found(of: Choices, mode: str, limit: int | None, lean: bool) -> Assigned | None:
    if mode == DYNAMIC:
        picks = in_sequence(of, limit)
    elif mode == RECURSIVE:
        picks = greedily(of)
    else:
        solution = solved(of)
        if solution is not None and lean:
            solution = solved(of, of.seconds(solution.picks) / max(1, of.stored(solution.picks)))
        if solution is None:
            return None
        picks = solution.picks
    return Assigned(of, of.assignments(picks), of.seconds(picks))
