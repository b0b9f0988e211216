"""A plan -> the program that each rank runs: readable Python on plain torch and
`shardlang.runtime`.

The page that lists the parts of a file, in order. The same plan gives the same bytes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.emit.accumulators import EvalPass, evaluation
from shardlang.emit.evaluate import Evaluate, evaluate_of, evaluate_text, finish_text
from shardlang.emit.forward import Forward, forward_of, forward_text, named
from shardlang.emit.functions import BlockFunctions, Function
from shardlang.emit.header import docstring, imports, mesh_lines, own_files, parameter_lines, state_lines
from shardlang.emit.once import late_text, once_names, once_texts
from shardlang.emit.scope import FileContents, scopes
from shardlang.emit.settings import program_text
from shardlang.emit.stages import (
    LAYERS,
    MESH,
    layers_docstring,
    mesh_docstring,
    schedule_text,
    stage_docstring,
    stage_list,
    stage_name,
)
from shardlang.emit.text.sizes import Groups
from shardlang.frozen.records import dataclass
from shardlang.ops.code import Code
from shardlang.ops.python_text import emitted
from shardlang.paths.patterns import RUN, SingleLayers
from shardlang.plan.plan import Plan

MAIN = 'if __name__ == "__main__":\n    rt.main(program)\n'


def emit(plan: Plan, sink: Sink | None = None, folded: bool = True) -> Mapping[str, str]:
    """File name -> text. With a sink, what `eval` cannot do yet is reported there (SH400) and left
    out of the file. folded: a layer that is called several times is a function, else all is written
    out (tests hold the two to the same numbers).

    A plan of a program without `train` cannot run, and asking for it is our fault."""
    return files_of(emission(plan, sink, folded))


def files_of(made: Emission) -> Mapping[str, str]:
    """File name -> text."""
    plan = made.plan
    training, loss = plan.program.training, plan.graph.loss
    if training is None or loss is None:
        raise InternalError("a program without `train` has nothing to emit")
    written, evaluated, groups = made.written, made.evaluated, made.functions.groups
    scopes = [file.scope for file in written]
    final = [finish_text(plan, evaluated)] if evaluated is not None else []
    final += [late_text(training.late, plan.program.source)] if training.late is not None else []
    lists = f"{parameter_lines(plan, groups)}\n{state_lines(plan)}".rstrip()
    if plan.pipeline is None:
        program = program_text(plan, training, groups, evaluated, loss, tuple(once_names(scopes[0].phases)))
        texts = [*made.listed[0].values(), *written[0].texts]
        return {"main.py": _file(docstring(plan), plan, lists, [*texts, *final, program, MAIN])}
    modules, shared = made.modules, made.shared
    program = program_text(plan, training, groups, evaluated, loss)
    settings = "\n\n".join([stage_list(scopes, modules, evaluated), schedule_text(plan), program])
    imported = sorted(set(modules), key=modules.index)
    files = {"main.py": _file(docstring(plan), plan, lists, [*final, settings, MAIN], imported)}
    files[f"{MESH}.py"] = f"{mesh_docstring(plan)}\n\n{imports({'rt'})}\n\n{mesh_lines(plan)}\n"
    if shared:
        files[f"{LAYERS}.py"] = _file(layers_docstring(plan), plan, "", list(shared.values()))
    for at in sorted(set(made.first)):
        own = {function: text for function, text in made.listed[at].items() if function not in shared}
        called = written[at].called.union(each.name for function in own for each in function.calls)
        layers = sorted(function.name for function in made.listed[at] if function in shared and function.name in called)
        head = stage_docstring(plan, [stage for stage, first in enumerate(made.first) if first == at])
        files[f"{modules[at]}.py"] = _file(head, plan, "", [*own.values(), *written[at].texts], layers=layers)
    return files


@dataclass(frozen=True)
class WrittenFunctions:
    """The functions of a file, in order, and which functions of layers they call."""

    scope: FileContents
    texts: tuple[Code, ...]
    called: frozenset[str]


@dataclass(frozen=True)
class Emission:
    """A plan's functions as they are emitted, by file: main.py, or the stages in order."""

    plan: Plan
    functions: BlockFunctions
    forwards: tuple[Forward, ...]
    tests: tuple[Evaluate | None, ...]
    written: tuple[WrittenFunctions, ...]
    evaluated: EvalPass | None

    @property
    def modules(self) -> list[str]:
        """The module of each file; that of several stages has the name of the first."""
        return ["main"] if self.plan.pipeline is None else [stage_name(at) for at in self.first]

    @cached_property
    def listed(self) -> list[dict[Function, Code]]:
        """The functions of layers that each file needs."""
        return [self.functions.listed(file.called, file.scope.stage) for file in self.written]

    @cached_property
    def first(self) -> list[int]:
        """The number of the first file that has the same text, for each file."""
        places: dict[object, int] = {}
        each = zip(self.written, self.listed, strict=True)
        return [places.setdefault((file.texts, tuple(listed)), at) for at, (file, listed) in enumerate(each)]

    @cached_property
    def shared(self) -> dict[Function, Code]:
        """The functions that files of several texts call. Where two have one name the second
        stays in its files, with what calls it."""
        each = [self.listed[at] for at in sorted(set(self.first))]
        users = Counter(function for listed in each for function in listed)
        found: dict[str, Function] = {}
        for function in users:  # each after what it calls
            if users[function] > 1 and all(found.get(called.name) == called for called in function.calls):
                found.setdefault(function.name, function)
        return {f: text for listed in each for f, text in listed.items() if found.get(f.name) == f}


def emission(plan: Plan, sink: Sink | None = None, folded: bool = True) -> Emission:
    """The functions of `forward`, `evaluate` and what they call. sink, folded: as of `emit`."""
    training = plan.program.training
    groups = Groups(plan.meshes)
    evaluated = evaluation(plan, sink) if training is not None and training.eval is not None else None
    functions = BlockFunctions(plan, groups, folded)
    found = [
        (forward_of(scope, functions), evaluate_of(scope, evaluated, functions) if evaluated is not None else None)
        for scope in scopes(plan)
    ]
    # All calls are counted before the first function is written.
    parts = [(replace(forward, scope=named(forward, functions)), tested) for forward, tested in found]
    written = tuple(_written(part, groups) for part in parts)
    forwards, tests = (tuple(part) for part in zip(*parts, strict=True))
    return Emission(plan, functions, forwards, tests, written, evaluated)


def _written(parts: tuple[Forward, Evaluate | None], groups: Groups) -> WrittenFunctions:
    forward, tested = parts
    once = once_texts(forward.scope, groups)
    first = [once[name] for name in ("before_microbatch", "before_step") if name in once]
    last = [once["conclude"]] if "conclude" in once else []
    test = [evaluate_text(tested, groups)] if tested is not None else []
    called = frozenset({*forward.called, *(tested.body.called if tested is not None else ())})
    return WrittenFunctions(forward.scope, (*first, forward_text(forward, groups), *last, *test), called)


def _file(
    head: str, plan: Plan, lists: str, parts: Sequence[str], modules: Sequence[str] = (), layers: Sequence[str] = (),
) -> str:  # fmt: skip
    """A file; modules: those that it imports. layers: the functions of layers that several files
    share, and this one calls."""
    body = "\n\n".join(parts)
    uses = {node.id for node in ast.walk(ast.parse(f"{lists}\n{body}".encode())) if isinstance(node, ast.Name)}
    meshes = [mesh.name for mesh in plan.meshes if mesh.name in uses] if plan.pipeline is not None else []
    top = imports(uses, modules, {LAYERS: layers, MESH: meshes})
    own = own_files(plan) if "own" in uses else ""
    made = "\n".join(filter(None, ["" if plan.pipeline is not None else mesh_lines(plan), own]))
    text = emitted("\n\n".join(filter(None, [head, top, made, lists, f"\n{body}"])))
    if RUN.search(text) and plan.graph.in_runs:
        raise SingleLayers  # a line is of a layer of a run that is told once
    return text
