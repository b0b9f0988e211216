"""The settings of an emitted program -> the lines that the runtime communicates by: parameters'
sums and rows, gathers of ZeRO 3, messages between stages, the schedule, sums of figures."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from shardlang.facts.actions import ACTIONS, FORWARD
from shardlang.facts.actions import listed as actions
from shardlang.facts.figures import GRAD_NORM
from shardlang.matched.lines import ActionRow, Items, Line, gather_line, gradient_lines, message, setting
from shardlang.matched.read_back.program import Read, Variable
from shardlang.matched.read_back.walk import local_of
from shardlang.paths.patterns import expanded


def parameters(read: Read) -> Mapping[str, Items]:
    """Path -> lines of a parameter; those of equal layers are one object."""
    trained = {path: one for path, one in read.declared.items() if one.trained}
    each = {id(one): one for one in trained.values()}
    made = {at: parameter(read, one) for at, one in each.items()}
    return {path: made[id(one)] for path, one in trained.items()}


def parameter(read: Read, declared: Variable) -> Items:
    """The sum of a parameter's gradient and, if ZeRO cuts it, its rows."""
    given, mesh = declared.given, declared.given.get("mesh", read.texts.meshes[0])
    how = "no" if given.get("frozen") else "rows" if given.get("sparse") else "once" if given.get("once") else ""
    level, axes = given.get("zero", (0, ()))
    return gradient_lines(
        how, mesh.group(given.get("reduce", ())), declared.local, (level, mesh.group(axes)),
        keep=given.get("keep", False), span=read.main.span(declared.node),
    )  # fmt: skip


def gathers(read: Read, at: int) -> Items:
    """The gathers of a stage, in the order of its passes."""
    span = read.main.span(read.stages[at].made.at("gathers"))
    return tuple(gather_line(kind, unit, span) for kind, unit in units(read, at) if unit)


def units(read: Read, at: int) -> Iterator[tuple[str, Sequence[str]]]:
    """The kind of a pass, and the parameters that come together in it."""
    stage = read.stages[at]
    order = stage.made.words.get("gathers")
    for kind, (_, name) in ACTIONS.items():
        each = order.words.get(name, ()) if order is not None else ()
        units = [x for unit in each for x in ([unit] if isinstance(unit, tuple) else zip(expanded(unit)))]
        for unit in units if kind == FORWARD else reversed(units):
            yield kind, [path for path in read.named(unit) if path in stage.parameters and _stored(read.declared[path])]


def _stored(declared: Variable) -> bool:
    """Whether ranks have rows alone, by ZeRO 3."""
    return bool(declared.given.get("zero", (0, ()))[0] == 3)


def messages(read: Read, at: int) -> Items:
    """The values that a stage receives, then those that it sends on."""
    stage, made = read.stages[at], partial(message, over=read.stage_group)
    file, function = stage.functions["forward"].file, stage.functions["forward"].node
    names = [argument.arg for argument in function.args.args[1:]]
    found = [
        made("receive", name, x.local, evaluated=x.given.get("evaluate", True),
             gradient=x.given.get("gradient", False), span=read.main.span(x.node))
        for name, x in zip(names, stage.receives, strict=False)
    ]  # fmt: skip
    last = function.body[-1]
    assert isinstance(last, ast.Return) and last.value is not None
    parts = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    sent = read.returned[at][: len(read.stages[at + 1].receives) if at + 1 < len(read.stages) else 0]
    for node, value in zip(parts, sent, strict=False):
        found.append(made("send", ast.unparse(node), local_of(value), span=file.span(last)))
    return tuple(found)


def schedule(read: Read) -> Sequence[ActionRow]:
    """The actions of each coordinate."""
    if read.schedule is None:
        return ()
    listed = read.schedule.at("actions")
    places = listed.elts if isinstance(listed, ast.List) else []
    rows = zip(read.schedule.words["actions"], places, strict=True)
    return [ActionRow(actions(row), read.main.span(node)) for row, node in rows]


def figures(read: Read) -> Items:
    """The sums over all ranks that the runtime makes, and what decides its buckets."""
    given = read.program.words

    def said(what: str, at: str, axes: Iterable[str] = ()) -> Line:
        return setting(what, read.main.span(read.program.at(at)), axes)

    pending = ("loss_pending", ""), ("metrics_pending", ""), ("eval_pending", " of an evaluation")
    found = [
        said(f"the sum of `{what}`{end}", name, over)
        for name, end in pending for axes in [given.get(name, {})]
        for what, over in (axes.items() if isinstance(axes, dict) else [("loss", axes)])
    ]  # fmt: skip
    found.append(said(f"buckets of {given['bucket_bytes']} bytes", "bucket_bytes"))
    late = GRAD_NORM in given.get("late_from", ())
    measured = [word for word in ("clip", "not_finite") if given.get(word)]
    measured += ["precision"] * (given["precision"] == "f16") + ["late_from"] * late
    found += [said("the norm of all gradients", word) for word in measured[:1]]
    if (every := given.get("checkpoint")) is not None:
        found.append(said(f"a checkpoint every {every.words['every']} steps", "checkpoint"))
    return tuple(found)
