"""One generated pair of program and strategy: written, checked, planned, run on simulated ranks, judged."""

from __future__ import annotations

import json
import random
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.cli.plan_view import program as plan_text
from shardlang.cli.plan_view.parts import of_rank
from shardlang.cli.plan_view.program import Detail
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.folds.report import report
from shardlang.graph.graph import Graph
from shardlang.interpret.ranks.limits import check_size
from shardlang.ops.rule import shared_axes
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.terminal.display import width
from tests.generated import program, strategies
from tests.generated.memory import MEMORY, unaccounted
from tests.interpret.verify_plan import Refused, verify_plan

AGREED, REFUSED, WRONG, INVALID, CRASHED = "agreed", "refused", "wrong", "invalid", "crashed"
# Rounding alone moves what it trains as far as ranks differ, and each step by itself agrees.
ILL = "ill conditioned"


@dataclass(frozen=True)
class Outcome:
    """What became of a pair. detail: diagnostics, the difference, or the traceback. largest: relative difference."""

    seed: int
    kind: str
    text: str
    ranks: int
    features: frozenset[str] = frozenset()
    detail: str = ""
    codes: tuple[str, ...] = ()
    largest: float = 0.0
    ties: int = 0
    forward: frozenset[str] = field(default_factory=frozenset)
    backward: frozenset[str] = field(default_factory=frozenset)

    @property
    def failed(self) -> bool:
        return self.kind in (WRONG, INVALID, CRASHED)


def case(seed: int, ranks: int | None = None, precision: str = "f32") -> Outcome:
    """The pair of this seed: the same on every machine."""
    rng = random.Random(seed)
    written = program.write(rng)
    outcome = Outcome(seed, INVALID, written.text("", precision), 0, written.features)
    try:
        sink = Sink()
        checked = driver.check_source(Source("generated.shard", outcome.text), sink)
        if checked is None:
            return replace(outcome, detail="\n".join(f"{d.code}: {d.message}" for d in sink.found))
        rules = strategies.write(rng, checked.graph, ranks, written.apart, written.deep)
        features = written.features | rules.features
        if "metric" in features:
            features |= {f"metric in {rule}" for rule in rules.features if rule.startswith("stages ")}
        outcome = replace(outcome, text=written.text(rules.text, precision), ranks=rules.ranks, features=features)
        return _planned(outcome, _with(checked, rules.text), steps=rng.choice((1, 1, 1, 2)))
    except Exception:
        return replace(outcome, kind=CRASHED, detail=traceback.format_exc())


def judged(text: str, ranks: int) -> Outcome:
    """A pair given as text, strategy included: as what `case` says of it."""
    outcome = Outcome(0, INVALID, text, ranks)
    try:
        sink = Sink()
        checked = driver.check_source(Source("generated.shard", text), sink)
        if checked is None:
            return replace(outcome, detail="\n".join(f"{d.code}: {d.message}" for d in sink.found))
        return _planned(outcome, checked, steps=2)
    except Exception:
        return replace(outcome, kind=CRASHED, detail=traceback.format_exc())


def _with(checked: CheckedProgram, strategy: str) -> CheckedProgram:
    """The checked program with a strategy, which nothing of the checking depends on."""
    sink = Sink()
    tree = driver.parse_source(Source("generated.shard", strategy), sink)
    assert not sink.found, (strategy, [d.message for d in sink.found])
    return replace(checked, strategies=tuple(i for i in tree.items if isinstance(i, ast.Strategy)))


def _planned(outcome: Outcome, checked: CheckedProgram, steps: int) -> Outcome:
    sink = Sink()
    plan = driver.plan_program(checked, None, outcome.ranks, sink)
    if plan is None:
        codes = tuple(d.code for d in sink.found)
        told = "\n".join(f"{d.code}: {d.message}" for d in sink.found)
        kind = WRONG if any(map(_refused_ratio, sink.found)) else REFUSED
        return replace(outcome, kind=kind, codes=codes, detail=told)
    forward, backward = reached(plan.graph)
    features = outcome.features | _of_plan(plan)
    outcome = replace(outcome, forward=forward, backward=backward, features=features)
    if holes := list(_undivided(plan, _cut_unevenly(plan, outcome.text))):
        return replace(outcome, kind=WRONG, detail="\n".join(holes))
    _told(plan)
    if wrong := unaccounted(outcome.text, outcome.ranks) if MEMORY in outcome.text else "":
        return replace(outcome, kind=WRONG, detail=wrong)
    try:
        found = verify_plan(plan, steps=steps)
    except Refused as refused:
        kind = AGREED if refused.alone == refused.together else WRONG
        return replace(outcome, kind=kind, features=outcome.features | {"refused in a step"}, detail=str(refused))
    return replace(outcome, kind=AGREED if found.ok else WRONG, detail=str(found.difference or ""),
                   largest=found.largest, ties=len(found.undecided))  # fmt: skip


def _refused_ratio(told: Diagnostic) -> bool:
    """Losses over what a mask keeps mean the same in all their forms: none is refused where another is not."""
    return told.code == "SH410" and told.message.startswith("`train.loss`") and "`/` is no sum of parts" in told.message


def _told(plan: Plan) -> None:
    """What `shardc plan`, `compile` and `--simulate` say and write of a plan: that they do, and that it is Python."""
    found = report(plan)
    json.dumps(found)
    for view in (found, of_rank(found, plan.ranks - 1)):
        long = [line.text for line in plan_text.lines(view, 80, Detail(operands=True), False) if width(line.text) > 80]
        assert not long, long
    check_size(plan, Sink())
    sink = Sink()
    for name, text in (driver.emit_plan(plan, sink) or {}).items():
        compile(text, name, "exec")
    faults = [d.message for d in sink.found if d.code == "SH460"]  # of the compiler: the proof fails
    assert not faults, faults


def _undivided(plan: Plan, uneven: frozenset[str]) -> Iterator[str]:
    """Values that are cut in parts that are not alike, whose dims are not among those that may be."""
    forms = [*plan.produced.items(), *((conversion.value, conversion.to) for conversion in plan.conversions)]
    for value, layout in dict.fromkeys(forms):
        type = plan.graph.values[value].type
        for size, term, axes in zip(type.shape, type.dims, layout.dims, strict=True):
            if size % plan.meshes[layout.mesh].degree(axes) and not {dim.name for dim in term} & uneven:
                yield f"value {value}: {size} does not divide over {axes}"


def _cut_unevenly(plan: Plan, text: str) -> frozenset[str]:
    """The names of dims that may be: all, also those of numbers, where a rule of the program is uneven, else none."""
    if re.search(r"\b(uneven|sizes)\b", text) is None:
        return frozenset()
    return frozenset(dim.name for value in plan.graph.values for term in value.type.dims for dim in term)


def reached(graph: Graph) -> tuple[frozenset[str], frozenset[str]]:
    """The operators that are computed, and those through which a gradient flows."""
    forward = frozenset(op.operator for op in graph.ops)
    back = (op for op in graph.ops if op.section == "loss" and graph.values[op.results[0]].gradient)
    return forward, frozenset(op.operator for op in back if any(graph.values[v].gradient for v in op.operands))


def _of_plan(plan: Plan) -> set[str]:
    """What can only be seen once it is planned."""
    found = {f"move {c.move.kind.value}" for c in plan.conversions}
    found |= {"rows exchanged" for op in plan.ops if shared_axes(plan.graph.ops[op.op].rule, op.factor_axes)}
    if len(plan.meshes) > 1:
        found.add("several meshes")
    return found | {f"ranks {plan.ranks}"}
