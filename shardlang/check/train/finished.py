"""The grown graph becomes a frozen one: canonical dims, gradient flags, what only metrics need.

Turns drafts into values and operators; reports declarations that nothing uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from shardlang.check.context import Context
from shardlang.graph.bounds import index_bounds
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.hints.nearest import nearest
from shardlang.ops.declared import DECLARED
from shardlang.ops.torch_words import training_help
from shardlang.sources.source import Span
from shardlang.types.dim import Dim, TensorType

_HINTS = {
    "value": "use it, or delete the statement",
    "layer": "call it in `forward`, or delete it",
    "parameter": "use it in `forward`, or delete it",
    "state": "use it in `forward`, or delete it",
    "formal": "use it, or delete it",
    "argument": "use it, or delete it",
    "field": "use it in the model or the loss, or delete it",
}


def report_unused(context: Context, settings: Mapping[int, tuple[str, tuple[str, ...]]]) -> None:
    """Reports declarations that are never used. `settings`: values of `train` that may be meant as
    settings, and which. After a mistake much is unused that is not meant to be: then only of these
    is told, where nothing else has their name."""
    failed = context.sink.failed
    for key, (kind, name, span) in context.candidates.items():
        if key in context.used or any(_within(span, model) for model in context.uncalled.values()):
            continue
        help, close = _HINTS[kind], misspelt(name, span, settings[key][1]) if key in settings else None
        if key in settings:
            help = training_help(name) or (f"did you mean the setting `{close}`?" if close else help)
        if close is not None or not failed:
            context.sink.report("SH223", f"{kind} `{name}` is never used", span, "declared here", help=help)


def misspelt(name: str, span: Span, settings: Iterable[str]) -> str | None:
    """The setting that a name of `train` was probably meant as, where nothing else has the name."""
    near = nearest(name, settings)
    return near if len(re.findall(rf"\b{name}\b", span.source.text)) == 1 else None


def _within(span: Span, model: Span) -> bool:
    """Whether a place is in a model: of one that is never called only its layer is reported."""
    return span.source is model.source and model.start <= span.start < model.end


def finish(
    context: Context, loss: int | None, metrics: Mapping[str, int], batch: Dim | None, frozen: Set[int] = frozenset()
) -> Graph:
    """The graph as a frozen value. Values and operators keep their numbers, which are in
    topological order. frozen: parameters that are not trained."""
    build = context.build
    build.name_casts()
    ops = _ops(context, loss)
    values = _bounded(_values(context, loss, frozen), ops)
    ids = {kind: tuple([v.id for v in values if v.kind is kind]) for kind in (Kind.DATA, Kind.PARAM, Kind.STATE)}
    found = context.dims.canonical((batch,)) if batch else ()
    return Graph(
        values, ops, ids[Kind.DATA], params=ids[Kind.PARAM], states=ids[Kind.STATE], loss=loss, metrics=metrics,
        addresses={path: at if len(at) == 1 else tuple(dict.fromkeys(at)) for path, at in build.addresses.items()},
        declared=tuple(build.declared), dims=_dims(context), batch=found[0] if found else None,
        producers={v: o.id for o in ops for v in o.results}, calls=tuple(build.calls),
    )  # fmt: skip


def _values(context: Context, loss: int | None, frozen: Set[int]) -> tuple[GraphValue, ...]:
    gradient, dims = _gradients(context, loss, frozen), context.dims
    # Types in canonical dims, each object worked out once, and equal ones the same.
    types = {id(v.type): v.type for v in context.build.values}
    made = {at: TensorType(t.dtype, tuple(map(dims.canonical, t.dims))) for at, t in types.items()}
    shared: dict[TensorType, TensorType] = {}
    types = {at: shared.setdefault(t, t) for at, t in made.items()}
    fixed = _fixed(context) if loss is not None else frozenset()
    return tuple([
        GraphValue(
            i, Kind.PARAM if i in fixed else v.kind, v.path, name=v.name, type=types[id(v.type)], gradient=gradient[i],
            span=v.span,
            statement=v.statement, init=v.init, constant=v.constant, bound=v.bound,
        )
        for i, v in enumerate(context.build.values)
    ])  # fmt: skip


def _fixed(context: Context) -> frozenset[int]:
    """The states of the run's own type that no operator writes, which are frozen parameters."""
    build = context.build
    written = {op.operands[at] for op in build.ops for at in op.operator.updates}
    states = (i for i, v in enumerate(build.values) if v.kind is Kind.STATE and v.type.dtype == context.dtype)
    return frozenset(i for i in states if i not in written)


def _bounded(values: tuple[GraphValue, ...], ops: tuple[Op, ...]) -> tuple[GraphValue, ...]:
    """Fields of whole numbers with what follows from their use: where no bound is declared, ids
    stay below the rows of their table; a label may be the number that its losses ignore."""
    known = index_bounds(values, ops)
    return tuple(
        replace(v, bound=v.bound or known[v.id].bound, ignored=known[v.id].further)
        if v.kind is Kind.DATA and not v.type.floating and v.id in known
        else v
        for v in values
    )


def _ops(context: Context, loss: int | None) -> tuple[Op, ...]:
    needed = context.build.needed(() if loss is None else (loss,))
    return tuple([
        Op(
            i, DECLARED if DECLARED in o.attrs else o.operator.name,
            tuple([v for v in o.operands if v >= 0]) if -1 in o.operands else o.operands,
            results=o.results, attrs=o.attrs, rule=o.rule, span=o.span, path=o.path, call=o.call,
            section="loss" if loss is None or i in needed else "metric", within=o.within, statement=o.statement,
            implied=o.implied,
        )
        for i, o in enumerate(context.build.ops)
    ])  # fmt: skip


def _gradients(context: Context, loss: int | None, frozen: Set[int]) -> list[bool]:
    """Per value: floating, depends differentiably on a parameter, and the loss depends on it so."""
    values, ops = context.build.values, context.build.ops
    trained = [v.kind is Kind.PARAM and at not in frozen for at, v in enumerate(values)]
    for op in ops:
        if op.operator.differentiable and any([trained[o] for o in op.operands if o >= 0]):
            for r in op.results:
                trained[r] = values[r].type.floating
    wanted = [at == loss for at in range(len(values))]
    for op in reversed(ops):
        if op.operator.differentiable and any([wanted[r] and trained[r] for r in op.results]):
            for o in op.operands:
                if o >= 0:
                    wanted[o] = True
    return [a and b for a, b in zip(trained, wanted, strict=True)]


def _dims(context: Context) -> dict[str, tuple[Dim, ...]]:
    """Names that a strategy may use: those of `register_dim`, and the own names of values' dims."""
    found = {name: context.dims.canonical(term) for name, term in context.build.dims.items()}
    return {name: term for name, term in found.items() if term}
