"""A parsed file -> a checked program: names, dims, types and static values settled, `train` turned
into a graph.

The order of checking on one page. No torch, no files: imports come through the loader."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardlang.check.constants import plain, size
from shardlang.check.context import Context, Frame, Loader
from shardlang.check.declared import require_once
from shardlang.check.files.declared_names import declared_names
from shardlang.check.files.imports import Library
from shardlang.check.files.operators import operators_of
from shardlang.check.files.own import own_of
from shardlang.check.lost_text import lost_texts, without_following
from shardlang.check.model.expressions import evaluate
from shardlang.check.model.generic import FineModels, check_generically
from shardlang.check.own import OwnDecl
from shardlang.check.program import CheckedProgram
from shardlang.check.train.finished import report_unused
from shardlang.check.train.graph_checks import report_moved
from shardlang.check.train.hardware import machines
from shardlang.check.train.overrides import Overrides, read_overrides, root_model
from shardlang.check.train.train import check_train
from shardlang.check.values import UNKNOWN, DimValue, FileScope, OperatorDecl
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.paths.patterns import Cuts, SingleLayers, count
from shardlang.sources.source import Source
from shardlang.syntax import ast


def check(
    file: ast.File, sink: Sink, load: Loader, overrides: Mapping[str, str] | None = None,
    runs: Cuts | None = None,
) -> CheckedProgram | None:  # fmt: skip
    """The checked program; after mistakes what is known of it. `overrides`: path -> text, as given
    to `--set`. runs: a run of equal layers is told once, and ends at these cuts; SingleLayers where
    the program asks for single ones."""
    return tell(check_items(file, load, overrides or {}, runs), file, sink, load)


@dataclass(frozen=True, slots=True)
class CheckedItems:
    """A program without its strategies (None where it nests too deep), its mistakes, those that
    follow from lost text, and the trees of what it imports. in_runs: whether some layers are told
    once."""

    program: CheckedProgram | None
    found: Sink
    imported: Sequence[ast.File]
    in_runs: bool


def check_items(
    file: ast.File, load: Loader, overrides: Mapping[str, str], runs: Cuts | None, fine: FineModels | None = None
) -> CheckedItems:  # fmt: skip
    """All of `check` that does not depend on what is in the file's strategies. fine: as of
    `check_generically`, for a file with `train`."""
    before = sys.getrecursionlimit()
    # Room for nested programs: layers and functions to 64 deep, expressions to 150.
    sys.setrecursionlimit(max(before, 20_000))
    library, program = Library(Context(Sink(), evaluator=evaluate, load=load, runs=runs)), None
    try:
        program = _check(file, library, overrides, fine)
    except RecursionError:
        pass
    finally:
        sys.setrecursionlimit(before)
    return CheckedItems(program, library.context.sink, library.files[1:], library.context.in_runs)


def tell(items: CheckedItems, file: ast.File, sink: Sink, load: Loader) -> CheckedProgram | None:
    """Tells the mistakes; the program with the strategies of the file."""
    if items.program is None:
        sink.report("SH217", "the program nests expressions, functions and layers too deep", None)
    without_following(items.found, lost_texts((file, *items.imported)), sink)
    names = [strategy.name for strategy in file.strategies]
    require_once(names, "strategy `{}` is declared twice", "give one of them another name", sink)
    if items.program is None:
        return None
    return replace(items.program, source=file.source, strategies=file.strategies, schedules=_schedules(file, load))


def declared_operators(file: ast.File, sink: Sink, load: Loader) -> list[OperatorDecl | OwnDecl]:
    """The operators, and the optimizers, that a file itself declares, in order."""
    scope = Library(Context(sink, evaluator=evaluate, load=load)).open(file)
    return [*operators_of(scope), *own_of(scope, "optimizer")]


def _check(
    file: ast.File, library: Library, overrides: Mapping[str, str], fine: FineModels | None
) -> CheckedProgram:  # fmt: skip
    context, sink = library.context, library.context.sink
    given = read_overrides(file, overrides, sink)
    library.overrides = given.get("dim", {})
    scope = library.open(file)
    # Dims of the file, by which strategies may call them.
    context.build.dims.update({name: v.term for name, v in scope.names.items() if isinstance(v, DimValue)})
    train = _train(file, context)
    graph, training = check_train(train, Frame(context, scope, "train"), given) if train is not None else (None, None)
    check_generically(library, context, fine if train is not None else None)
    if train is None:
        report_unused(context, {})
    hardware = machines(scope, context)
    axes = _axes(file, given, Frame(context, scope))
    if graph is not None:
        report_moved(graph, sink)
        _require_few(graph, context)
    known = None
    if graph is None:
        known = declared_names(file, library, root_model(file))
        graph = known.graph
    return CheckedProgram(
        file.source, graph, training, strategies=(), hardware=hardware, axis_overrides=axes, statics=_statics(scope),
        names=known,
    )  # fmt: skip


def _require_few(graph: Graph, context: Context) -> None:
    """SingleLayers where runs make more operators than a program may have, which a check of each
    layer reports."""
    within = (op.within for op in graph.ops if op.within >= 0)
    if graph.in_runs and sum(count(graph.calls[at].path) for at in within) > context.build.operators_limit:
        raise SingleLayers


def _train(file: ast.File, context: Context) -> ast.Train | None:
    items = [item for item in file.items if isinstance(item, ast.Train)]
    if len(items) > 1:
        help = "a file trains one model"
        context.sink.again("SH201", "`train` is declared twice", items[1].span, items[0].span, help)
    return items[0] if items else None


def _schedules(file: ast.File, load: Loader) -> dict[str, Source]:
    """The files of actions that strategies name; an unreadable one is reported where it is used."""
    rules = [r for s in file.strategies for r in s.rules if isinstance(r, ast.Schedule)]
    written = (r.name.value for r in rules if r.name is not None)
    names = dict.fromkeys(name for name in written if "/" in name or "." in name)
    found = {name: load(file.source.name, name, True) for name in names}
    return {name: source for name, source in found.items() if isinstance(source, Source)}


def _axes(file: ast.File, given: Overrides, frame: Frame) -> dict[str, dict[str, int]]:
    """Sizes of mesh axes that are set from outside; 0 where `auto` is set."""
    found: dict[str, dict[str, int]] = {}
    for strategy in (item.name.text for item in file.strategies):
        for axis, node in given.get(strategy, {}).items():
            auto = isinstance(node, ast.Name) and node.text == "auto"
            length = 0 if auto else size(frame.evaluate(node), node.span, frame.context.sink, f"axis `{axis}`")
            if length is not None:
                found.setdefault(strategy, {})[axis] = length
    return found


def _statics(scope: FileScope) -> dict[str, int | float]:
    """File-level dims as numbers, for expressions in strategies."""
    values = {name: plain(value) for name, value in scope.names.items() if isinstance(value, DimValue)}
    return {name: value for name, value in values.items() if value is not UNKNOWN}
