"""Models that `train` does not call, because it does not use them, is not there, or has a mistake:
checked with dims of unknown size for their formals.

Their graph is thrown away; only what is wrong with them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.check.context import Context, Frame
from shardlang.check.files.imports import Library
from shardlang.check.graph.drafts import GraphBuilder
from shardlang.check.model.forward import call_function, call_layer
from shardlang.check.model.instantiate import declare_model
from shardlang.check.values import UNKNOWN, DimValue, FileScope, FunctionDecl, Instance, ModelDecl, Tensor
from shardlang.facts.dtypes import DTYPES
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim, TensorType, Term


def check_generically(library: Library, context: Context) -> None:
    """Check each model of the user's files whose body nothing has run."""
    kept = context.build
    for scope in list(library.scopes.values()):
        if scope.source.library:
            continue
        for value in scope.names.values():
            own = isinstance(value, ModelDecl | FunctionDecl) and value.file is scope
            if own and id(value.node) not in context.run:
                context.build = GraphBuilder()
                (_check_model if isinstance(value, ModelDecl) else check_function)(value, scope, context)
    context.build = kept


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
