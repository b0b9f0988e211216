"""`freeze at SELECTOR, ..` -> the parameters that keep their initial values.

An `optimizer at` of such parameters alone takes them out again, if it is more specific; one that
also covers others leaves them frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.check.context import Frame
from shardlang.check.selectors import Specificity, select, specificity
from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph
from shardlang.hints.nearest import nearest
from shardlang.syntax import ast
from shardlang.syntax.words import Word

# What stands in `train` beside the settings.
FREEZE: Mapping[str, Word] = {
    "freeze": Word("freeze at encoder, **.bias", "The parameters that the selectors cover keep their initial values, "
                   "or those of `init`. Gradients pass them on their way to others."),
}  # fmt: skip


def frozen(freezes: Sequence[ast.Setting], optimizers: Sequence[ast.Setting], graph: Graph, frame: Frame) -> set[int]:
    """The parameters that `freeze` keeps from being trained."""
    found: dict[int, tuple[Specificity, ast.Setting]] = {}
    for setting in freezes:
        if setting.name.text not in FREEZE:
            meant = nearest(setting.name.text, FREEZE)
            help = "did you mean `freeze`?" if meant else f"write `{setting.name.text} at .. = ..`"
            frame.wrong("SH111", f"`{setting.span.text}` lacks a `=` and a value", setting.span, "no value", help=help)
            continue
        for param, rank in covered(setting, graph, frame.context.sink).items():
            if param not in found or rank > found[param][0]:
                found[param] = rank, setting
    for optimizer in (setting for setting in optimizers if setting.at):
        _take_out(found, optimizer, covered(optimizer, graph, Sink()), graph, frame)
    return set(found)


def _take_out(
    found: dict[int, tuple[Specificity, ast.Setting]], optimizer: ast.Setting, covered: Mapping[int, Specificity],
    graph: Graph, frame: Frame,
) -> None:  # fmt: skip
    """Parameters that an optimizer names, where all of its are frozen and it is more specific."""
    if not covered or not covered.keys() <= found.keys():
        return
    rivals = [param for param, rank in covered.items() if rank == found[param][0]]
    if rivals:
        path = graph.values[rivals[0]].path
        frame.context.sink.report(
            "SH238", f"`{path}` is frozen, and an optimizer trains it", optimizer.span, "this one",
            labels=[(found[rivals[0]][1].span, "and this one are equally specific")],
            help="narrow one of the selectors, or leave one out",
        )  # fmt: skip
    for param, rank in covered.items():
        if rank >= found[param][0]:
            del found[param]


def covered(setting: ast.Setting, graph: Graph, sink: Sink, to_do: str = "freeze") -> dict[int, Specificity]:
    """Parameters under the selectors of a setting, with how specific the selector is; reports one
    that covers none."""
    found: dict[int, Specificity] = {}
    params = set(graph.params)
    for selector in setting.at:
        scope = select(graph, [selector], sink)
        covered = params & scope.values.keys()
        if scope.values and not covered:
            sink.report(
                "SH238", f"`{selector.span.text}` covers no parameter", selector.span, f"nothing to {to_do}",
                help="name a parameter, or a layer that has some",
            )  # fmt: skip
        rank = specificity(selector)
        for param in covered:
            found[param] = max(rank, found.get(param, rank))
    return found
