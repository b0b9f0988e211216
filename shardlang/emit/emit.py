"""A plan -> the program that each rank runs: readable Python on plain torch and `shardlang.runtime`.

The page that lists the parts of a file, in order. The same plan gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.emit.evaluate import evaluate_text, finish_text
from shardlang.emit.evaluation import Evaluation, evaluation
from shardlang.emit.forward import forward_text
from shardlang.emit.header import docstring, imports, mesh_lines, parameter_lines, state_lines
from shardlang.emit.once import once_names, once_texts
from shardlang.emit.scope import Scope, scopes
from shardlang.emit.settings import program_text
from shardlang.emit.stages import schedule_text, stage_docstring, stage_list, stage_name
from shardlang.emit.text.sizes import Groups
from shardlang.plan.plan import Plan
from shardlang.python_text import emitted

MAIN = 'if __name__ == "__main__":\n    rt.main(program)\n'


def emit(plan: Plan, sink: Sink | None = None) -> Mapping[str, str]:
    """File name -> text. With a sink, what `eval` cannot do yet is reported there (SH400) and left out of the file.

    A plan of a program without `train` cannot run, and asking for it is our fault.
    """
    training, loss = plan.program.training, plan.graph.loss
    if training is None or loss is None:
        raise InternalError("a program without `train` has nothing to emit")
    groups, parts = Groups(plan.meshes), scopes(plan)
    evaluated = evaluation(plan, sink) if training.eval is not None else None
    functions = [_functions(scope, groups, evaluated) for scope in parts]
    final = [finish_text(plan, evaluated)] if evaluated is not None else []
    groups.note_text("\n".join(text for texts in functions for text in texts))
    lists = f"{parameter_lines(plan, groups)}\n{state_lines(plan)}\n"
    if plan.pipeline is None:
        once = tuple(once_names(parts[0].phases))
        program = program_text(plan, training, groups, evaluated, loss, once)
        return {"main.py": _file(docstring(plan), plan, lists, [*functions[0], *final, program])}
    program = program_text(plan, training, groups, evaluated, loss)
    modules = [stage_name(scope.stage or 0) for scope in parts]
    made = "\n\n".join([stage_list(parts, evaluated), schedule_text(plan), program])
    files = {"main.py": _file(docstring(plan), plan, lists, [*final, made], modules)}
    for module, scope, texts in zip(modules, parts, functions, strict=True):
        files[f"{module}.py"] = _file(stage_docstring(plan, scope), plan, "", texts, None)
    return files


def _functions(scope: Scope, groups: Groups, evaluated: Evaluation | None) -> list[str]:
    """The functions of a file, in order."""
    once = once_texts(scope, groups)
    first = [once[name] for name in ("prepare", "prepared") if name in once]
    last = [once["conclude"]] if "conclude" in once else []
    test = [evaluate_text(scope, groups, evaluated)] if evaluated is not None else []
    return [*first, forward_text(scope, groups), *last, *test]


def _file(head: str, plan: Plan, lists: str, parts: Sequence[str], modules: Sequence[str] | None = ()) -> str:
    """A file; modules: those that it imports; None for a file that is itself imported."""
    body = "\n\n".join(parts)
    opening = f"{head}\n\n{imports(body, modules or ())}\n\n{mesh_lines(plan)}\n"
    body = f"{body}\n\n{MAIN}" if modules is not None else body
    return emitted(f"{opening}\n{lists}\n\n{body}" if lists else f"{opening}\n\n{body}")
