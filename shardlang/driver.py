"""The compiler on one page: a file's text -> syntax tree -> checked program -> plan -> emitted
files.

Each function is a stage and stops there; mistakes go to the sink. Showing them and the results is
left to cli/. Passes are imported when they are first used, so that a command pays only for those
that it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from shardlang.diagnostics.diagnostic import Severity, Sink
from shardlang.paths.patterns import TOLD_ONCE, Cuts, SingleLayers, cut_as_asked
from shardlang.sources.files import STDIN, Files
from shardlang.sources.source import Source

if TYPE_CHECKING:
    from shardlang.check.own import OwnDecl
    from shardlang.check.program import CheckedProgram
    from shardlang.check.values import OperatorDecl
    from shardlang.cost.hardware import Hardware
    from shardlang.cost.predict import Prediction
    from shardlang.folds.planned import Lay
    from shardlang.plan.plan import Plan
    from shardlang.search.result import Answer
    from shardlang.syntax import ast
    from shardlang.views.diff import PlanFacts

R = TypeVar("R")


def parse_source(source: Source, sink: Sink) -> ast.File:
    """The syntax tree of one file; partial after errors."""
    from shardlang.syntax.parse import parse

    return parse(source, sink)


def format_source(source: Source, sink: Sink) -> str | None:
    """The file in its one form; None after errors."""
    from shardlang.format.format import format_file

    file = parse_source(source, sink)
    return None if sink.failed else format_file(file)


def check_source(
    source: Source, sink: Sink, overrides: Mapping[str, str] | None = None, strategy: str | None = None,
    runs: Cuts | None = None, cluster: str | None = None,
) -> CheckedProgram | None:  # fmt: skip
    """The checked program, with all it imports; None after errors. `overrides`: what `--set` gives.
    runs: as of `in_runs`. cluster: as of `with_cluster`. Where one `strategy` is asked for,
    mistakes in the syntax of others do not matter, and are told in a line for each."""
    found = _checked(source, sink, overrides or {}, strategy, runs=runs, cluster=cluster)[1]
    return None if sink.failed else found


def check_whole(
    source: Source, sink: Sink, overrides: Mapping[str, str] | None = None, strategy: str | None = None,
    ranks: int | None = None, runs: Cuts | None = None, cluster: str | None = None,
) -> tuple[CheckedProgram | None, Plan | None]:  # fmt: skip
    """Every mistake of a file, with those of its strategies: what parses is checked, whatever else
    is wrong. The program, None after errors other than in strategies, and the plan of
    `check_strategies`. Arguments as there and in `check_source`."""
    tree, program = _checked(source, sink, overrides or {}, strategy, runs=runs, cluster=cluster)
    if program is None:
        return None, None
    from shardlang.check.lost_text import lost_texts, without_following

    failed, of_strategies = sink.failed, Sink()
    plan = check_strategies(program, strategy, ranks, of_strategies, plans=not failed)
    without_following(of_strategies, lost_texts((tree,)), sink)
    return None if failed else program, plan


def _checked(
    source: Source, sink: Sink, overrides: Mapping[str, str], strategy: str | None, runs: Cuts | None,
    cluster: str | None,
) -> tuple[ast.File, CheckedProgram | None]:  # fmt: skip
    """The tree, and what is known of the program: all of it where nothing is told."""
    tree = parse_source(source, sink)
    unread = _set_aside(tree, strategy, sink)
    from shardlang.check.check import check
    from shardlang.check.files.project import require_named

    files = Files()
    files.add(source)

    def checked(runs: Cuts | None, sink: Sink) -> CheckedProgram | None:
        program = check(tree, sink, files.load, overrides, runs)
        if program is None or sink.failed:
            return program
        require_named(source, program, sink)
        return with_cluster(dataclasses.replace(program, unread=unread, told=told), cluster, sink)

    @cache
    def of_cuts(cuts: frozenset[tuple[str, frozenset[int]]] | None) -> CheckedProgram | None:
        program = checked(dict(cuts) if cuts is not None else None, mine := Sink())
        return None if mine.failed else program

    def told(cuts: Cuts | None) -> CheckedProgram | None:
        return of_cuts(frozenset(cuts.items()) if cuts is not None else None)

    return tree, checked(runs, sink)


def declared_operators(source: Source, sink: Sink) -> list[OperatorDecl | OwnDecl]:
    """The operators, and the optimizers, that a file itself declares; none after errors."""
    tree = parse_source(source, sink)
    from shardlang.check.check import declared_operators
    from shardlang.syntax import ast

    if sink.failed or not any(isinstance(item, ast.Operator | ast.OwnOptimizer) for item in tree.items):
        return []
    files = Files()
    files.add(source)
    found = declared_operators(tree, sink, files.load)
    from shardlang.plan.unverified import piped

    for operator in found if source.name == STDIN else ():
        fact, help = piped(operator.declaration)
        sink.report("SH611", fact, operator.span, "declared here", help=help)
    return [] if sink.failed else found


def _set_aside(tree: ast.File, wanted: str | None, sink: Sink) -> tuple[str, ...]:
    """Takes mistakes of syntax in strategies other than `wanted` out of the sink, and tells of each
    strategy in a line; their names."""
    others = {s.name.text: s for s in tree.strategies if s.name.text != wanted}
    if wanted is None or len(others) == len(tree.strategies):
        return ()
    counts = dict.fromkeys(others, 0)
    kept = []
    for diagnostic in sink.found:
        span = diagnostic.primary.span if diagnostic.primary else None
        home = next((n for n, s in others.items() if span and s.span.start <= span.start < s.span.end), None)
        if home is None:
            kept.append(diagnostic)
        else:
            counts[home] += 1
    sink.found[:] = kept
    unread = tuple(name for name in counts if counts[name])
    for name in unread:
        _tell_other(name, counts[name], wanted, sink, " in its syntax")
    return unread


def _tell_other(name: str, mistakes: int, wanted: str, sink: Sink, where: str = "") -> None:
    many = f"{mistakes} mistake{'' if mistakes == 1 else 's'}{where}"
    sink.report(
        "SH328", f"strategy `{name}` has {many}, which `{wanted}` does not depend on", None,
        help="`shardc check` without `--strategy` lists them", severity=Severity.WARNING,
    )  # fmt: skip


def with_cluster(program: CheckedProgram, name: str | None, sink: Sink) -> CheckedProgram | None:
    """The program, planned for the cluster that `--cluster` names: one of the file, of a library
    (`std.clusters.h100_pod`), or the first of another file. None after errors."""
    from shardlang.check.train import clusters

    return program if name is None else clusters.with_cluster(program, name, sink, Files().load)


def check_strategies(
    program: CheckedProgram, name: str | None, ranks: int | None, sink: Sink, plans: bool = True
) -> Plan | None:  # fmt: skip
    """The strategy asked for, or else all of them: by planning it (or the first) on `ranks`, the
    others without rank arithmetic. Where one is asked for, of the others is told only how many
    mistakes they have. plans: whether the program can be planned.

    The plan, where there are ranks and no errors."""
    from shardlang.plan.resolve import resolve

    plans = plans and ranks is not None and program.training is not None
    planned = plan_program(program, name, ranks, sink) if plans and ranks is not None else None
    if planned is not None:
        prove_plan(planned, sink)
    first = program.strategies[0].name.text if program.strategies else None
    for strategy in program.strategies:
        here, other = strategy.name.text, Sink()
        asked = here == (name or first)
        if here in program.unread or (asked and plans):
            continue
        resolve(program, strategy, ranks if asked else None, other)
        if name in (None, here):
            for diagnostic in other.found:
                sink.add(diagnostic)
        elif other.failed:
            _tell_other(here, len(other.found), name, sink)
    return planned


def in_runs(work: Callable[[Cuts | None, Sink], R], sink: Sink) -> R:
    """The outcome of `work` with the runs of equal layers told once, cut where it asks for single
    layers; or else, where no cuts are enough or it reports something of layers, with each layer by
    itself (None)."""

    def attempt(cuts: Cuts) -> tuple[R, Sink]:
        mine = Sink()
        made = work(cuts, mine)
        if any(found.code not in TOLD_ONCE for found in mine.found):
            raise SingleLayers
        return made, mine

    found = cut_as_asked(attempt)
    if found is None:
        return work(None, sink)
    for diagnostic in found[1].found:
        sink.add(diagnostic)
    return found[0]


def compile_source(
    source: Source, ranks: int, sink: Sink, overrides: Mapping[str, str] | None = None, strategy: str | None = None
) -> Mapping[str, str] | None:
    """The emitted files of a program, as of `emit_plan`; None after errors."""

    def made(runs: Cuts | None, sink: Sink) -> Mapping[str, str] | None:
        program = check_source(source, sink, overrides, strategy, runs)
        plan = plan_program(program, strategy, ranks, sink) if program is not None else None
        return emit_plan(plan, sink) if plan is not None else None

    return in_runs(made, sink)


def plan_program(
    program: CheckedProgram, name: str | None, ranks: int, sink: Sink, memory: Sink | None = None,
    laying: Lay | None = None,
) -> Plan | None:  # fmt: skip
    """The plan on `ranks` ranks by the strategy `name`, or the first; None after errors. memory,
    laying: as of `folds/planned.py:plan`."""
    from shardlang.folds.planned import lay, plan

    if program.training is None:
        fact = f"`{program.source.name}` has no `train`, so there is no step to plan"
        sink.report("SH402", fact, None, help="add a `train` block with `model`, `data`, `loss` and `optimizer`")
        return None
    found = plan(program, name, ranks, sink, memory, laying or lay)
    if found is not None:
        _evaluated(found, sink)
    return None if sink.failed else found


def _evaluated(plan: Plan, sink: Sink) -> None:
    """Reports what `eval` cannot add up."""
    if plan.program.training is not None and plan.program.training.eval is not None:
        from shardlang.emit.accumulators import evaluation

        evaluation(plan, sink)


@dataclasses.dataclass(frozen=True)
class TuneRequest:
    """The request of `shardc tune`."""

    ranks: int
    strategy: str | None = None
    mode: str = "exact"
    top: int = 5
    budget: float = 10.0


def tune_program(
    program: CheckedProgram, asked: TuneRequest, sink: Sink, tell: Callable[[str], None] = lambda text: None
) -> Answer | None:
    """The strategies that are predicted fastest; None after errors, or where nothing fits."""
    from shardlang.cost.hardware import with_speeds
    from shardlang.cost.predict import predict_work
    from shardlang.folds.fits import device
    from shardlang.plan.planner import can_be_planned
    from shardlang.search.request import SearchRequest
    from shardlang.search.result import answer
    from shardlang.search.tune import tune

    hardware, has = with_speeds(program, asked.ranks, sink), device(program)
    if hardware is None or not can_be_planned(asked.ranks, sink):
        return None

    def sound(plan: Plan) -> bool:
        mine = Sink()
        _evaluated(plan, mine)
        prove_plan(plan, mine)
        return not mine.failed

    wanted = SearchRequest(
        asked.ranks, lambda work: predict_work(work, hardware).step_s, has.memory if has is not None else None,
        hardware=hardware, reserved=has.reserved if has is not None else 0, count=asked.top, budget=asked.budget,
        sound=sound, tell=tell, mode=asked.mode,
    )  # fmt: skip
    tuned = tune(program, asked.strategy, wanted, sink)
    return answer(tuned, asked.ranks, hardware) if tuned is not None else None


def seen_plan(plan: Plan, sink: Sink, each: bool = False, folded: bool = True) -> PlanFacts:
    """A plan with what `shardc plan --json` says of it, the predicted step included. each, folded:
    as of `report`."""
    from shardlang.cost.predict import plain
    from shardlang.folds.report import report
    from shardlang.views.diff import PlanFacts

    step = predict_plan(plan, sink)
    found = report(plan, each, folded)
    return PlanFacts(plan, {**found, "predicted": plain(step)} if step is not None else found)


def page_of_plans(plans: Sequence[Plan], sink: Sink) -> str:
    """The HTML page of one plan, or of two with their differences."""
    from shardlang.views.course import with_course
    from shardlang.views.diff import difference
    from shardlang.views.program_text import files_of
    from shardlang.views.report import page

    seen = [seen_plan(plan, sink) for plan in plans]
    found = [with_course(each, hardware_of(each.plan, sink)) for each in seen]
    sources = {name: source for plan in plans for name, source in files_of(plan).items()}
    return page(found, difference(*seen) if len(seen) == 2 else None, sources)


def explain_plan(
    program: CheckedProgram, name: str | None, ranks: int, what: str, sink: Sink, memory: Sink | None = None
) -> Mapping[str, Any] | None:
    """The reasons for `what` in a plan, a value or `mesh`, say, with what the alternatives cost;
    None after errors. memory: as of `plan_program`."""
    from shardlang.plan.planner import choose_strategy
    from shardlang.views.alternatives import StrategyCase
    from shardlang.views.neighbours import QUESTIONS, neighbours
    from shardlang.views.why import why

    plan = plan_program(program, name, ranks, sink, memory)
    if plan is None:
        return None
    strategy = choose_strategy(program, name, ranks, sink)[1]
    asked = StrategyCase(program, strategy, plan, hardware_of(plan, sink))
    found = neighbours(asked, what) if what in QUESTIONS else why(asked, what, sink)
    return found if not sink.failed else None


def hardware_of(plan: Plan, sink: Sink) -> Hardware | None:
    """The hardware that a plan is for; None where it lacks speeds that the time of a step needs, or
    there is no step."""
    from shardlang.cost.hardware import described, missing

    hardware = described(plan.program, sink)
    if sink.failed or hardware is None or plan.program.training is None or plan.graph.loss is None:
        return None
    return None if missing(hardware, plan.ranks) else hardware


def predict_plan(plan: Plan, sink: Sink) -> Prediction | None:
    """The time of a plan's step, where the hardware of the file has all speeds that it needs; None
    elsewhere, and after errors."""
    from shardlang.cost.predict import predict

    hardware = hardware_of(plan, sink)
    return predict(plan, hardware) if hardware is not None else None


def prove_plan(plan: Plan, sink: Sink) -> None:
    """Reports where ranks would wait for each other in vain; a plan that cannot be emitted has
    nothing to prove."""
    from shardlang.plan.unverified import unverified

    for message, span, label, help in unverified(plan):
        sink.report("SH611", message, span, label, help=help, severity=Severity.WARNING)
    if plan.program.training is not None and plan.graph.loss is not None:
        _emitted(plan, sink)


def emit_plan(plan: Plan, sink: Sink, folded: bool = True) -> Mapping[str, str] | None:
    """The emitted files, name -> text, whose communication is proved; None after errors, and where
    an operator that a file declares is not verified. Not `folded`: every layer is written out where
    it is called; tests hold both to the same bits."""
    from shardlang.plan.unverified import unverified

    lacking = unverified(plan)
    for message, span, label, help in lacking:
        sink.report("SH611", f"{message}; it does not run", span, label, help=help)
    return None if lacking or sink.failed else _emitted(plan, sink, folded)


def _emitted(plan: Plan, sink: Sink, folded: bool = True) -> Mapping[str, str] | None:
    from shardlang.emit.emit import emission, files_of
    from shardlang.matched.proof import prove

    if plan.program.training is None or plan.graph.loss is None:
        sink.report(
            "SH402", f"`{plan.program.source.name}` has no `train`, so there is nothing to run", None,
            help="add a `train` block with `model`, `data`, `loss`, `optimizer` and `epochs`, one setting a line",
        )  # fmt: skip
        return None
    made = emission(plan, sink, folded)
    if sink.failed:
        return None
    files = files_of(made)
    prove(made, files, sink)
    return None if sink.failed else files
