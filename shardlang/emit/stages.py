"""A plan with pipeline stages -> a file for each stage, and what main.py says of them: stages,
schedule.

Each stage's file has the functions that a program without stages has in main.py; scope.py says what
is in which."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.accumulators import EvalPass
from shardlang.emit.evaluate import evaluated_values
from shardlang.emit.gathers import order_arguments
from shardlang.emit.header import cut_arguments, place_text
from shardlang.emit.once import once_names
from shardlang.emit.scope import FileContents
from shardlang.emit.text.fold import patterns
from shardlang.emit.text.lines import WIDTH, call_text, indented, lines_text, list_text
from shardlang.emit.text.repeats import repeats
from shardlang.frozen.records import remembered
from shardlang.ops.python_text import comment, docstring, literal
from shardlang.plan.plan import Pipeline, Plan

# The files of what stages have in common.
LAYERS, MESH = "layers", "mesh"


def stage_name(stage: int) -> str:
    """The module of a stage."""
    return f"stage{stage}"


def stage_docstring(plan: Plan, stages: Sequence[int]) -> str:
    """The docstring of the file of some stages, mostly of one."""
    pipeline = _pipeline(plan)
    count, at = len(pipeline.coordinates), sorted({pipeline.coordinates[stage] for stage in stages})
    ranks = f"{pipeline.axis} = {_numbers(at)}"
    return docstring(
        f"Stage{'s' if len(stages) > 1 else ''} {_numbers(stages)} (of {count}) of {place_text(plan)}.",
        f"Written by shardc from the program and its strategy. The ranks with {ranks} run this file on",
        "their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local",
        "type and its layout on the mesh.",
    )


def layers_docstring(plan: Plan) -> str:
    """The docstring of the file of the functions that several stages call."""
    return docstring(
        f"The layers that several stages have in common, of {place_text(plan)}.",
        "Written by shardc from the program and its strategy. `p` is the layer with its parameters; a comment gives a",
        "value's local type and its layout on the mesh.",
    )


def mesh_docstring(plan: Plan) -> str:
    """The docstring of the file that all others import the mesh from."""
    said = "Written by shardc from the program and its strategy. All stages import it from here."
    return docstring(f"The mesh of {place_text(plan)}.", said)


def _numbers(numbers: Sequence[int]) -> str:
    """`3`; `1 to 30`; `0, 2, 4`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def stage_list(scopes: Sequence[FileContents], modules: Sequence[str], evaluation: EvalPass | None) -> str:
    """`stages = [rt.Stage(...), ...]`; before it, common received values. modules: file of each."""
    received = [list_text([_received(scope, value, evaluation) for value in scope.received]) for scope in scopes]
    several = [text for text in dict.fromkeys(received) if received.count(text) > 1 and text != "[]"]
    names = {text: f"received_{at}" if at > 1 else "received" for at, text in enumerate(several, 1)}
    made = zip(scopes, modules, received, strict=True)
    stages = [_stage(scope, module, names.get(text, text), evaluation) for scope, module, text in made]
    return "\n\n".join([*(f"{name} = {text}" for text, name in names.items()), f"stages = {list_text(stages)}"])


def _stage(scope: FileContents, module: str, received: str, evaluation: EvalPass | None) -> str:
    plan = scope.plan
    names = [literal(plan.graph.values[value].name) for value in scope.fields]
    functions = [f"{name}={module}.{name}" for name in once_names(scope.phases)]
    paths = _saved(plan)
    arguments = [f"{module}.forward", f"parameters={literal(patterns(paths[scope.stage], paths[None]))}"]
    if scope.received:
        arguments.append(f"receives={received}")
    if names:
        arguments.append(f"fields=({', '.join(names)}{',' if len(names) == 1 else ''})")
    if evaluation is not None:
        arguments.append(f"evaluate={module}.evaluate")
    if functions:
        arguments.append(", ".join(functions))
    arguments += order_arguments(plan, scope.stage or 0, 2)
    long = any("\n" in argument for argument in arguments)
    return lines_text("rt.Stage", arguments) if long else call_text("rt.Stage", arguments, 1)


@remembered
def _saved(plan: Plan) -> Mapping[int | None, list[str]]:
    """Stage -> its parameters and states; None: all."""
    found: defaultdict[int | None, list[str]] = defaultdict(list)
    for value in (*plan.graph.params, *plan.graph.states):
        for stage in (None, *_pipeline(plan).param_stages.get(value, ())):
            found[stage].append(plan.graph.values[value].path)
    return found


def _received(scope: FileContents, value: int, evaluation: EvalPass | None) -> str:
    plan = scope.plan
    whole, layout = plan.graph.values[value], plan.produced[value]
    arguments = [literal(whole.type.dtype), literal(whole.type.shape)]
    arguments.extend(cut_arguments(whole.type, layout, plan))
    if whole.gradient:
        arguments.append("gradient=True")
    if evaluation is not None and value not in evaluated_values(scope, evaluation):
        arguments.append("evaluate=False")
    return call_text("rt.Received", arguments, 3)


def schedule_text(plan: Plan) -> str:
    """`schedule = rt.Schedule(...)`: per coordinate its actions, broken over lines."""
    pipeline = _pipeline(plan)
    rows = [" ".join(repeats(row)) for row in pipeline.actions]
    said = "0F2 is stage 0, forward, microbatch 2; X*3 is X three times, each one microbatch further"
    coordinates = f"axis={literal(pipeline.axis)}, coordinates={literal(pipeline.coordinates)},"
    body = (
        "\n    ".join(textwrap.wrap(coordinates, WIDTH - 8, break_long_words=False, break_on_hyphens=False)) + "\n"
        f"actions={list_text([_row(row) for row in rows])},"
    )
    return f"{comment(f'{pipeline.schedule}: {said}')}\nschedule = rt.Schedule(\n{indented(body)}\n)"


def _row(row: str) -> str:
    """A string, or several one below the other that Python joins."""
    room = WIDTH - 16
    if len(row) <= room:
        return literal(row)
    lines, line = [], ""
    for word in row.split(" "):
        if len(line) + len(word) + 1 > room:
            lines.append(line)
            line = ""
        line += f"{word} "
    parts = "\n".join(literal(text) for text in [*lines, line.rstrip()])
    return f"(\n{indented(parts)}\n)"


def _pipeline(plan: Plan) -> Pipeline:
    if plan.pipeline is None:
        raise InternalError("a plan without stages has no stages to emit")
    return plan.pipeline
