"""A program and a rank count -> the best strategies, in the order of their predicted time.

A strategy with holes says what may be chosen. Without one everything may, and strategies of the
file compete as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from shardlang.check.program import CheckedProgram
from shardlang.cost.planned import work
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import needed
from shardlang.folds.too_large import Offers, Tried
from shardlang.frozen.records import dataclass
from shardlang.hints.nearest import offer
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.plan.strategy.holes import holes
from shardlang.plan.strategy.instead import instead
from shardlang.search.best_of_space import Outcome, searched
from shardlang.search.fill_holes import filled
from shardlang.search.fit_memory import FittedPoint, Fitting, Short, planned
from shardlang.search.print_rules import FOUND
from shardlang.search.request import EXACT, PROPAGATION, SearchRequest
from shardlang.search.space import Open, Point
from shardlang.search.splits.integer_program import is_there
from shardlang.search.splits.ways import needs_solver
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from shardlang.terminal.display import rounded_up, size

_EVERYTHING = """strategy tuned {
  mesh pp = auto, dp = auto, cp = auto, tp = auto
  split auto over cp
  split auto over tp
  stages over pp auto
  microbatches auto
  schedule auto
  zero auto over (dp, cp)
  bucket gradients auto
  recompute auto
  place auto
}
"""


@dataclass(frozen=True, eq=False)
class Tuned:
    """of: the strategy with holes; title: the name of the found one; outcome: what was found."""

    of: ast.Strategy
    title: str
    outcome: Outcome


def tune(program: CheckedProgram, name: str | None, wanted: SearchRequest, sink: Sink) -> Tuned | None:
    """The best strategies; None after mistakes, or where nothing fits (SH326)."""
    program, strategy = _start(program, name, wanted.mode, sink)
    if strategy is None or not _checks(program, strategy, sink):
        return None
    title = f"{strategy.name.text}_{wanted.ranks}"
    if wanted.mode == PROPAGATION:
        return _propagated(program, strategy, title, wanted, sink)
    if wanted.mode == EXACT and not is_there() and needs_solver(Open(program, strategy, wanted.ranks)):
        _report_solver(sink)
        return None
    fitting = Fitting(Open(program, strategy, wanted.ranks), title, wanted.seconds, wanted.limit)
    outcome = searched(fitting, _written(program, strategy, wanted), wanted)
    if outcome.best:
        return Tuned(strategy, title, outcome)
    _report_nothing(fitting.of, outcome, wanted, sink)
    return None


def _start(
    program: CheckedProgram, name: str | None, mode: str, sink: Sink
) -> tuple[CheckedProgram, ast.Strategy | None]:
    """The program and the strategy that says what is open: the one of that name; else the first
    with holes; else one with everything open, which the program then has as well."""
    every = program.strategies
    if name is not None:
        found = next((s for s in every if s.name.text == name), None)
        if found is None:
            names = [s.name.text for s in every]
            help = offer(name, names, f"the strategies are {', '.join(names)}" if names else "the file has none")
            sink.report("SH301", f"{program.source.name} has no strategy `{name}`", None, help=help)
        return program, found
    if mode == PROPAGATION and every:
        return program, every[0]
    found = next((s for s in every if holes(s, program.axis_overrides.get(s.name.text, {}))), None)
    return program, found or everything(program)


def everything(program: CheckedProgram) -> ast.Strategy:
    """A strategy in which all is open but the split of the batch."""
    batch = program.graph.batch
    names = [name for name, dims in program.graph.dims.items() if batch in dims]
    lines = _EVERYTHING.splitlines(keepends=True)
    lines[2:2] = [f"  split {min(names, key=len)} over dp\n"] if names else []
    return parse(Source(FOUND, "".join(lines)), Sink()).strategies[0]


def _is_all_open(strategy: ast.Strategy) -> bool:
    """Whether nobody wrote a strategy: then no part of it is pinned."""
    return strategy.span.source.name == FOUND


def _checks(program: CheckedProgram, strategy: ast.Strategy, sink: Sink) -> bool:
    """Whether what is written of a strategy is right, whatever stands in its holes."""
    from shardlang.plan.resolve import resolve

    if program.training is None or program.graph.loss is None:
        fact = f"`{program.source.name}` has no `train`, so there is no step whose time could be predicted"
        sink.report("SH402", fact, None, help="add a `train` block")
        return False
    if not _is_all_open(strategy):
        resolve(program, strategy, None, sink)
    return not sink.failed


def _propagated(
    program: CheckedProgram, strategy: ast.Strategy, title: str, wanted: SearchRequest, sink: Sink
) -> Tuned | None:
    """The strategy as it is: what its rules leave open has the layouts that send fewest bytes."""
    found = _as_written(program, strategy, wanted)
    if found is None:
        laid_out(program, strategy, wanted.ranks, sink)  # tells why
    elif wanted.limit is None or found.memory <= wanted.limit:
        return Tuned(strategy, title, Outcome((found,), None, 1, 1, True))
    else:
        of = Open(program, strategy, wanted.ranks)
        _report_nothing(of, Outcome((), Short(found.point, found.memory), 1, 1, True), wanted, sink)
    return None


def _as_written(program: CheckedProgram, strategy: ast.Strategy, wanted: SearchRequest) -> FittedPoint | None:
    """A strategy without holes; None where it has mistakes."""
    plan = planned(program, partial(laid_out, strategy=strategy, ranks=wanted.ranks, sink=Sink()))
    if plan is None:
        return None
    return FittedPoint(Point(_sizes(plan)), strategy, plan, wanted.seconds(work(plan)), max(needed(plan)))


def _sizes(plan: Plan) -> tuple[tuple[str, int], ...]:
    axes = (*plan.pipeline.mesh.axes,) if plan.pipeline is not None else plan.meshes[0].timeless.axes
    return tuple((axis.name, axis.size) for axis in axes)


def _written(program: CheckedProgram, of: ast.Strategy, wanted: SearchRequest) -> Iterable[FittedPoint]:
    """The whole strategies of the file that fit, where nothing is pinned."""
    for strategy in program.strategies if _is_all_open(of) else ():
        found = _as_written(program, strategy, wanted) if strategy.name.text not in program.unread else None
        if found is not None and (wanted.limit is None or found.memory <= wanted.limit):
            yield found


def _report_solver(sink: Sink) -> None:
    """SH517, with what to type."""
    fact = "`split auto` has more ways here than are all tried, and the best needs highspy, which is not installed"
    more = "`--search-mode dynamic_programming` does without"
    sink.report("SH517", fact, None, help=('`pip install "shardlang[tune]"` installs it', more))


def _report_nothing(of: Open, outcome: Outcome, wanted: SearchRequest, sink: Sink) -> None:
    """SH326, with the least memory that was found."""
    strategy = of.strategy
    span = strategy.name.span if not _is_all_open(strategy) else None
    name = f"strategy `{strategy.name.text}`" if span is not None else "a strategy"
    short, ended = outcome.short, outcome.looked < outcome.total
    part = (f"{outcome.looked:,} of {outcome.total:,} points were looked at: `--budget` looks longer",) * ended
    if short is None:
        fact = "was found before the budget ended" if ended else "can be filled"
        sink.report(
            "SH326", f"on {wanted.ranks} ranks nothing that {name} leaves open {fact}", span, notes=part,
            help="another rank count, or fewer sizes that are fixed; dims have to divide over their axes",
        )  # fmt: skip
        return
    assert wanted.limit is not None
    tried = _changing(of, short.point)
    plan = tried("", wanted.ranks)
    whole = not holes(strategy, of.program.axis_overrides.get(strategy.name.text, {}))
    fact = f"{name} leaves nothing open, and does not fit" if whole else f"nothing that {name} leaves open fits"
    where = ", ".join(f"{axis} = {count}" for axis, count in short.point.sizes if count > 1)
    sink.report(
        "SH326", f"{fact}: a rank needs {rounded_up(short.memory)} at least, and a "
        f"device has {size(wanted.limit)}", span, f"least with {where or '1 rank'}" if span is not None else "",
        notes=(*(() if span is not None else (f"the least is needed with {where or '1 rank'}",)), *part),
        help=tuple(Offers(plan, wanted.limit, tried).lines()) if plan is not None else (),
    )  # fmt: skip


def _changing(of: Open, point: Point) -> Tried:
    """The plans of a point with changes. More ranks share the batch, where that axis is open."""
    longer = next((axis.name for axis in of.axes if axis.auto and axis.name in of.batch_axes), "")

    def tried(rules: str, ranks: int) -> Plan | None:
        times = ranks // of.ranks
        if times > 1 and not longer:
            return None
        sizes = tuple((axis, size * times if axis == longer else size) for axis, size in point.sizes)
        strategy = filled(of, replace(point, sizes=sizes), of.strategy.name.text)
        return laid_out(of.program, instead(strategy, rules), ranks, Sink())

    return tried
