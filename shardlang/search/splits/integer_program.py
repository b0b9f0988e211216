"""The options of choices with which a microbatch takes least, by an integer program.

A binary for each option of a choice; flows for what is handed on, from the form in which it is made
to the form in which it is read; one cost for each value and form, however many read it. HiGHS
solves it, on one thread and with a limit of nodes and none of time, so that the answer is always
the same."""

from __future__ import annotations

import math
from dataclasses import field
from importlib.util import find_spec
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.search.splits.choices import Choices, Handed

NODES = 2_000
# The objective is in microseconds: HiGHS compares to 1e-6.
UNIT = 1e6


@dataclass(frozen=True)
class Solution:
    """picks: the option of each choice. optimal: whether no other options can be better."""

    picks: tuple[int, ...]
    optimal: bool


def is_there() -> bool:
    """Whether HiGHS is installed."""
    return find_spec("highspy") is not None


def solved(of: Choices, a_byte: float = 0.0) -> Solution | None:
    """The best options; None where none is possible. a_byte: the seconds that a
    byte of parameters counts."""
    model = _Model()
    each = (zip(choice.own, choice.stored, strict=True) for choice in of.choices)
    binaries = [model.choice(tuple(own + a_byte * stored for own, stored in mine)) for mine in each]
    for value in of.handed:
        model.hand(value, binaries)
    return model.solve(binaries)


@dataclass
class _Model:
    """Columns and rows as they are added. A row: its bounds, the columns and their factors."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, list[int], list[float]]] = field(default_factory=list)

    def column(self, cost: float, whole: bool = False, upper: float = 1.0) -> int:
        self.cost.append(cost * UNIT if upper else 0.0)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.cost) - 1

    def choice(self, own: tuple[float, ...]) -> list[int]:
        found = [self.column(seconds, True) for seconds in own]
        self.rows.append((1.0, 1.0, found, [1.0] * len(found)))
        return found

    def hand(self, value: Handed, binaries: list[list[int]]) -> None:
        """Flows of a value to each reader, and what its conversions cost."""
        made = list(dict.fromkeys(value.made))
        shared: dict[tuple[int, int], list[int]] = {}
        for reader, forms in value.readers:
            needed = list(dict.fromkeys(forms))
            flows = {}
            for source in made:
                for form in needed:
                    seconds = value.seconds[source, form]
                    flows[source, form] = at = self.column(0.0, upper=0.0 if math.isinf(seconds) else 1.0)
                    if 0 < seconds < math.inf:
                        shared.setdefault((source, form), []).append(at)
            for source in made:
                mine = [x for x, form in zip(binaries[value.producer], value.made, strict=True) if form == source]
                self._equal([flows[source, form] for form in needed], mine)
            for form in needed:
                mine = [x for x, each in zip(binaries[reader], forms, strict=True) if each == form]
                self._equal([flows[source, form] for source in made], mine)
        for (source, form), flows_there in shared.items():
            seconds = value.times * value.seconds[source, form]
            if len(flows_there) == 1:
                self.cost[flows_there[0]] = seconds * UNIT
                continue
            once = self.column(seconds)
            for flow in flows_there:
                self.rows.append((0.0, math.inf, [once, flow], [1.0, -1.0]))

    def _equal(self, flows: list[int], binaries: list[int]) -> None:
        self.rows.append((0.0, 0.0, [*flows, *binaries], [1.0] * len(flows) + [-1.0] * len(binaries)))

    def solve(self, binaries: list[list[int]]) -> Solution | None:
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.cost), len(self.rows)
        model.col_cost_, model.col_lower_, model.col_upper_ = self.cost, [0.0] * len(self.cost), self.upper
        model.row_lower_, model.row_upper_ = [row[0] for row in self.rows], [row[1] for row in self.rows]
        starts = [0]
        for row in self.rows:
            starts.append(starts[-1] + len(row[2]))
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = starts
        matrix.index_ = [at for row in self.rows for at in row[2]]
        matrix.value_ = [factor for row in self.rows for factor in row[3]]
        kinds = highspy.HighsVarType
        model.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.whole]
        solver = _solver()
        for name, value in (("threads", 1), ("parallel", "off"), ("random_seed", 0),
                            ("mip_max_nodes", NODES), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.0)):  # fmt: skip
            solver.setOptionValue(name, value)
        solver.passModel(model)
        solver.run()
        values = list(solver.getSolution().col_value)
        if not values or solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        picks = tuple(_largest([values[at] for at in mine]) for mine in binaries)
        return Solution(picks, solver.getModelStatus() == highspy.HighsModelStatus.kOptimal)


def _solver() -> Any:
    """HiGHS without a word on the terminal."""
    import highspy

    class Quiet(highspy.Highs):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.setOptionValue("output_flag", False)

        def enableCallbacks(self) -> None:
            # HiGHS 1.16 prints its name here, before an option can be set from outside.
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return Quiet()


def _largest(values: list[float]) -> int:
    """The place of the first of the largest."""
    return values.index(max(values))
