"""The body of a function -> its statements that a gradient comes back to: what it returns reads
them, by way of numbers that have gradients.

The metrics that `forward` returns in a dict have none."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import field

from shardlang.matched.read_back.text import File, is_detached
from shardlang.records import dataclass


@dataclass
class Learning:
    """needed: names whose values get a gradient, if they can have one. found: ids of nodes.
    functions: the names that a function within this one reads."""

    file: File
    needed: set[str] = field(default_factory=set)
    found: set[int] = field(default_factory=set)
    functions: dict[str, set[str]] = field(default_factory=dict)

    def back(self, body: Sequence[ast.stmt]) -> None:
        """Goes through statements from the last to the first."""
        for node in body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = _names(node)
        for node in reversed(body):
            match node:
                case ast.Return(value=value) if value is not None:
                    parts = value.elts if isinstance(value, ast.Tuple) else [value]
                    self._read(*(part for part in parts if not isinstance(part, ast.Dict)))
                case ast.Assign(targets=[target], value=value):
                    if not self.needed.isdisjoint(_names(target)) and self._floating(node):
                        self.found.add(id(node))
                        self._read(value)
                case ast.For():
                    for _ in range(2):  # a layer reads what the one before it gives
                        self.back(node.body)
                case ast.With():
                    self.back(node.body)

    def _floating(self, node: ast.Assign) -> bool:
        """Whether a result is of a type that has gradients; one that has no comment may be."""
        types = [type.dtype for type in self.file.told(node)]
        return not types or any(type[0] in "fb" and type != "bool" for type in types)

    def _read(self, *parts: ast.expr) -> None:
        for part in parts:
            for name in _names(part):
                self.needed.add(name)
                self.needed |= self.functions.get(name, set())


def _names(node: ast.AST) -> set[str]:
    """The names that a node reads or binds, but for those of which it reads no gradient."""
    found, waiting = set[str](), [node]
    while waiting:
        at = waiting.pop()
        if isinstance(at, ast.Name):
            found.add(at.id)
        elif not is_detached(at):
            waiting += ast.iter_child_nodes(at)
    return found


def learning(file: File, node: ast.FunctionDef) -> set[int]:
    """The ids of the assignments of a function that a gradient comes back to."""
    if id(node) not in file.learning:
        found = Learning(file, found=file.learning.setdefault(id(node), set()))
        found.back(node.body)
    return file.learning[id(node)]
