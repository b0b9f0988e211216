"""A checked program and a strategy -> what its plan has to show, a part at a time: layouts first,
then memory and seconds, then the reasons, then the other strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from shardlang.paths.patterns import TOLD_ONCE, SingleLayers
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.plan.resolve import resolve
from shardlang.syntax import ast
from shardlang.views.statements import statements

R = TypeVar("R")
# Ranks of a mesh that leaves their number open.
_OPEN = 8


def shown(program: CheckedProgram, tree: ast.File, name: str | None, ranks: int | None) -> Iterator[object]:
    """ShownLayouts and ShownFigures, as they are found. A fault of ours is a mistake of the plan.
    ranks: None for those of each mesh."""
    chosen = next((each for each in program.strategies if each.name.text == name), None)
    first = chosen or next(iter(program.strategies), None)
    try:
        yield from _shown(program, tree, first, ranks)
    except Exception as fault:
        told_of = mistakes([fault_of_ours(fault, "shardc lsp")], tree)
        yield ShownFigures(first.name.text if first is not None else "", "", tuple(told_of))


def _shown(program: CheckedProgram, tree: ast.File, first: ast.Strategy | None, ranks: int | None) -> Iterator[object]:
    many = ranks or ranks_of(program, first)
    if program.training is None:
        return
    found = _in_runs(program, lambda of, sink: _layouts(of, first, many, sink, reasons=False))
    if found is not None:
        yield found
    yield _figures(program, tree, first, many)
    reasoned = _in_runs(program, lambda of, sink: _layouts(of, first, many, sink, reasons=True)) if found else None
    if reasoned is not None:
        yield reasoned
    for strategy in program.strategies:
        if strategy is not first:
            yield _figures(program, tree, strategy, ranks or ranks_of(program, strategy))


def shown_in_library(
    program: CheckedProgram, name: str | None, ranks: int | None, file: str, layer: LayerName
) -> Iterator[ShownLayouts]:
    """The layouts of the statements of a library's file, by its name, as a layer of the program
    runs them."""
    chosen = next((each for each in program.strategies if name in (None, each.name.text)), None)
    many = ranks or ranks_of(program, chosen)

    def work(of: CheckedProgram, sink: Sink) -> ShownLayouts | None:
        plan = laid_out(of, chosen if many > 1 else None, many, sink, heard=True)
        if plan is None:
            return None
        found = statements(plan, file, told.calls_of(plan, layer))
        return ShownLayouts(
            plan.strategy, tuple(hints(found.values())), told.statement_texts(plan, found.values()),
            told.layer_texts(plan), told.axis_texts(plan),
        )  # fmt: skip

    made = _in_runs(program, work) if program.training is not None else None
    yield from (made,) if made is not None else ()


def page(program: CheckedProgram, name: str | None, ranks: int | None) -> Iterator[str | None]:
    """The page of `shardc report`; None where the plan has mistakes, or the program none."""
    chosen = next((each for each in program.strategies if name in (None, each.name.text)), None)
    many = ranks or ranks_of(program, chosen)

    def work(of: CheckedProgram, sink: Sink) -> str | None:
        plan = driver.plan_program(of, name, many, sink, Sink())
        return driver.page_of_plans([plan], sink) if plan is not None else None

    yield _in_runs(program, work) if program.training is not None else None


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
    program: CheckedProgram, strategy: ast.Strategy | None, ranks: int, sink: Sink, reasons: bool
) -> ShownLayouts | None:
    plan = laid_out(program, strategy if ranks > 1 else None, ranks, sink, heard=True)
    if plan is None:
        return None
    file, by = program.source.name, resolve(program, strategy, ranks, Sink()) if reasons and strategy else None
    found = statements(plan, file)
    texts = {**told.parameter_texts(plan, file), **told.statement_texts(plan, found.values(), by)}
    return ShownLayouts(
        plan.strategy, tuple(hints(found.values())), texts, told.layer_texts(plan), told.axis_texts(plan)
    )


def _figures(program: CheckedProgram, tree: ast.File, strategy: ast.Strategy | None, ranks: int) -> ShownFigures:
    name = strategy.name.text if strategy is not None else None

    def work(of: CheckedProgram, sink: Sink) -> tuple[str, Sink]:
        memory = Sink()
        plan = driver.plan_program(of, name, ranks, sink, memory)
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
