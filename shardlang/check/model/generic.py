"""Models that `train` does not call, because it does not use them, is not there, or has a mistake:
checked with dims of unknown size for their formals.

Their graph is thrown away; only what is wrong with them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from shardlang.check.context import Context, Frame
from shardlang.check.files.imports import Library
from shardlang.check.graph.drafts import GraphBuilder
from shardlang.check.lost_text import within
from shardlang.check.model.forward import call_function, call_layer
from shardlang.check.model.instantiate import declare_model
from shardlang.check.values import UNKNOWN, DimValue, FileScope, FunctionDecl, Instance, ModelDecl, Tensor
from shardlang.facts.dtypes import DTYPES
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim, TensorType, Term


@dataclass
class FineModels:
    """Models and functions in which such a check found no mistake, for later checks of files in
    which the same items stand, without `train` and strategies.

    imported: the trees of what the file imports. found: by what is checked, and how, what was run,
    and how many layers and calls that took."""

    imported: Sequence[ast.File] = ()
    found: dict[object, tuple[frozenset[int], int, int]] = field(default_factory=dict)

    def ready(self, library: Library) -> bool:
        """Whether it may be used: what is imported is the same, and the language's own."""
        imported = library.files[1:]
        if [*map(id, imported)] != [*map(id, self.imported)]:
            self.imported = imported
            self.found.clear()
        return all(file.source.library for file in imported)


def check_generically(library: Library, context: Context, fine: FineModels | None = None) -> None:
    """Check each model of the user's files whose body nothing has run. fine: those that need not
    be checked, and which are added."""
    kept, fine = context.build, fine if fine is not None and fine.ready(library) else FineModels()
    cuts = None if context.runs is None else frozenset(context.runs.items())
    for scope in list(library.scopes.values()):
        if scope.source.library:
            continue
        for value in scope.names.values():
            own = isinstance(value, ModelDecl | FunctionDecl) and value.file is scope
            if own and id(value.node) not in context.run:
                context.build = GraphBuilder()
                key = id(value.node), context.dtype, context.low, context.stream, cuts
                if key not in fine.found:
                    traces = _checked(value, scope, context)
                    if traces is not None and _silent(library, context):
                        fine.found[key] = traces
                else:
                    run, layers, calls = fine.found[key]
                    context.run |= run
                    context.layers += layers
                    context.calls += calls
    context.build = kept


def _checked(
    value: ModelDecl | FunctionDecl, scope: FileScope, context: Context
) -> tuple[frozenset[int], int, int] | None:  # fmt: skip
    """All that was run, and how many layers and calls that took; None where layers are told
    once."""
    layers, calls, run, in_runs = context.layers, context.calls, context.run, context.in_runs
    context.run, context.in_runs = set(), False
    if isinstance(value, ModelDecl):
        _check_model(value, scope, context)
    else:
        check_function(value, scope, context)
    mine, told_once = frozenset(context.run), context.in_runs
    context.run, context.in_runs = run | mine, in_runs or told_once
    return None if told_once else (mine, context.layers - layers, context.calls - calls)


def _silent(library: Library, context: Context) -> bool:
    """Whether nothing was reported but of `train`, so that nothing more of models is known to be
    reported already."""
    trains = [item.span for item in library.files[0].items if isinstance(item, ast.Train)]
    places = [mistake.primary.span if mistake.primary is not None else None for mistake in context.sink.found]
    there = all(place is not None and any(within(place, train) for train in trains) for place in places)
    return there and not (context.unknown or context.full or context.headless or context.too_deep)


def _check_model(decl: ModelDecl, scope: FileScope, context: Context) -> None:
    frame = Frame(context, scope)
    instance = declare_model(decl, None, "", decl.node.name.span, frame)
    if isinstance(instance, Instance) and instance.forward is not None:
        values = _arguments(instance.forward.formals, Frame(context, scope, "", 0, instance))
        if values is not None:
            call_layer(instance, values, (), decl.node.name.span, frame)


def check_function(decl: FunctionDecl, scope: FileScope, context: Context) -> None:
    inner = Frame(context, scope)
    values = _arguments(decl.node.formals, inner)
    if values is not None:
        call_function(decl, values, (), decl.node.name.span, inner)


def _arguments(formals: Sequence[ast.Formal], inner: Frame) -> list[tuple[Any, Span]] | None:
    """A tensor for each formal; None where one is of no tensor's type."""
    seen: dict[str, Dim] = {}
    values = [_argument(formal, inner, seen) for formal in formals]
    return None if any(value is UNKNOWN for value, _ in values) else values


def _argument(formal: ast.Formal, inner: Frame, seen: dict[str, Dim]) -> tuple[Any, Span]:
    """A tensor of the formal's type, in the caller's dims; new dims get unknown sizes."""
    if not isinstance(formal.kind, ast.TensorType):
        return UNKNOWN, formal.span
    terms: list[Term] = []
    for node in formal.kind.dims:
        if node.ellipsis:
            terms.append((seen.setdefault("...", Dim("leading", None)),))
            continue
        terms.append(tuple(d for f in node.factors for d in _dim(f.dim, inner, seen)))
    written = formal.kind.dtype
    dtype = written.text if written is not None and written.text in DTYPES else inner.context.dtype
    name = formal.name.text
    value = inner.context.build.field(name, name, TensorType(dtype, ()), None, formal.span)
    return Tensor(value, TensorType(dtype, tuple(terms)), name), formal.span


def _dim(node: ast.Name | ast.Number, inner: Frame, seen: dict[str, Dim]) -> Term:
    if isinstance(node, ast.Number):
        return () if node.value == 1 else (Dim(node.text, int(node.value), node.span, True),)
    known = inner.find(node.text)
    if isinstance(known, DimValue):
        return inner.context.dims.outward(known.term)
    return (seen.setdefault(node.text, Dim(node.text, None, node.span)),)
