"""The `__init__` of a module -> which of its arguments the parts that it makes are given: `classes`
of `self.fc = nn.Linear(2 * width, classes)`, and twice its `width`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Times:
    """So many times an argument of the `__init__`."""

    name: str
    times: int = 1


# The arguments of a part.
Given = Mapping[str, Times]


def arguments(module: nn.Module) -> dict[str, Given]:
    """The arguments that the parts of a module are given, by the parts' paths in it: of those that
    one line alone makes."""
    made = _init(type(module))
    if made is None:
        return {}
    stored = {node.id for node in ast.walk(made) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = {each.arg for each in [*made.args.args[1:], *made.args.kwonlyargs]} - stored
    lines: dict[str, list[ast.expr]] = {}
    for node in ast.walk(made):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
        if own and isinstance(target, ast.Attribute) and isinstance(value, ast.expr):
            lines.setdefault(target.attr, []).append(value)
    return {path: _bound(part, call, known) for name, values in lines.items() if len(values) == 1
            for path, part, call in _parts(module, name, values[0])}  # fmt: skip


def _init(kind: type[nn.Module]) -> ast.FunctionDef | None:
    """The `__init__` of a class that is not torch's; None where its text is not there."""
    if kind.__module__.partition(".")[0] == "torch":
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.__init__)))
    except (OSError, TypeError, SyntaxError):
        return None
    made = tree.body[0] if tree.body else None
    return made if isinstance(made, ast.FunctionDef) else None


def _parts(module: nn.Module, path: str, value: ast.expr) -> Iterator[tuple[str, nn.Module, ast.Call]]:
    """The parts that an expression makes, those of a list or a Sequential each."""
    try:
        part = module.get_submodule(path)
    except AttributeError:
        return
    if not isinstance(value, ast.Call) or _called(value.func) != type(part).__name__:
        return
    if not isinstance(part, nn.Sequential | nn.ModuleList):
        yield path, part, value
        return
    inner = value.args[0] if len(value.args) == 1 else None
    if isinstance(inner, ast.ListComp | ast.GeneratorExp):
        each = [inner.elt] * len(part)
    else:
        each = inner.elts if isinstance(inner, ast.List | ast.Tuple) else value.args
    if len(each) == len(part):
        for at, one in enumerate(each):
            yield from _parts(module, f"{path}.{at}", one)


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _bound(part: nn.Module, call: ast.Call, known: set[str]) -> Given:
    """The arguments of a part's `__init__` that a call gives one of `known`."""
    names = list(inspect.signature(type(part).__init__).parameters)[1:]
    plain = [] if any(isinstance(each, ast.Starred) for each in call.args) else call.args
    given = [*zip(names, plain, strict=False), *((each.arg or "", each.value) for each in call.keywords)]
    found = {name: _times(value) for name, value in given}
    return {name: times for name, times in found.items() if times is not None and times.name in known}


def _times(value: ast.expr) -> Times | None:
    if isinstance(value, ast.Name):
        return Times(value.id)
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return None
    for name, times in ((value.left, value.right), (value.right, value.left)):
        if isinstance(name, ast.Name) and isinstance(times, ast.Constant) and type(times.value) is int:
            return Times(name.id, times.value)
    return None
