"""A piece of a trace -> the Python function that computes it, and that function itself.

Numbers with a fraction are settings, so that layers that differ in these alone share a function."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardlang.importing.bodies.body import free
from shardlang.importing.bodies.shapes import alike
from shardlang.importing.opaque.pieces import OpaquePiece, is_fixed
from shardlang.importing.steps.nodes import CONST, PARAM, STATE, Node
from shardlang.importing.steps.unfold import is_number
from shardlang.ops.python_text import comment, literal

_OPERANDS = ("x", "y", "z")
# What a step may read of a constant, in numbers.
_LARGEST = 64
# Steps that take the sizes of what they give.
_VIEWS = ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.expand")
# What a tensor that is made of numbers goes through.
_COPIES = ("aten.lift_fresh_copy", "aten.detach", "aten.alias", "aten.clone")
_LEFT_OUT = ("layout", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad")
HEAD = "import torch\n\naten = torch.ops.aten\n"


class Unwritten(Exception):
    """Why a piece cannot be a function."""


@dataclass
class PythonFunction:
    """operands: names. settings: of numbers with a fraction, by name. lines: of the body, comments
    among them. steps: how many calls there are."""

    operands: list[str]
    settings: dict[str, float]
    lines: list[str]
    steps: int

    @property
    def code(self) -> tuple[str, ...]:
        """All that it computes; it is equal for two functions that are one."""
        return (*self.operands, *self.settings, *(line for line in self.lines if not line.startswith("#")))

    def text(self, name: str) -> str:
        """The function under a name, without the head of its file."""
        inside = "".join(f"    {line}\n" for line in self.lines)
        return f"def {name}({', '.join([*self.operands, *self.settings])}):\n{inside}"

    def loaded(self) -> Callable[..., Any]:
        """The function itself."""
        names: dict[str, Any] = {}
        exec(compile(f"{HEAD}\n{self.text('piece')}", "<piece>", "exec"), names)
        found: Callable[..., Any] = names["piece"]
        return found


def written(piece: OpaquePiece, stretched: bool) -> PythonFunction:
    """The function of a piece. stretched: a constant of one number is that number, whatever its
    shape, and operators stretch it. Unwritten."""
    return _Writer(piece, stretched).function()


def said(piece: OpaquePiece) -> list[Node]:
    """The steps that are written down: copies of constants are not."""
    return [node for node in piece.steps if not (node.op in _COPIES and is_fixed(node))]


@dataclass
class _Writer:
    piece: OpaquePiece
    stretched: bool
    names: dict[Node, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: {"torch", "aten"})
    settings: dict[str, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def function(self) -> PythonFunction:
        plain = iter(_OPERANDS)
        for node in self.piece.operands:
            own = node.op in (PARAM, STATE)
            self.names[node] = self._free(node.name.rpartition(".")[2] if own else next(plain, "x"))
        operands, place = list(self.names.values()), ("", "")
        *before, last = said(self.piece)
        for node in self.piece.steps:
            if node not in (*before, last):
                self.names[node] = self._argument(node.args[0], "")
                continue
            if (node.place, node.code) != place and node.code:
                self.lines.append(comment(f"{node.place}: {node.code}", 96))
                place = (node.place, node.code)
            text = self._call(node)
            if node is last:
                self.lines.append(f"return {text}")
            else:
                self.names[node] = self._free(node.op.removeprefix("aten.").strip("_"))
                self.lines.append(f"{self.names[node]} = {text}")
        return PythonFunction(operands, self.settings, self.lines, len(before) + 1)

    def _free(self, wanted: str) -> str:
        name = "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted) or "x"
        name = f"{name}_" if keyword.iskeyword(name) or not name.isidentifier() else name
        return free(name, self.taken)

    def _call(self, node: Node) -> str:
        if node.op == "item":
            return f"{self.names[node.args[0]]}[{int(node.args[1])}]"
        schema = _schema(node)
        if node.op in _VIEWS and isinstance(node.args[1], list | tuple):
            given = [self.names[node.args[0]], self._sizes(node)]
        else:
            given = [self._argument(each, schema[at] if at < len(schema) else "number")
                     for at, each in enumerate(node.args)]  # fmt: skip
        given += [f"{key}={self._named(key, each)}" for key, each in node.kwargs.items() if key not in _LEFT_OUT]
        return f"{node.op}({', '.join(given)})"

    def _named(self, key: str, value: Any) -> str:
        if key == "device":
            return f"{next(iter(self.names.values()))}.device"
        return self._argument(value, key)

    def _argument(self, value: Any, role: str) -> str:
        if isinstance(value, Node):
            return self.names[value] if value in self.names else self._constant(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._argument(each, role) for each in value)}]"
        if isinstance(value, torch.dtype):
            return self._dtype(value)
        if isinstance(value, float) and math.isfinite(value):
            return self._setting(value, role)
        if isinstance(value, float):
            return f'float("{value}")'
        if value is None or isinstance(value, bool | int | str):
            return literal(value)
        raise Unwritten(f"an argument that is {type(value).__name__}")

    def _setting(self, value: float, role: str) -> str:
        name = next((name for name, other in self.settings.items() if other == value and name == role), "")
        if not name:
            name = self._free(role)
            self.settings[name] = value
        return name

    def _dtype(self, dtype: torch.dtype) -> str:
        """A floating type is that of the first operand which has one: a run may have another."""
        first = next((node for node in self.piece.operands if node.dtype.is_floating_point), None)
        if dtype.is_floating_point and first is not None:
            return f"{self.names[first]}.dtype"
        return str(dtype)

    def _constant(self, node: Node) -> str:
        alone = node.op == CONST and self.stretched and is_number(node)
        if node.op != CONST or (node.value.numel() > _LARGEST and not alone) or node.value.is_complex():
            raise Unwritten(f"a constant of {list(node.shape)}")
        if not self.piece.operands:
            raise Unwritten("a step that reads no tensor")
        numbers = node.value.flatten()[0].item() if alone else node.value.tolist()
        first = self.names[self.piece.operands[0]]
        return f"torch.tensor({_numbers(numbers)}, dtype={self._dtype(node.value.dtype)}, device={first}.device)"

    def _sizes(self, node: Node) -> str:
        """The sizes of a view: those of what it is a view of, as far as they are the same from the
        left and from the right; one between is what is left."""
        source, sizes = node.args[0], [int(each) for each in node.args[1]]
        name, there = self.names[source], list(source.shape)
        if node.op == "aten.expand":
            short = len(sizes) - len(there)
            return _listed("-1" if at >= short and each in (-1, there[at - short]) else str(each)
                           for at, each in enumerate(sizes))  # fmt: skip
        sizes = [node.shape[at] if each == -1 else each for at, each in enumerate(sizes)]
        left = alike(sizes, there)
        right = alike(sizes[left:][::-1], there[left:][::-1])
        texts = [f"{name}.shape[{at}]" for at in range(left)]
        middle = sizes[left : len(sizes) - right]
        # Of a dim that is cut, the first part may be of any size; of several that are joined, all.
        texts += ["-1", *map(str, middle[1:])] if middle else []
        texts += [f"{name}.shape[{at}]" for at in range(-right, 0)]
        return _listed(texts)


def _listed(texts: Any) -> str:
    return f"[{', '.join(texts)}]"


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return _listed(map(_numbers, value))
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _schema(node: Node) -> list[str]:
    """The names of the arguments of a call."""
    found: Sequence[Any] = torch._C._jit_get_schemas_for_operator(node.op.replace("aten.", "aten::", 1))
    given = [schema for schema in found if len(schema.arguments) >= len(node.args)]
    return [argument.name for argument in given[0].arguments] if given else []
