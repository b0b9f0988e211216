"""A plan with pipeline stages -> a file for each stage, and what main.py says of them: stages, schedule.

Each stage's file has the functions that a program without stages has in main.py; scope.py says what is in which.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.evaluate import evaluated_values
from shardlang.emit.evaluation import Evaluation
from shardlang.emit.header import cut_arguments, place_text
from shardlang.emit.once import once_names
from shardlang.emit.scope import Scope
from shardlang.emit.text.lines import WIDTH, call_text, indented, list_text
from shardlang.plan.plan import Pipeline, Plan
from shardlang.python_text import comment, docstring, literal


def stage_name(stage: int) -> str:
    """The module of a stage."""
    return f"stage{stage}"


def stage_docstring(plan: Plan, scope: Scope) -> str:
    """What a stage's file is."""
    pipeline = _pipeline(plan)
    count, at = len(pipeline.coordinates), pipeline.coordinates[scope.stage or 0]
    return docstring(
        f"Stage {scope.stage} (of {count}) of {place_text(plan)}.",
        f"Written by shardc from the program and its strategy. The ranks with {pipeline.axis} = {at} run this file on",
        "their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local",
        "type and how the whole of it lies on the mesh.",
    )


def stage_list(scopes: Sequence[Scope], evaluation: Evaluation | None) -> str:
    """`stages = [rt.Stage(...), ...]`."""
    return f"stages = {list_text([_stage(scope, evaluation) for scope in scopes])}"


def _stage(scope: Scope, evaluation: Evaluation | None) -> str:
    module, plan = stage_name(scope.stage or 0), scope.plan
    names = [literal(plan.graph.values[value].name) for value in scope.fields]
    functions = [f"{name}={module}.{name}" for name in once_names(scope.phases)]
    arguments = [f"{module}.forward"]
    if scope.received:
        arguments.append(f"receives={list_text([_received(scope, value, evaluation) for value in scope.received])}")
    if names:
        arguments.append(f"fields=({', '.join(names)}{',' if len(names) == 1 else ''})")
    if evaluation is not None:
        arguments.append(f"evaluate={module}.evaluate")
    if functions:
        arguments.append(", ".join(functions))
    return call_text("rt.Stage", arguments, 1) if not scope.received else _broken(arguments)


def _broken(arguments: Sequence[str]) -> str:
    body = "\n".join(f"{argument}," for argument in arguments)
    return f"rt.Stage(\n{indented(body)}\n)"


def _received(scope: Scope, value: int, evaluation: Evaluation | None) -> str:
    plan = scope.plan
    whole, layout = plan.graph.values[value], plan.produced[value]
    arguments = [literal(scope.names[value, -1]), literal(whole.type.dtype), literal(whole.type.shape)]
    arguments.extend(cut_arguments(whole.type, layout, plan))
    if whole.gradient:
        arguments.append("gradient=True")
    if evaluation is not None and value not in evaluated_values(scope, evaluation):
        arguments.append("evaluate=False")
    return call_text("rt.Received", arguments, 3)


def schedule_text(plan: Plan) -> str:
    """`schedule = rt.Schedule(...)`: per coordinate its actions, broken over lines."""
    pipeline = _pipeline(plan)
    rows = [" ".join(f"{a.stage}{a.kind}{a.microbatch}" for a in row) for row in pipeline.actions]
    body = (
        f"axis={literal(pipeline.axis)}, coordinates={literal(pipeline.coordinates)},  {comment(pipeline.schedule)}\n"
        f"actions={list_text([_row(row) for row in rows])},"
    )
    return f"schedule = rt.Schedule(\n{indented(body)}\n)"


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
