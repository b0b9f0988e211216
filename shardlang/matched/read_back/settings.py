"""The settings of an emitted program -> the lines that the runtime communicates by: parameters'
sums and rows, gathers of ZeRO 3, messages between stages, the schedule, sums of figures."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from shardlang.facts.actions import ACTIONS, FORWARD
from shardlang.facts.actions import listed as actions
from shardlang.facts.figures import GRAD_NORM
from shardlang.matched.lines import ActionRow, AxisGroup, Items, Line, gather_line, message
from shardlang.matched.read_back.program import EmittedInput, Read, named
from shardlang.matched.read_back.text import Variable
from shardlang.paths.patterns import expanded


def parameters(read: Read) -> Mapping[str, Items]:
    """Path -> lines of a parameter; those of equal layers are one object."""
    made, found = dict[int, Items](), {}
    for path, declared in read.text.declared.items():
        if declared.trained:
            if id(declared) not in made:
                made[id(declared)] = parameter(read, declared)
            found[path] = made[id(declared)]
    return found


def parameter(read: Read, declared: Variable) -> tuple[Line, ...]:
    """The sum of a parameter's gradient and, if ZeRO cuts it, its rows."""
    given, span = declared.given, read.text.main.span(declared.node)
    mesh, learns = read.text.meshes[given.get("mesh", "mesh")][0], not given.get("frozen")
    how = "of rows" if given.get("sparse") else "of the first microbatch" if given.get("once") else ""
    group = AxisGroup(mesh, listed(given.get("reduce", ())))
    found = Line(f"the gradient {how}".strip() if learns else "no gradient", group, (), declared.local, span=span)
    level, axes = given.get("zero", (0, ()))
    if not level:
        return (found,)
    what = f"rows by zero {level}{', keep' if given.get('keep') else ''}"
    return found, Line(what, AxisGroup(mesh, listed(axes)), (), declared.local, span=span)


def listed(axes: str | tuple[str, ...]) -> tuple[str, ...]:
    """An axis, or several, as a tuple."""
    return (axes,) if isinstance(axes, str) else axes


def gathers(read: Read, at: int) -> Items:
    """The gathers of a stage, in the order of its passes."""
    stage = read.stages[at]
    span = read.text.main.span(named(stage.node).get("gathers") or stage.node)
    return tuple(gather_line(kind, mine, span) for kind, mine in units(read, at))


def units(read: Read, at: int) -> list[tuple[str, dict[str, None]]]:
    """The kind of a pass, and the parameters that come together in it."""
    stage, cut = read.stages[at], read.stored
    order = named(stage.node).get("gathers")
    given = {key: ast.literal_eval(node) for key, node in named(order).items()} if isinstance(order, ast.Call) else {}
    found = []
    for kind, (_, name) in ACTIONS.items():
        each = [x for unit in given.get(name, ()) for x in ([unit] if isinstance(unit, tuple) else zip(expanded(unit)))]
        named_ = ({p: None for p in read.text.named(unit) if p in cut and p in stage.parameters} for unit in each)
        mine = [(kind, unit) for unit in named_ if unit]
        found += mine if kind == FORWARD else mine[::-1]
    return found


def messages(read: Read, at: int) -> Items:
    """The values that a stage receives, then those that it sends on."""
    stage, axis = read.stages[at], read.stage_group
    function = stage.file.functions[stage.names["forward"]]
    names = [argument.arg for argument in function.args.args[1:]]
    found = [
        Line(message("receive", name, given.evaluate, given.gradient), axis, (), given.local,
             gradient=given.gradient, span=read.text.main.span(given.node))
        for name, given in zip(names, stage.receives, strict=False)
    ]  # fmt: skip
    last = function.body[-1]
    assert isinstance(last, ast.Return)
    parts = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    values = read.returned[at]
    for node, value in zip(parts, values[: len(sent(read, at))], strict=False):
        assert node is not None
        found.append(Line(message("send", ast.unparse(node)), axis, (), value.local, span=stage.file.span(last)))
    return tuple(found)


def sent(read: Read, at: int) -> Sequence[EmittedInput]:
    """The values that the next stage receives."""
    return read.stages[at + 1].receives if at + 1 < len(read.stages) else ()


def schedule(read: Read) -> Sequence[ActionRow]:
    """The actions of each coordinate."""
    call = read.text.main.assigned("schedule")
    rows = named(call)["actions"] if isinstance(call, ast.Call) else None
    listed = rows.elts if isinstance(rows, ast.List) else []
    return [ActionRow(actions(ast.literal_eval(row)), read.text.main.span(row)) for row in listed]


def figures(read: Read) -> Items:
    """The sums over all ranks that the runtime makes, and what decides its buckets."""
    given, main = read.program, read.text.main
    call = main.assigned("program")
    assert call is not None
    found = []
    for name, end in (("loss_pending", ""), ("metrics_pending", ""), ("eval_pending", " of an evaluation")):
        node = given.get(name)
        axes = ast.literal_eval(node) if node is not None else {}
        for what, over in axes.items() if isinstance(axes, dict) else [("loss", axes)]:
            found.append(Line(f"the sum of `{what}`{end}", AxisGroup(0, over), span=main.span(node or call)))
    bucket = given["bucket_bytes"]
    found.append(Line(f"buckets of {ast.literal_eval(bucket)} bytes", AxisGroup(0, ()), span=main.span(bucket)))
    low = given["precision"] if ast.literal_eval(given["precision"]) == "f16" else None
    late = given.get("late_from")
    late = late if late is not None and GRAD_NORM in ast.literal_eval(late) else None
    if (measures := given.get("clip") or given.get("not_finite") or low or late) is not None:
        found.append(Line("the norm of all gradients", AxisGroup(0, ()), span=main.span(measures)))
    if isinstance(every := given.get("checkpoint"), ast.Call):
        steps = ast.literal_eval(named(every)["every"])
        found.append(Line(f"a checkpoint every {steps} steps", AxisGroup(0, ()), span=main.span(every)))
    return tuple(found)
