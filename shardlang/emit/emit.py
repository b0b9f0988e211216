"""A plan -> the program that each rank runs: readable Python on plain torch and `shardlang.runtime`.

The page that lists the parts of a file, in order. The same plan gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.emit.evaluate import evaluate_text, finish_text
from shardlang.emit.evaluation import evaluation
from shardlang.emit.forward import forward_text
from shardlang.emit.header import docstring, imports, mesh_lines, parameter_lines, state_lines
from shardlang.emit.names import form_names
from shardlang.emit.once import once_texts
from shardlang.emit.settings import program_text
from shardlang.emit.sizes import Groups
from shardlang.plan.plan import Plan

MAIN = 'if __name__ == "__main__":\n    rt.main(program)\n'


def emit(plan: Plan, sink: Sink | None = None) -> Mapping[str, str]:
    """File name -> text. With a sink, what `eval` cannot do yet is reported there (SH400) and left out of the file.

    A plan of a program without `train` cannot run, and asking for it is our fault.
    """
    training, loss = plan.program.training, plan.graph.loss
    if training is None or loss is None:
        raise InternalError("a program without `train` has nothing to emit")
    names, groups = form_names(plan), Groups(plan.meshes)
    evaluated = evaluation(plan, sink) if training.eval is not None else None
    once = once_texts(plan, names, groups)
    first = [once[name] for name in ("prepare", "prepared") if name in once]
    last = [once["conclude"]] if "conclude" in once else []
    functions = [*first, forward_text(plan, names, groups, loss), *last]
    if evaluated is not None:
        functions += [evaluate_text(plan, names, groups, evaluated), finish_text(plan, evaluated)]
    groups.note_text("\n".join(functions))
    lists = f"{parameter_lines(plan, groups)}\n{state_lines(plan)}\n"
    program = program_text(plan, training, groups, evaluated, loss, tuple(once))
    body = "\n\n".join([*functions, f"{program}\n\n{MAIN}"])
    head = f"{docstring(plan)}\n\n{imports(body)}\n\n{mesh_lines(plan)}\n\n{lists}"
    return {"main.py": f"{head}\n\n{body}"}
