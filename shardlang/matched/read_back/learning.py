"""The body of a function -> its statements that a gradient comes back to: the results that a call
learns from read them, by way of numbers that have gradients.

The metrics that `forward` returns in a dict have none."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from shardlang.matched.read_back.text import File, Wanted, is_detached, is_runtime
from shardlang.records import dataclass

# What calls the function that it is given first.
_CALLING = frozenset({"recompute", "saved_on_host"})


@dataclass
class Learning:
    """wanted: of each result whether a gradient comes back to it; () for all. needed: names whose
    values get a gradient, if they can have one. found: ids of assignments, and the same of their
    targets. functions: those within this one."""

    file: File
    wanted: Wanted = ()
    needed: set[str] = field(default_factory=set)
    found: dict[int, Wanted] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)

    def back(self, body: Sequence[ast.stmt]) -> None:
        """Goes through statements from the last to the first."""
        self.functions |= {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        for node in reversed(body):
            match node:
                case ast.Return(value=value) if value is not None:
                    self._read(*self._results(value))
                case ast.Assign(targets=[target], value=value):
                    wanted = self._wanted(target)
                    if True in wanted and self._floating(node):
                        self.found[id(node)] = wanted
                        self._read(*self._given(value, wanted))
                case ast.For():
                    for _ in range(2):  # a layer reads what the one before it gives
                        self.back(node.body)
                case ast.With():
                    self.back(node.body)

    def _wanted(self, target: ast.expr) -> Wanted:
        """Whether a gradient comes back to each of the targets."""
        if isinstance(target, ast.Name):
            return (target.id in self.needed,)
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        return tuple([not self.needed.isdisjoint(_names(part)) for part in parts])

    def _results(self, value: ast.expr) -> list[ast.expr]:
        """The parts of what is returned that a gradient comes back to."""
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        wanted = self.wanted if len(self.wanted) == len(parts) else (True,) * len(parts)
        return [part for part, needed in zip(parts, wanted, strict=True) if needed and not isinstance(part, ast.Dict)]

    def _given(self, value: ast.expr, wanted: Wanted) -> Iterable[ast.expr]:
        """The parts of an expression that a gradient may come back to: of what a function of the
        file, or within this one, is given, what it reads a gradient of."""
        if not isinstance(value, ast.Call):
            return (value,)
        name, *given = value.args if is_runtime(value.func) in _CALLING else [value.func, *value.args]
        known = self._function(name)
        if known is None:
            return (value,)
        needed = learned(self.file, known, () if all(wanted) else wanted).needed
        if known.name in self.functions:  # it may read what is around it
            self._need(needed.difference([formal.arg for formal in known.args.args]))
        return [each for each, formal in zip(given, known.args.args, strict=False) if formal.arg in needed]

    def _function(self, name: ast.expr) -> ast.FunctionDef | None:
        found = name.id if isinstance(name, ast.Name) else ""
        return self.functions.get(found) or self.file.functions.get(found)

    def _floating(self, node: ast.Assign) -> bool:
        """Whether a result is of a type that has gradients; one that has no comment may be."""
        types = self.file.told(node)
        return not types or any([type.floating for type in types])

    def _read(self, *parts: ast.expr) -> None:
        for part in parts:
            self._need(_names(part))

    def _need(self, names: set[str]) -> None:
        self.needed |= names
        for name in names.intersection(self.functions) if self.functions else ():
            self.needed |= _names(self.functions[name])


def _names(node: ast.AST) -> set[str]:
    """The names that a node reads or binds, but for those of which it reads no gradient."""
    found, waiting = set[str](), [node]
    while waiting:
        at = waiting.pop()
        match at:
            case ast.Name():
                found.add(at.id)
            case ast.Attribute():
                waiting.append(at.value)
            case ast.Constant():
                pass
            case ast.BinOp():
                waiting += at.left, at.right
            case ast.Call():
                if not is_detached(at):
                    waiting += at.func, *at.args, *at.keywords
            case _:
                waiting += ast.iter_child_nodes(at)
    return found


def learning(file: File, node: ast.FunctionDef, wanted: Wanted) -> Mapping[int, Wanted]:
    """The ids of the assignments of a function that a gradient comes back to, in a call that learns
    from the results `wanted`, and to which of their targets."""
    return learned(file, node, wanted).found


def learned(file: File, node: ast.FunctionDef, wanted: Wanted) -> Learning:
    """The statements of a function, and its names, that a gradient comes back to."""
    key = id(node), wanted
    found: Learning | None = file.learning.get(key)
    if found is None:
        found = file.learning[key] = Learning(file, wanted)
        found.back(node.body)
    return found
