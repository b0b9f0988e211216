"""`optimizer = adamw(...)` and `optimizer at SELECTOR = ...` -> one optimizer for each parameter.

The most specific selector decides; what it leaves unset it takes from the general setting of its
kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardlang.check.context import Frame, Reported, attempted
from shardlang.check.declared import DeclaredKind, called
from shardlang.check.files.own import visible
from shardlang.check.model.arguments import call_of_one, declared_arguments, missing_argument
from shardlang.check.program import OptimizerSetting
from shardlang.check.selectors import EVERYWHERE, Specificity, select, specificity, text
from shardlang.check.values import UNKNOWN
from shardlang.facts.optimizers import OPTIMIZERS
from shardlang.graph.graph import Graph
from shardlang.ops.declaration import Param
from shardlang.syntax import ast

_KINDS = {bool: "bool", tuple: "numbers"}
KINDS: Mapping[str, DeclaredKind] = {
    name: DeclaredKind(facts.doc, tuple(Param(a, _KINDS.get(type(d), "number"), d) for a, d in facts.arguments.items()))
    for name, facts in OPTIMIZERS.items()
}
Given = tuple[str, dict[str, Any]]
Optimizer = tuple[ast.Setting, Given]


def read_optimizers(settings: Sequence[ast.Setting], frame: Frame) -> list[Optimizer]:
    """The settings with all their arguments; those that are wrong are reported and left out."""
    read = [(setting, attempted(_read, setting, frame)) for setting in settings]
    general = {given[0]: given[1] for setting, given in read if given is not None and not setting.at}
    if any(given is None for _, given in read):  # what the others lack may stand in the one that is wrong
        return []
    complete = [(s, given[0], attempted(_complete, s, given, general, frame)) for s, given in read if given is not None]
    return [(setting, (kind, arguments)) for setting, kind, arguments in complete if arguments is not None]


def _read(setting: ast.Setting, frame: Frame) -> Given:
    """Kind and the arguments that are given."""
    node, example = setting.value, "optimizer = adamw(lr = 3e-4)"
    if frame.file.find(called(node)) is UNKNOWN:
        raise Reported  # its declaration
    there = _kinds(frame)
    call, kind = call_of_one(node, there, "optimizer", "SH236", example, frame), called(node)
    if kind in KINDS and kind in visible(frame.file, "optimizer"):
        fact = f"`{kind}` is an optimizer of the language, and a file declares another"
        frame.refuse("SH236", fact, node.span, "which one?", help="give the declared one another name")
    params = there[kind].params
    free = () if kind in KINDS else [param.name for param in params if param.name != "lr"]
    return kind, declared_arguments(kind, params, call, frame, all_due=False, free=free)


def _kinds(frame: Frame) -> Mapping[str, DeclaredKind]:
    """The optimizers that a program may call."""
    own = visible(frame.file, "optimizer")
    return {**{name: DeclaredKind("", decl.settings) for name, decl in own.items()}, **KINDS}


def _complete(
    setting: ast.Setting, given: Given, general: Mapping[str, Mapping[str, Any]], frame: Frame
) -> dict[str, Any]:
    kind, arguments = given
    found = {**_kinds(frame)[kind].defaults, **(general.get(kind, {}) if setting.at else {}), **arguments}
    missing = next((name for name, value in found.items() if value is ...), None)
    if missing is not None:
        missing_argument(kind, missing, setting.value.span, frame)
        raise Reported
    if kind == "sgd" and found.get("nesterov") and (found["momentum"] <= 0 or found["dampening"] != 0):
        fact = "`nesterov` needs a momentum and no dampening"
        label = f"momentum {found['momentum']:g}, dampening {found['dampening']:g}"
        frame.refuse("SH237", fact, setting.value.span, label, help="add `momentum = 0.9`")
    return found


def assign(settings: Sequence[Optimizer], graph: Graph, frame: Frame) -> tuple[OptimizerSetting, ...]:
    """Each parameter that is trained goes to the most specific setting that covers it."""
    reported, own = len(frame.context.sink.found), visible(frame.file, "optimizer")
    best: dict[int, tuple[Specificity, int]] = {}
    rivals: dict[int, int] = {}
    for index, (setting, _) in enumerate(settings):
        for value, rank in _covered(setting, graph, frame).items():
            before = best.get(value)
            if before is None or rank > before[0]:
                best[value] = (rank, index)
                rivals.pop(value, None)
            elif rank == before[0] and setting.at:
                rivals[value] = index
    _report_rivals(rivals, best, settings, graph, frame)
    if len(frame.context.sink.found) == reported:  # a selector that is wrong leaves out what it was meant for
        _report_without(best, settings, graph, frame)
    return tuple(
        OptimizerSetting(kind, arguments, params, tuple(map(text, setting.at)), own.get(kind))
        for index, (setting, (kind, arguments)) in enumerate(settings)
        if (params := tuple(p for p in graph.params if best.get(p, (None, -1))[1] == index))
    )


def trained(graph: Graph) -> list[int]:
    """The parameters that get a gradient; the others are frozen."""
    return [p for p in graph.params if graph.values[p].gradient]


def _report_rivals(
    rivals: Mapping[int, int], best: Mapping[int, tuple[Specificity, int]],
    settings: Sequence[Optimizer], graph: Graph, frame: Frame,
) -> None:  # fmt: skip
    """Two settings that are equally specific and differ: once for each two."""
    seen: set[tuple[int, int]] = set()
    for value, second in rivals.items():
        first = best[value][1]
        if (first, second) in seen or settings[first][1] == settings[second][1]:
            continue
        seen.add((first, second))
        frame.context.sink.report(
            "SH238", f"two optimizers train `{graph.values[value].path}`", settings[second][0].span, "this one",
            labels=[(settings[first][0].span, "and this one are equally specific")], help="narrow one of the selectors",
        )  # fmt: skip


def _covered(setting: ast.Setting, graph: Graph, frame: Frame) -> dict[int, Specificity]:
    """Parameters under a setting's selectors, with how specific the selector is."""
    if not setting.at:
        return dict.fromkeys(trained(graph), EVERYWHERE)
    found: dict[int, Specificity] = {}
    params = set(trained(graph))
    scopes = [(selector, select(graph, [selector], frame.context.sink)) for selector in setting.at]
    some = any(params & scope.values.keys() for _, scope in scopes)
    for selector, scope in scopes:
        rank = specificity(selector)
        covered = params & scope.values.keys()
        frozen = scope.values.keys() & set(graph.params)
        # One selector of several may cover what is frozen: `**.bias, **.norm.*` beside a freeze.
        if scope.values and not covered and not (frozen and some):
            help = "an optimizer trains parameters: name one, or a layer that has some"
            frame.context.sink.report(
                "SH238", f"`{selector.span.text}` covers {'frozen parameters alone' if frozen else 'no parameter'}",
                selector.span, help="`detach` or `freeze` keeps them as they are: leave this out" if frozen else help,
            )  # fmt: skip
        for value in covered:
            found[value] = max(rank, found.get(value, rank))
    return found


def _report_without(best: Mapping[int, Any], settings: Sequence[Optimizer], graph: Graph, frame: Frame) -> None:
    left = [graph.values[p] for p in trained(graph) if p not in best]
    if left and settings:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        frame.wrong(
            "SH238", f"no optimizer trains `{left[0].path}`{more}", settings[0][0].span,
            labels=[(left[0].span, "declared here")], help="add one for all: `optimizer = adamw(lr = 3e-4)`",
        )  # fmt: skip
