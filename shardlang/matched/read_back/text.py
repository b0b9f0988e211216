"""Emitted files -> what each declares: meshes, parameters, functions, and what a name of another
file stands for.

Nothing is run: all is read from the tree of Python, types of values from the comments beside it."""

from __future__ import annotations

import ast
import bisect
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from operator import itemgetter
from typing import Any

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import AxisGroup, Local, Size, Uneven
from shardlang.paths.patterns import covered, expanded
from shardlang.sources.source import Source, Span
from shardlang.types.layout import chunk_sizes

# Where the path of something around a path ends.
_TYPE = re.compile(r"(\w+)\[([^\]]*)\]  ")


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter or state as the text declares it: its part on a rank, and its arguments by
    name."""

    local: Local
    given: Mapping[str, Any]
    node: ast.Call
    trained: bool

    @property
    def learns(self) -> bool:
        """Whether it is trained, and not frozen."""
        return self.trained and not self.given.get("frozen")


@dataclass(frozen=True)
class Places:
    """Paths of parameters and states, by the layers that they are in."""

    paths: Collection[str]

    @cached_property
    def _sorted(self) -> list[tuple[str, int]]:
        """The paths by name, each with its number."""
        return sorted(zip(self.paths, itertools.count(), strict=False))

    def within(self, place: str) -> list[str]:
        """Those in a layer or an array of layers, in order; "" is the model."""
        if not place:
            return list(self.paths)
        found = list[tuple[str, int]]()
        for sign in ".[":
            # What begins alike stands side by side.
            ends = (place + sign,), (place + chr(ord(sign) + 1),)
            first, last = (bisect.bisect_left(self._sorted, end) for end in ends)
            found += self._sorted[first:last]
        return [path for path, _ in sorted(found, key=itemgetter(1))]

    def layers(self, array: str) -> dict[str, list[str]]:
        """Those in each layer of an array, by the path of the layer."""
        found: dict[str, list[str]] = {}
        for path in self.within(array):
            found.setdefault(path[: path.index("]", len(array)) + 1], []).append(path)
        return found


@dataclass(frozen=True, slots=True)
class Told:
    """A type as a comment has it: sizes are numbers or names. numbers: the sizes, where all of them
    are numbers."""

    dtype: str
    sizes: tuple[str, ...]
    numbers: tuple[int, ...] | None

    def local(self, names: Mapping[str, Size]) -> Local:
        if self.numbers is not None:
            return Local(self.dtype, self.numbers)
        return Local(self.dtype, tuple([names[s] if s in names else int(s) for s in self.sizes]))


@dataclass(frozen=True, eq=False)
class File:
    """One emitted file: its name, text and tree. types: of comments that were read. told_of: of
    statements that were read, by id."""

    name: str
    text: str
    tree: ast.Module = field(compare=False)
    types: dict[str, list[Told]] = field(default_factory=dict)
    told_of: dict[int, list[Told]] = field(default_factory=dict)

    @cached_property
    def source(self) -> Source:
        return Source(self.name, self.text)

    @cached_property
    def rows(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def functions(self) -> Mapping[str, ast.FunctionDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """Name of a function -> the module that it is imported from."""
        found = (node for node in self.tree.body if isinstance(node, ast.ImportFrom))
        return {name.name: str(node.module) for node in found for name in node.names}

    def assigned(self, name: str) -> ast.expr | None:
        """The value that the file itself gives a name."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
                return node.value
        return None

    def span(self, node: ast.stmt | ast.expr) -> Span:
        """The line that a node begins on."""
        starts = self.source._starts
        start = starts[node.lineno - 1]
        line = self.rows[node.lineno - 1]
        return Span(self.source, start + len(line) - len(line.lstrip()), start + len(line))

    def comment(self, node: ast.stmt) -> str:
        """The comment behind a statement. (Python counts bytes.)"""
        last, end = self.rows[(node.end_lineno or 0) - 1], node.end_col_offset or 0
        behind = last[end:] if last.isascii() else last.encode()[end:].decode()
        return behind.strip().removeprefix("# ")

    def told(self, node: ast.stmt) -> list[Told]:
        """The types that a statement's comment tells of: `f32[8, 16]  [batch@a, hidden]; i64[]`."""
        if id(node) not in self.told_of:
            text = self.comment(node)
            if text not in self.types:
                matches = map(_TYPE.match, text.split("; "))
                self.types[text] = [_told(match[1], match[2]) for match in matches if match]
            self.told_of[id(node)] = self.types[text]
        return self.told_of[id(node)]


def _told(dtype: str, text: str) -> Told:
    sizes = tuple(filter(None, text.split(", ")))
    return Told(dtype, sizes, tuple(map(int, sizes)) if all(size.isdecimal() for size in sizes) else None)


@dataclass(frozen=True, eq=False)
class Emitted:
    """All files of a program. axes: mesh number -> axis -> its size, that of microbatches is the
    last of the first mesh."""

    files: Mapping[str, File]

    @cached_property
    def main(self) -> File:
        return self.files["main"]

    @cached_property
    def _meshes(self) -> Mapping[str, ast.Call]:
        """Name of a mesh -> the call that makes it; the files of stages import it."""
        found: dict[str, ast.Call] = {}
        for node in self.files.get("mesh", self.main).tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function) as call):
                    if is_runtime(function) == "Mesh":
                        found[name] = call
        return found

    @cached_property
    def meshes(self) -> Mapping[str, tuple[int, Mapping[str, int]]]:
        """Name of a mesh -> its number, and the sizes of its axes."""
        return {name: (number, dict(_axes(call))) for number, (name, call) in enumerate(self._meshes.items())}

    @cached_property
    def times(self) -> frozenset[str]:
        """The axes in time."""
        named = [word for call in self._meshes.values() for word in call.keywords]
        return frozenset(key for word in named for key, value in _pairs(word) if isinstance(value, ast.Call))

    def degree(self, group: AxisGroup) -> int:
        sizes = next(sizes for number, sizes in self.meshes.values() if number == group.mesh)
        found = 1
        for axis in group.axes:
            found *= sizes[axis]
        return found

    def group(self, node: ast.expr) -> AxisGroup:
        """`mesh.dp`, `mesh["dp", "cp"]`."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=axis) if name in self.meshes:
                return AxisGroup(self.meshes[name][0], (axis,))
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name in self.meshes:
                axes = ast.literal_eval(index)
                return AxisGroup(self.meshes[name][0], axes if isinstance(axes, tuple) else (axes,))
        raise InternalError(f"`{ast.unparse(node)}` of the emitted text is no group of ranks")

    def groups(self, node: ast.expr) -> list[AxisGroup]:
        """Those that an argument is: one, several in a tuple, or none."""
        match node:
            case ast.Tuple(elts=parts):
                return [group for part in parts for group in self.groups(part)]
            case ast.Attribute(value=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name)):
                return [self.group(node)] if name in self.meshes else []
        return []

    @cached_property
    def declared(self) -> Mapping[str, Variable]:
        """Path -> the parameter or state; those of equal layers are one."""
        found: dict[str, Variable] = {}
        for name in ("parameters", "states"):
            listed = self.main.assigned(name)
            for node in listed.elts if isinstance(listed, ast.List) else ():
                found.update(self._declared(node, [""]))
        return found

    @cached_property
    def places(self) -> Places:
        return Places(self.declared)

    def named(self, patterns: Sequence[str]) -> dict[str, None]:
        """The declared paths that patterns name, in order."""
        each = [path for pattern in patterns for path in expanded(pattern)]
        if any("*" in path for path in each):
            those = covered(patterns, self.declared)
            return dict.fromkeys(path for path in self.declared if path in those)
        named = ([path] if path in self.declared else self.places.within(path) for path in each)
        return dict.fromkeys(itertools.chain.from_iterable(named))

    @cached_property
    def double(self) -> bool:
        """Whether the run is in f64."""
        program = self.main.assigned("program")
        assert isinstance(program, ast.Call)
        return any(word.arg == "precision" and _literal(word.value) == "f64" for word in program.keywords)

    def wide(self, dtype: str) -> str:
        """The type of what is declared as `dtype`, in this run."""
        return "f64" if self.double and dtype == "f32" else dtype

    def _declared(self, node: ast.expr, layers: Sequence[str]) -> dict[str, Variable]:
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Call):
            first, *below = node.value.args
            inner = [f"{layer}{path}." for layer in layers for path in expanded(ast.literal_eval(first))]
            each = {x: one for tensor in below for x, one in self._declared(tensor, [""]).items()}
            return {f"{layer}{path}": one for layer in inner for path, one in each.items()}
        assert isinstance(node, ast.Call)
        path, shape, *_ = (ast.literal_eval(argument) for argument in node.args[:2])
        given = {str(word.arg): _literal(word.value) for word in node.keywords}
        dtype = self.wide(given.get("use") or given.get("dtype") or "f32")
        made = Variable(Local(dtype, self.cut(shape, given)), given, node, is_runtime(node.func) == "Parameter")
        return {f"{layer}{path}": made for layer in layers}

    def cut(self, shape: Sequence[int], given: Mapping[str, Any]) -> tuple[Size, ...]:
        """The local sizes of a whole shape, by the arguments `cut`, `sizes` and `mesh`."""
        mesh, found = self.meshes[given.get("mesh", "mesh")][0], list[Size]()
        for dim, size in enumerate(shape):
            axes = given.get("cut", {}).get(dim, ())
            group = AxisGroup(mesh, (axes,) if isinstance(axes, str) else axes)
            degree = self.degree(group)
            sizes = (given.get("sizes") or {}).get(dim)
            if sizes is None and size % degree:
                sizes = chunk_sizes(size, degree)
            found.append(size // degree if sizes is None or len(set(sizes)) == 1 else Uneven(tuple(sizes), group))
        return tuple(found)


def is_runtime(node: ast.expr) -> str:
    """`x` of `rt.x`; "" for what is not of the runtime."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or node.value.id != "rt":
        return ""
    return node.attr


def _literal(node: ast.expr) -> Any:
    """A literal, or the name of something."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _pairs(word: ast.keyword) -> list[tuple[str, ast.expr]]:
    """`dp=2`, or each of `**{"a b": 2}`."""
    if word.arg is not None:
        return [(word.arg, word.value)]
    assert isinstance(word.value, ast.Dict)
    keys = [ast.literal_eval(key) for key in word.value.keys if key is not None]
    return list(zip(keys, word.value.values, strict=True))


def _axes(call: ast.Call) -> list[tuple[str, int]]:
    found = []
    for key, value in (pair for word in call.keywords for pair in _pairs(word)):
        size = value.args[0] if isinstance(value, ast.Call) else value
        found.append((key, ast.literal_eval(size)))
    return found


def read(files: Mapping[str, str]) -> Emitted:
    """Emitted files, by name with ending."""
    return Emitted({
        name.removesuffix(".py"): File(name, text, ast.parse(text.encode())) for name, text in files.items()
    })  # fmt: skip


def parts_of(node: ast.expr) -> list[ast.expr]:
    """The expressions within one, in the order in which Python computes them."""
    if isinstance(node, ast.Call):
        own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*own, *node.args, *[word.value for word in node.keywords]]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
