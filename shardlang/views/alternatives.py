"""A program and a change of its strategy -> the figures of the plan with that change, or the reason
why there is none. Nothing is guessed: each alternative is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardlang.check.program import CheckedProgram
from shardlang.cost.hardware import Hardware
from shardlang.cost.predict import predict
from shardlang.diagnostics.diagnostic import Severity, Sink
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.planned import plan
from shardlang.folds.traffic import sent_bytes
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import TOLD_ONCE, SingleLayers
from shardlang.plan.plan import Plan
from shardlang.plan.strategy.instead import rules_of, without
from shardlang.sources.source import Span
from shardlang.step.stages import stages_by_coordinate
from shardlang.syntax import ast

Entry = dict[str, Any]
# Mistakes that are the first of a plan in the same words whether runs of equal layers are told once
# or not: those of a device's memory, and of a dim that does not divide.
TOLD_ALIKE = (*TOLD_ONCE, "SH304")


@dataclass(frozen=True)
class StrategyCase:
    """A program on ranks, the strategy that is asked about (None: none is used), its plan, and the
    hardware (None: without speeds)."""

    program: CheckedProgram
    strategy: ast.Strategy | None
    plan: Plan
    hardware: Hardware | None = None

    @property
    def rules(self) -> Sequence[ast.Rule]:
        """Those of the strategy; none where none is used."""
        return self.strategy.rules if self.strategy is not None else ()

    def figures(self, of: Plan | None) -> Entry:
        """Those of a plan (None: there is none): the bytes sent in a step by as many ranks as this
        plan has coordinates of stages, the most that one holds, the seconds (None: not known)."""
        if of is None:
            return {"sent_bytes": None, "peak_bytes": None, "step_s": None}
        ranks, lines = len(self.plan.actions), stages_by_coordinate(of)
        return {
            "sent_bytes": sum(sum(sent_bytes(of, mine)) for mine in lines) * ranks // len(lines),
            "peak_bytes": max(peak.bytes for peak in step_peaks(of)),
            "step_s": predict(of, self.hardware).step_s if self.hardware is not None else None,
        }

    def instead(
        self, written: str, rules: Sequence[ast.Rule], sizes: dict[str, int] | None = None, told: str = ""
    ) -> Entry:
        """The alternative in which the strategy has these rules, and axes these sizes: its figures,
        else why it is refused. written: a rule that could be written; told: what it changes, where
        the rule is long."""
        assert self.strategy is not None
        changed = replace(self.strategy, rules=tuple(rules))
        name, program = changed.name.text, self.program
        others = {**program.axis_overrides, name: {**program.axis_overrides.get(name, {}), **(sizes or {})}}
        strategies = tuple(changed if each is self.strategy else each for each in program.strategies)

        def planned(of: CheckedProgram) -> Entry:
            sink = Sink()
            found = plan(of, name, self.plan.ranks, sink)
            errors = [d for d in sink.found if d.severity is Severity.ERROR] if found is None else []
            if errors and errors[0].code not in TOLD_ALIKE and of.graph.in_runs:
                raise SingleLayers
            refused = [
                {"code": d.code, "message": d.message, "help": list(d.help),
                 "source": f"{d.primary.span.source.name}:{d.primary.span.line}" if d.primary is not None else None}
                for d in errors[:1]
            ]  # fmt: skip
            return {"written": written, "told": told or written, **self.figures(found), "refused": refused}

        return replace(program, strategies=strategies, axis_overrides=others).in_runs(planned)

    def replaced(self, text: str, *kinds: type, none: str = "", told: str = "") -> Entry:
        """The alternative with the rules of a text in place of all of some kinds. none: what is
        written where the text has no rule."""
        return self.instead(text or none, [*without(self.rules, kinds), *rules_of(text)], told=told)


def place(span: Span) -> Entry:
    """Where a rule stands, and its text on one line."""
    return {"source": f"{span.source.name}:{span.line}", "text": " ".join(span.text.split())}


def head(asked: StrategyCase) -> Entry:
    """The first keys of an answer: of which plan it is, and its figures."""
    made = asked.plan
    return {
        "version": 1, "program": made.program.source.name, "strategy": made.strategy, "ranks": made.ranks,
        "stages_over": made.pipeline.axis if made.pipeline is not None else None, "now": asked.figures(made),
    }  # fmt: skip
