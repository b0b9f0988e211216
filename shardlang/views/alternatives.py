"""A program and a change of its strategy -> the figures of the plan with that change, or the reason
why there is none. Nothing is guessed: each alternative is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardlang.check.program import CheckedProgram
from shardlang.cost.hardware import Hardware
from shardlang.cost.predict import predict
from shardlang.diagnostics.diagnostic import Diagnostic, Severity, Sink
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import TOLD_ONCE, SingleLayers
from shardlang.plan.bytes.memory import stages_by_coordinate
from shardlang.plan.bytes.peak.step import step_peaks
from shardlang.plan.bytes.traffic import sent_bytes
from shardlang.plan.plan import Plan
from shardlang.plan.planner import plan
from shardlang.sources.source import Span
from shardlang.syntax import ast


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of a plan: the bytes that so many ranks send in a step, the most that one holds, the
    seconds of a step (None: not known)."""

    sent: int
    peak: int
    step_s: float | None


def figures(of: Plan, hardware: Hardware | None, ranks: int) -> PlanCost:
    """ranks: so many send, as one at each coordinate of the stages does in the mean."""
    lines = [None] if of.pipeline is None else stages_by_coordinate(of)
    sends = sum(sum(sent_bytes(of, mine)) for mine in lines) * ranks // len(lines)
    step_s = predict(of, hardware).step_s if hardware is not None else None
    return PlanCost(sends, max(peak.bytes for peak in step_peaks(of)), step_s)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A rule that could be written, with the figures of the plan that it makes; else the
    diagnostics that refuse it. told: what it changes, where the rule is long."""

    written: str
    figures: PlanCost | None
    refused: tuple[Diagnostic, ...] = ()
    told: str = ""


@dataclass(frozen=True)
class StrategyCase:
    """A program on ranks, the strategy that is asked about (None: none is used), its plan, and the
    hardware (None: without speeds)."""

    program: CheckedProgram
    strategy: ast.Strategy | None
    plan: Plan
    hardware: Hardware | None = None

    def figures(self, of: Plan) -> PlanCost:
        """Those of a plan; it sends as many ranks' bytes as this one has coordinates of stages."""
        return figures(of, self.hardware, len(self.plan.pipeline.actions) if self.plan.pipeline is not None else 1)

    def instead(
        self, written: str, rules: Sequence[ast.Rule], sizes: dict[str, int] | None = None, told: str = ""
    ) -> Alternative:
        """The alternative in which the strategy has these rules, and axes these sizes."""
        assert self.strategy is not None
        changed = replace(self.strategy, rules=tuple(rules))
        name, program = changed.name.text, self.program
        others = {**program.axis_overrides, name: {**program.axis_overrides.get(name, {}), **(sizes or {})}}
        strategies = tuple(changed if each is self.strategy else each for each in program.strategies)

        def planned(of: CheckedProgram) -> Alternative:
            sink = Sink()
            found = plan(of, name, self.plan.ranks, sink)
            if found is not None:
                return Alternative(written, self.figures(found), told=told)
            if of.graph.in_runs and any(d.code not in TOLD_ONCE for d in sink.found):
                raise SingleLayers
            return Alternative(written, None, tuple(d for d in sink.found if d.severity is Severity.ERROR), told)

        return replace(program, strategies=strategies, axis_overrides=others).in_runs(planned)


def place(span: Span) -> dict[str, Any]:
    """Where a rule stands, and its text on one line."""
    return {"source": f"{span.source.name}:{span.line}", "text": " ".join(span.text.split())}


def entry(one: Alternative) -> dict[str, Any]:
    """An alternative as plain data."""
    found: dict[str, Any] = {"written": one.written, "told": one.told or one.written, **_figures(one.figures)}
    found["refused"] = [
        {"code": d.code, "message": d.message, "help": list(d.help),
         "source": f"{d.primary.span.source.name}:{d.primary.span.line}" if d.primary is not None else None}
        for d in one.refused[:1]
    ]  # fmt: skip
    return found


def _figures(of: PlanCost | None) -> dict[str, Any]:
    if of is None:
        return {"sent_bytes": None, "peak_bytes": None, "step_s": None}
    return {"sent_bytes": of.sent, "peak_bytes": of.peak, "step_s": of.step_s}


def head(asked: StrategyCase) -> dict[str, Any]:
    """The first keys of an answer: of which plan it is, and its figures."""
    made = asked.plan
    now = _figures(asked.figures(made))
    return {
        "version": 1, "program": made.program.source.name, "strategy": made.strategy, "ranks": made.ranks,
        "stages_over": made.pipeline.axis if made.pipeline is not None else None, "now": now,
    }  # fmt: skip
