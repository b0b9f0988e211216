"""A checked program and a strategy -> what its plan has to show, a part at a time: layouts first,
then memory and seconds, then the reasons, then the other strategies."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from html import escape
from typing import TypeVar

# These two are read here, and not by each child again.
import shardlang.emit.emit
import shardlang.matched.proof  # noqa: F401
from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.fault import fault_of_ours
from shardlang.editor import told
from shardlang.editor.hints import hints
from shardlang.editor.lens import lens
from shardlang.editor.mistakes import mistakes
from shardlang.editor.shown import LayerName, ShownFigures, ShownLayouts
from shardlang.folds.planned import Lay, lay
from shardlang.paths.patterns import TOLD_ONCE, SingleLayers
from shardlang.plan.demand import ResolvedStrategy
from shardlang.plan.plan import Plan
from shardlang.plan.resolve import resolve
from shardlang.syntax import ast
from shardlang.views.statements import statements

R = TypeVar("R")
# Ranks of a mesh that leaves their number open.
_OPEN = 8


def shown(program: CheckedProgram, tree: ast.File, name: str | None, ranks: int | None) -> Iterator[object]:
    """ShownLayouts and ShownFigures, as they are found. A fault of ours is a mistake of the plan.
    ranks: None for those of each mesh."""
    first = _chosen(program, name)
    return _told(_shown(program, tree, first, ranks), tree, first.name.text if first is not None else "")


def shown_in_library(
    program: CheckedProgram, name: str | None, ranks: int | None, tree: ast.File, file: str, layer: LayerName
) -> Iterator[object]:
    """The layouts of the statements of a library's file, by its name, as a layer of the program
    runs them; and, of no strategy, that there is no mistake. tree: of that file."""
    chosen = _chosen(program, name)
    many = ranks or ranks_of(program, chosen)

    def work(of: CheckedProgram, sink: Sink) -> ShownLayouts | None:
        plan = lay(of, chosen if many > 1 else None, many, sink)
        return _layouts(plan, file, within=told.calls_of(plan, layer)) if plan is not None else None

    def parts() -> Iterator[object]:
        yield _in_runs(program, work) if program.training is not None else None
        yield ShownFigures("", "", ())

    return _told(parts(), tree, "")


def _told(found: Iterator[object], tree: ast.File, strategy: str) -> Iterator[object]:
    """All that is found, and a fault of ours as a mistake of the strategy."""
    try:
        yield from (each for each in found if each is not None)
    except Exception as fault:
        yield ShownFigures(strategy, "", tuple(mistakes([fault_of_ours(fault, "shardc lsp")], tree)))


def _shown(program: CheckedProgram, tree: ast.File, first: ast.Strategy | None, ranks: int | None) -> Iterator[object]:
    if program.training is None:
        return
    many, laid = ranks or ranks_of(program, first), _LaidOnce()
    strategy, file = first if many > 1 else None, program.source.name

    def layouts(of: CheckedProgram, sink: Sink) -> ShownLayouts | None:
        plan = laid(of, strategy, many, sink)
        return _layouts(plan, file) if plan is not None else None

    def reasons(of: CheckedProgram, sink: Sink) -> ShownLayouts | None:
        plan, by = laid(of, strategy, many, sink), resolve(of, first, many, Sink()) if first is not None else None
        return _layouts(plan, file, by) if plan is not None and by is not None else None

    yield _in_runs(program, layouts)
    yield _figures(program, tree, first, many, laid)
    yield _in_runs(program, reasons)
    for each in program.strategies:
        if each is not first:
            yield _figures(program, tree, each, ranks or ranks_of(program, each), lay)


class _LaidOnce:
    """A program as it is laid out, remembered while several things are shown of it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[CheckedProgram, ast.Strategy | None, Plan | SingleLayers | None, Sink]] = {}

    def __call__(self, program: CheckedProgram, strategy: ast.Strategy | None, ranks: int, sink: Sink) -> Plan | None:
        known = self._known.get(id(program))
        if known is None or known[1] is not strategy:
            found = Sink()
            try:
                made: Plan | SingleLayers | None = lay(program, strategy, ranks, found)
            except SingleLayers as asked:
                made = asked
            known = self._known[id(program)] = program, strategy, made, found
        if isinstance(known[2], SingleLayers):
            raise SingleLayers(known[2].cuts)
        for each in known[3].found:
            sink.add(each)
        return known[2]


def page(program: CheckedProgram, name: str | None, ranks: int | None) -> Iterator[str | None]:
    """The page of `shardc report`; None where the plan has mistakes, or the program none. A fault
    of ours is a page of its own."""
    chosen = _chosen(program, name)
    many = ranks or ranks_of(program, chosen)

    def work(of: CheckedProgram, sink: Sink) -> str | None:
        plan = driver.plan_program(of, chosen.name.text if chosen is not None else None, many, sink, Sink())
        return driver.page_of_plans([plan], sink) if plan is not None else None

    try:
        yield _in_runs(program, work) if program.training is not None else None
    except Exception as fault:
        found = fault_of_ours(fault, "shardc lsp")
        yield f'<!doctype html><main id="main"><p>{escape(found.message)}<p>{escape(" ".join(found.help))}</main>'


def _chosen(program: CheckedProgram, name: str | None) -> ast.Strategy | None:
    """The strategy of a name, or the first."""
    named = (each for each in program.strategies if each.name.text == name)
    return next(named, None) or next(iter(program.strategies), None)


def ranks_of(program: CheckedProgram, strategy: ast.Strategy | None) -> int:
    """The ranks that a strategy is shown for where nobody says how many: those of the cluster, else
    the product of its mesh, where an `auto` makes it some 8."""
    machine = program.machine
    if strategy is None:
        return 1
    if machine is not None and machine.cluster is not None:
        said = {s.name.text: s.value.value for s in machine.cluster.settings if isinstance(s.value, ast.Number)}
        return int(said.get("nodes", 1) * said.get("devices", 1))
    mesh = next((rule for rule in strategy.rules if isinstance(rule, ast.Mesh)), None)
    sizes = [_size(program, strategy, axis) for axis in mesh.axes] if mesh is not None else [0]
    known = 1
    for size in sizes:
        known *= size or 1
    return known if all(sizes) else known * max(1, _OPEN // known)


def _size(program: CheckedProgram, strategy: ast.Strategy, axis: ast.MeshAxis) -> int:
    """The size that a mesh gives an axis; 0 for `auto`, and for one that is to be computed."""
    given = program.axis_overrides.get(strategy.name.text, {}).get(axis.name.text)
    written = int(axis.size.value) if isinstance(axis.size, ast.Number) else 0
    return given if given is not None else written


def _in_runs(program: CheckedProgram, work: Callable[[CheckedProgram, Sink], R]) -> R:
    """The outcome of `work` with equal layers told once, or with single layers where it has
    mistakes that may be told of a run."""

    def attempt(of: CheckedProgram) -> R:
        sink = Sink()
        made = work(of, sink)
        if of.graph.in_runs and any(each.code not in TOLD_ONCE for each in sink.found):
            raise SingleLayers
        return made

    try:  # runs may be cut already as the strategies ask
        return attempt(program)
    except SingleLayers as asked:
        return program.in_runs(attempt, asked.cuts)


def _layouts(
    plan: Plan, file: str, by: ResolvedStrategy | None = None, within: Container[int] | None = None
) -> ShownLayouts:
    """The layouts of the statements of a file. by: the rules that decide, to be told; within: as of
    `statements`."""
    found = statements(plan, file, within)
    texts = {**told.parameter_texts(plan, file), **told.statement_texts(plan, found.values(), by)}
    return ShownLayouts(plan.strategy, hints(found.values()), texts, told.layer_texts(plan), told.axis_texts(plan))


def _figures(
    program: CheckedProgram, tree: ast.File, strategy: ast.Strategy | None, ranks: int, laying: Lay
) -> ShownFigures:
    name = strategy.name.text if strategy is not None else None

    def work(of: CheckedProgram, sink: Sink) -> tuple[str, Sink]:
        memory = Sink()
        plan = driver.plan_program(of, name, ranks, sink, memory, laying)
        if plan is not None:
            _prove(plan, sink)
        for found in memory.found:
            sink.add(found)
        return lens(plan) if plan is not None else "", sink

    text, sink = _in_runs(program, work)
    return ShownFigures(name or "", text, tuple(mistakes(sink.found, tree, name)))


def _prove(plan: Plan, sink: Sink) -> None:
    if not sink.failed:
        driver.prove_plan(plan, sink)
