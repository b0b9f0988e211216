"""One fault of communication, at random, in a plan or in its emitted text: a collective dropped, reordered, resized or
regrouped, or a send exchanged.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.emit import Emission, emission
from shardlang.graph.graph import Kind
from shardlang.matched.lines import Line, lines_of
from shardlang.matched.read_back.program import Read, read
from shardlang.matched.read_back.text import File
from shardlang.matched.read_back.walk import EmittedMesh
from shardlang.matched.table import CONVERSIONS, KEEPING
from shardlang.plan.plan import Conversion, MoveKind, Plan
from shardlang.step.phases import summed_in_time


@dataclass(frozen=True)
class Fault:
    """The emission whose plan is read and the files that are read, one of them with a fault; what it is."""

    emission: Emission
    files: Mapping[str, str]
    said: str


def faults(made: Emission, files: Mapping[str, str], rng: random.Random) -> list[Fault]:
    """One fault of each kind that a plan has room for, in the text and in the plan."""
    texts = [Fault(made, {**files, name: text}, said) for name, text, said in _in_text(files, rng)]
    plans = [Fault(_arranged(made, plan), files, said) for plan, said in _in_plan(made.plan, rng)]
    return [*texts, *plans, *(Fault(other, files, said) for other, said in _sent(made, rng))]


def _arranged(made: Emission, plan: Plan) -> Emission:
    """The calls of a plan with a fault, in which a layer may differ from its neighbours; as they were where it is
    such that no text can be made of it."""
    try:
        return emission(plan)
    except (InternalError, LookupError, ValueError):
        return replace(made, plan=plan)


def _sent(made: Emission, rng: random.Random) -> Iterator[tuple[Emission, str]]:
    """Two values that a stage of the plan sends, exchanged."""
    several = [at for at, forward in enumerate(made.forwards) if len(forward.scope.sent) > 1]
    if several:
        at = rng.choice(several)
        forward = made.forwards[at]
        scope = replace(forward.scope, sent=(*forward.scope.sent[1::-1], *forward.scope.sent[2:]))
        forwards = [*made.forwards[:at], replace(forward, scope=scope), *made.forwards[at + 1 :]]
        yield replace(made, forwards=tuple(forwards)), f"exchanged in the plan: values that stage {at} sends"


# --- in the text -------------------------------------------------------------


def _functions(file: File) -> list[ast.AST]:
    """All that stands in the functions of a file."""
    found = [node for node in file.tree.body if isinstance(node, ast.FunctionDef)]
    return [node for function in found for node in ast.walk(function)]


def is_runtime(node: ast.expr) -> str:
    """`x` of `rt.x`; "" for what is not of the runtime."""
    return ast.unparse(node).removeprefix("rt.") if ast.unparse(node).startswith("rt.") else ""


def _calls(file: File) -> list[tuple[ast.Assign, ast.Call]]:
    """The lines that are a conversion and nothing else."""
    found = [n for n in _functions(file) if isinstance(n, ast.Assign)]
    return [(n, n.value) for n in found if isinstance(n.value, ast.Call) and is_runtime(n.value.func) in CONVERSIONS]


def _keeping(file: File) -> list[ast.Call]:
    """What is kept of operands of which a rank may have no part."""
    found = [n for n in _functions(file) if isinstance(n, ast.Call)]
    return [n for n in found if is_runtime(n.func) == KEEPING]


def _in_text(files: Mapping[str, str], rng: random.Random) -> Iterator[tuple[str, str, str]]:
    program = read(files)
    seen, texts = {line.span.place() for line in _lines(program) if line.span is not None}, program.texts.files
    named = [(f"{name}.py", file, *pair) for name, file in texts.items() for pair in _calls(file)]
    # Functions that nothing calls, as one for an evaluation that another file has, say nothing.
    named = [one for one in named if one[1].span(one[3]).place() in seen]
    if named:
        name, file, node, call = rng.choice(named)
        operand = ast.unparse(call.args[0])
        yield name, _put(file.text, call, operand), f"dropped in the text: {ast.unparse(node)}"
        name, file, node, call = rng.choice(named)
        yield name, _put(file.text, call, _regrouped(call, file.names)), f"regrouped in the text: {ast.unparse(node)}"
        name, file, node, call = rng.choice(named)
        yield name, _put(file.text, call, _resized(call)), f"resized in the text: {ast.unparse(node)}"
    pairs = [(a, b) for a, b in pairwise(named) if a[0] == b[0] and _differ(a[3], b[3])]
    if pairs:
        (name, file, first, one), (_, _, second, other) = rng.choice(pairs)
        text = _put(_put(file.text, other, ast.unparse(one)), one, ast.unparse(other))
        yield name, text, f"reordered in the text: {ast.unparse(first)} and {ast.unparse(second)}"
    kept = [(f"{name}.py", file, call) for name, file in texts.items() for call in _keeping(file)]
    kept = [one for one in kept if one[1].span(one[2]).place() in seen]
    if kept:
        name, file, call = rng.choice(kept)
        yield name, _put(file.text, call, ast.unparse(call.args[0])), f"dropped in the text: {ast.unparse(call)}"
    yield from _exchanged_text(files, rng)
    summed = [*re.finditer(r', reduce=(\(.*?\)|".*?")', files["main.py"])]
    if summed:
        found = rng.choice(summed)
        text = files["main.py"][: found.start()] + files["main.py"][found.end() :]
        yield "main.py", text, f"dropped in the text: {found[0]}"


def _lines(text: Read) -> Iterator[Line]:
    for at in range(len(text.stages)):
        for items in text.functions(at).values():
            yield from lines_of(items)


def _differ(one: ast.Call, other: ast.Call) -> bool:
    """Whether two calls are of other collectives."""
    return ast.unparse(one.func) != ast.unparse(other.func) or list(map(ast.unparse, one.args[1:])) != list(
        map(ast.unparse, other.args[1:])
    )


def _put(text: str, node: ast.expr, new: str) -> str:
    """The text with another one in place of a node."""
    rows = text.encode().split(b"\n")
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row) + 1)
    data = text.encode()
    assert node.end_lineno is not None and node.end_col_offset is not None
    begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    return (data[:begin] + new.encode() + data[end:]).decode()


def _regrouped(call: ast.Call, meshes: Mapping[str, EmittedMesh]) -> str:
    """The call over another group, of other axes."""
    text = ast.unparse(call)
    group = next(a for a in call.args[1:] if isinstance(a, (ast.Attribute, ast.Subscript)))
    name = ast.unparse(group.value)
    others = [f'{name}["{axis}"]' for axis in meshes[name].sizes]
    whole = f"{name}[{', '.join(map(repr, meshes[name].sizes))}]"
    mine = ast.unparse(group)
    axis = mine.rpartition(".")[2] if "[" not in mine else ast.literal_eval(group.slice)  # type: ignore[attr-defined]
    for other in [*others, whole]:
        found = re.findall(r"[\"'](\w+)[\"']", other)
        if tuple(found) != ((axis,) if isinstance(axis, str) else axis):
            return text.replace(mine, other)
    return text.replace(mine, f"{name}[()]")


def _resized(call: ast.Call) -> str:
    """The call along another dim, or of a part of its operand."""
    text, first = ast.unparse(call), ast.unparse(call.args[0])
    dims = [a for a in call.args[1:] if isinstance(a, ast.Constant)]
    if dims:
        return text.replace(f"({first}, {dims[0].value}", f"({first}, {dims[0].value + 1}")
    return text.replace(f"({first}", f"({first}[:1]", 1)


def _exchanged_text(files: Mapping[str, str], rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """Two values that a stage returns, or two actions of a schedule."""
    text = read(files)
    several = [at for at in range(len(text.stages) - 1) if len(text.stages[at + 1].receives) > 1]
    if several:
        stage = text.stages[rng.choice(several)]
        file, last = stage.functions["forward"].file, stage.functions["forward"].node.body[-1]
        assert isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple)
        first, second, *rest = map(ast.unparse, last.value.elts)
        yield (
            file.name, _put(file.text, last.value, ", ".join([second, first, *rest])),
            f"exchanged in the text: {first} and {second}, which a stage sends",
        )  # fmt: skip
    rows = re.findall(r"^        \"(\d+[FBIW].*)\",$", files["main.py"], re.M)
    texts = [row for row in rows if re.match(r"(\d+F)(\d+) ", row)]
    if texts:
        row = rng.choice(texts)
        yield "main.py", files["main.py"].replace(f'"{row}"', f'"{_moved(row)}"'), f"exchanged in the text: {row}"


def _moved(row: str) -> str:
    """A row whose first action comes last."""
    first, _, rest = row.partition(" ")
    return f"{rest} {first}"


# --- in the plan -------------------------------------------------------------


def _in_plan(plan: Plan, rng: random.Random) -> Iterator[tuple[Plan, str]]:
    mine = [c for c in plan.conversions if c.move.kind.value in CONVERSIONS and not summed_in_time(plan, c)]
    mine = [c for c in mine if plan.graph.values[c.value].kind is not Kind.CONSTANT and _runs(plan, c)]
    for how, changed in (("dropped", _view), ("resized", _other_dim), ("regrouped", _other_axes)):
        found = [new for c in mine if (new := changed(plan, c)) is not None]
        if found:
            new = rng.choice(found)
            yield _with(plan, new), f"{how} in the plan: {plan.conversions[new.id].move} of value {new.value}"
    dims = {c.id: len(plan.graph.values[c.value].type.dims) for c in mine}
    pairs = [(a, b) for a, b in pairwise(mine) if _what(a) != _what(b) and dims[a.id] == dims[b.id]]
    pairs = [(a, b) for a, b in pairs if a.to.mesh == b.to.mesh]  # another mesh may lack the axes
    if pairs:
        one, other = rng.choice(pairs)
        swapped = _with(_with(plan, replace(one, move=other.move)), replace(other, move=one.move))
        yield swapped, f"reordered in the plan: {one.move} and {other.move}"
    summed = [param for param in plan.params.values() if plan.meshes[param.stored.mesh].ranked(param.reduce_axes)]
    if summed:
        param = rng.choice(summed)
        yield (
            replace(plan, params={**plan.params, param.value: replace(param, reduce_axes=())}),
            f"dropped in the plan: the sum of the gradient of {plan.graph.values[param.value].path}",
        )
    if plan.pipeline is not None:
        lines = [list(row) for row in plan.pipeline.actions]
        row = rng.choice([row for row in lines if len(row) > 1])
        row.append(row.pop(0))
        yield (
            replace(plan, pipeline=replace(plan.pipeline, actions=tuple(map(tuple, lines)))),
            f"exchanged in the plan: action {row[-1]}",
        )


def _runs(plan: Plan, c: Conversion) -> bool:
    """Whether a conversion is a line of the text, in no layer that is like one before it: such a layer is read once,
    and a plan of which no text can be made has no calls of its own.
    """
    return c.move.kind is not MoveKind.PERMUTE and not re.search(r"\[[1-9]", plan.graph.values[c.value].path)


def _what(c: Conversion) -> tuple[object, ...]:
    """What a conversion does, whatever it sends."""
    return c.move.kind, c.move.axes, c.move.dim, c.move.from_dim


def _with(plan: Plan, new: Conversion) -> Plan:
    return replace(plan, conversions=tuple(new if c.id == new.id else c for c in plan.conversions))


def _view(plan: Plan, c: Conversion) -> Conversion:
    return replace(c, move=replace(c.move, kind=MoveKind.VIEW))


def _other_dim(plan: Plan, c: Conversion) -> Conversion | None:
    """Along another dim; a sum has none."""
    rank = len(plan.graph.values[c.value].type.dims)
    if c.move.dim < 0 or rank < 2 or c.move.kind is MoveKind.S_TO_S:
        return None
    return replace(c, move=replace(c.move, dim=(c.move.dim + 1) % rank))


def _other_axes(plan: Plan, c: Conversion) -> Conversion | None:
    mesh = plan.meshes[c.to.mesh]
    others = [axis.name for axis in mesh.axes if (axis.name,) != c.move.axes]
    return replace(c, move=replace(c.move, axes=(others[0],))) if others else None
