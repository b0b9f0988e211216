"""Emitted text -> what its names stand for, and the lines of its functions that communicate, in the
order in which Python comes to them.

Nothing is run: expressions are followed as trees, tensors with their types. A function of a layer
is read once for all layers that are declared alike."""

from __future__ import annotations

import ast
import sys
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import field, replace
from itertools import groupby, zip_longest
from typing import Any

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import Again, AxisGroup, Items, Line, Local, Repeated, Uneven
from shardlang.matched.read_back.text import File
from shardlang.matched.table import CONVERSIONS, EXCHANGES, HALVES, KEEPING, MEMBERS, SILENT, STATISTICS


class EmittedLayer(dict[str | int, Any]):
    """A layer, or an array of layers: what is below it by name or index, parameters and states as
    their `Local`. paths: of all of those. kind: the same of layers that are declared alike."""

    def __init__(self) -> None:
        super().__init__()
        self.paths, self.kind = list[str](), -1

    def put(self, path: Sequence[str | int], below: Any, declared: Sequence[str] = ()) -> None:
        """Takes in what is at a path below it, where these are declared."""
        layer, (*outer, last) = self, path
        for step in outer:
            if step not in layer:
                layer[step] = EmittedLayer()
            layer = layer[step]
            layer.paths += declared
        layer[last] = below


@dataclass(frozen=True, slots=True)
class EmittedMesh:
    """A mesh by its number, with the sizes of its axes."""

    number: int
    sizes: Mapping[str, int]

    def group(self, axes: str | tuple[str, ...]) -> AxisGroup:
        """The group over an axis, or over several."""
        return AxisGroup(self.number, (axes,) if isinstance(axes, str) else axes)


@dataclass(frozen=True, slots=True)
class MemberIndex:
    """`mesh.dp.index`."""

    group: AxisGroup


@dataclass(frozen=True, slots=True)
class Runtime:
    """`rt`, or what it has by this name."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class Made:
    """The result of a call of the runtime that is no conversion: a setting, or that of an
    operator."""

    name: str
    args: Sequence[Any]
    words: Mapping[str, Any]
    node: ast.Call

    def at(self, word: str) -> ast.expr:
        """The place of an argument; the call where it is not given."""
        return next((each.value for each in self.node.keywords if each.arg == word), self.node)


@dataclass(frozen=True, eq=False)
class Closure:
    """A function, and the names that it reads from around it."""

    file: File
    node: ast.FunctionDef
    around: MutableMapping[str, Any]


# The lines of a call, and what it gives.
Result = tuple[Items, Any]


@dataclass(frozen=True, eq=False)
class EmittedFiles:
    """The files of one program by name. read: the functions that were, by what they were given;
    kinds: of layers."""

    files: Mapping[str, File]
    meshes: list[EmittedMesh] = field(default_factory=list)
    read: dict[object, Result] = field(default_factory=dict)
    kinds: dict[object, int] = field(default_factory=dict)

    def file(self, name: str) -> File:
        """A file whose names are known."""
        file = self.files[name]
        if not file.names:
            file.names["rt"] = Runtime()
            CallFrame(self, file, file.names).run(file.tree.body)
        return file

    def degree(self, group: AxisGroup) -> int:
        """How many ranks a group has."""
        degree = 1
        for axis in group.axes:
            degree *= self.meshes[group.mesh].sizes[axis]
        return degree

    def called(self, function: Closure, given: Sequence[Any]) -> Result:
        """The lines of a call of a function, and what it gives."""
        key = id(function.node), *map(self.kind, given)
        if key not in self.read or function.around is not function.file.names:
            frame = CallFrame(self, function.file, ChainMap({}, function.around))
            frame.names.update((name, frame.value(sizes)) for name, sizes in function.file.sizes(function.node))
            frame.names.update(zip((a.arg for a in function.node.args.args), given, strict=False))
            frame.run(function.node.body)
            self.read[key] = tuple(frame.items), frame.returned
        return self.read[key]

    def kind(self, x: Any) -> object:
        """The same of what makes no difference to a function that is given it."""
        if not isinstance(x, EmittedLayer):
            return local_of(x)
        if x.kind < 0:
            below = tuple([(key, self.kind(each)) for key, each in x.items()])
            x.kind = self.kinds.setdefault(below, len(self.kinds))
        return x.kind


def local_of(x: Any) -> Local | None:
    """The type of a tensor, where it is known."""
    return x.made if isinstance(x, Line) else x if isinstance(x, Local) else None


@dataclass
class CallFrame:
    """A function, or the settings of a file, while it is read. returned: a value, or several."""

    texts: EmittedFiles
    file: File
    names: MutableMapping[str, Any]
    items: list[Line | Repeated | Again] = field(default_factory=list)
    returned: Any = ()

    def run(self, body: Iterable[ast.stmt]) -> None:
        """Reads statements in order."""
        for node in body:
            match node:
                case ast.Assign(targets=[target], value=value):
                    self._assign(node, target, value)
                case ast.For(target=ast.Name(id=name), iter=over):
                    self._loop(node, name, over)
                case ast.With():
                    self.run(node.body)
                case ast.FunctionDef():
                    self.names[node.name] = Closure(self.file, node, self.names)
                case ast.Return(value=value):
                    self.returned = () if value is None else self.value(value)
                case ast.Expr(value=ast.Constant() | ast.Call(func=ast.Attribute(attr="within"))):
                    pass
                case ast.Import(names=names):
                    found = [name.name for name in names if name.name in self.texts.files]
                    self.names.update((name, self.texts.file(name).names) for name in found)
                case ast.ImportFrom(module=str() as module, names=names):
                    if module in self.texts.files:
                        there = self.texts.file(module).names
                        self.names.update((name.name, there.get(name.name)) for name in names)
                case ast.If() if self.names is self.file.names:
                    pass  # it runs the program
                case _:
                    raise InternalError(f"the emitted text has a statement that is not read: {ast.unparse(node)}")

    def _assign(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        found, told = self.value(value), self.file.told(node, self.names)
        if isinstance(found, Line) and told:
            found = self.items[-1] = replace(found, made=told[0])
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        each = found if isinstance(found, tuple) and len(targets) > 1 else (found,) * len(targets)
        for name, one, type in zip_longest(targets, each, told):
            known = local_of(one) if isinstance(value, ast.Call) else None
            if known is not None and type not in (None, known):  # a line that no plan has
                self.items.append(Line(ast.unparse(node), AxisGroup(0, ()), (), known, type, span=self.file.span(node)))
            if isinstance(name, ast.Name):
                self.names[name.id] = type if type is not None and not isinstance(one, EmittedLayer | Closure) else one

    def _loop(self, node: ast.For, name: str, over: ast.expr) -> None:
        array, part = over, range(sys.maxsize)
        if isinstance(over, ast.Subscript) and isinstance(over.slice, ast.Slice):
            first, end = over.slice.lower, over.slice.upper
            array, part = over.value, range(self.value(first) if first else 0, self.value(end) if end else sys.maxsize)
        found = self.value(array)
        if not isinstance(found, EmittedLayer):
            raise InternalError(f"the emitted text has a loop that is not over layers: {ast.unparse(over)}")
        # A stage has some layers of an array, by their index in the whole of it.
        layers = [layer for index, layer in found.items() if isinstance(index, int) and index in part]
        before, runs = len(self.items), list[Repeated]()
        for _, alike in groupby(layers, self.texts.kind):
            first_layer, *others = alike
            self.names[name] = first_layer
            self.run(node.body)
            lines, times = tuple(self.items[before:]), 1 + len(others)
            del self.items[before:]
            if runs and runs[-1].items == lines:
                times += runs.pop().times
            runs += [Repeated(times, lines)] if lines else []
        self.items += runs

    def value(self, node: ast.expr) -> Any:
        """The meaning of an expression, None where it is not known; its lines are added."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.names.get(name)
            case ast.Attribute(value=value, attr=name):
                return _attribute(self.value(value), name)
            case ast.Subscript(value=value, slice=index):
                return _part(self.value(value), self.value(index))
            case ast.Tuple(elts=parts):
                return tuple([self.value(part) for part in parts])
            case ast.List(elts=parts):
                return [self.value(part) for part in parts]
            case ast.Starred(value=value):
                return self.value(value)
            case ast.Dict(keys=keys, values=values):
                return {self.value(key): self.value(x) for key, x in zip(keys, values, strict=True) if key}
            case ast.Call():
                return self._call(node)
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self.value(part)
        return None

    def _call(self, node: ast.Call) -> Any:
        function, args = self.value(node.func), [self.value(each) for each in node.args]
        words = dict[str, Any]()
        for word in node.keywords:
            words |= self.value(word.value) if word.arg is None else {word.arg: self.value(word.value)}
        match function:
            case Closure():
                return self._called(function, args, again=False)
            case Runtime(name="recompute" | "saved_on_host" as name):
                return self._called(args[0], args[1:], again=name == "recompute")
            case Runtime(name=name) if name in CONVERSIONS:
                return self._converted(name, node, args, words)
            case Runtime(name=name) if name == KEEPING:
                span = self.file.span(node)
                self.items += [Line(KEEPING, AxisGroup(0, ()), given=local_of(x), span=span) for x in args[1:]]
            case Runtime(name="Mesh"):
                self.texts.meshes.append(EmittedMesh(len(self.texts.meshes), {k: _size(x) for k, x in words.items()}))
                return self.texts.meshes[-1]
            case Runtime(name=name):
                made = Made(name, args, words, node)
                if name not in SILENT and name != MEMBERS:  # the sums of members are of the call that gets them
                    self._exchanges(made)
                return made
            case _ if isinstance(members := words.get("group"), Made) and members.name == MEMBERS:
                self._exchanges(members)
        return None

    def _called(self, function: Any, given: Sequence[Any], again: bool) -> Any:
        if not isinstance(function, Closure):
            raise InternalError("the emitted text computes something again that is no function")
        items, returned = self.texts.called(function, given)
        self.items += ([Again(items)] if items else []) if again else items
        return returned

    def _converted(self, what: str, node: ast.Call, args: Sequence[Any], words: Mapping[str, Any]) -> Line:
        """A row of the conversion table: the operand, dims, then the group. Its result has the type
        that the comment of its statement tells of, else that of its operand."""
        given, rest = local_of(args[0]), args[1:]
        group = next((each for each in rest if isinstance(each, AxisGroup)), None)
        if group is None:
            raise InternalError(f"`{ast.unparse(node)}` of the emitted text has no group of ranks")
        dims = tuple([each for each in rest if each is not group])
        sizes = ("gather_sizes", "split_sizes") if what == "all_to_all" else ("sizes",)
        parts = tuple([words.get(name) for name in sizes]) if words and what != "permute" else ()
        line = Line(
            what, group, dims[0] if what == "permute" else dims, given, given, parts, span=self.file.span(node),
        )  # fmt: skip
        self.items.append(line)
        return line

    def _exchanges(self, made: Made) -> None:
        """Adds the lines of an operator of the runtime, over each group that it is given."""
        halved = made.name != "ring_attention" or "causal" in made.words
        exchanged = [what for what in EXCHANGES.get(made.name, (STATISTICS,)) if what != HALVES or halved]
        groups = {*_groups([*made.args, *made.words.values()])}
        span = self.file.span(made.node)
        within = sorted((what, group.axes, group.mesh) for what in exchanged for group in groups)
        self.items += [Line(what, AxisGroup(mesh, axes), span=span) for what, axes, mesh in within]


def _attribute(x: Any, name: str) -> Any:
    match x:
        case Runtime(name=""):
            return Runtime(name)
        case EmittedMesh():
            return x.group(name)
        case AxisGroup() if name == "index":
            return MemberIndex(x)
        case dict():
            return x.get(name)
    return None


def _part(x: Any, index: Any) -> Any:
    match x:
        case EmittedMesh():
            return x.group(index)
        case tuple():  # of local sizes
            return Uneven(x, index.group)
        case dict():
            return x.get(index)
    return None


def _size(x: Any) -> int:
    """The size of an axis; `rt.Time(4)` is one in time."""
    return int(x.args[0] if isinstance(x, Made) else x)


def _groups(given: Iterable[Any]) -> Iterator[AxisGroup]:
    """The groups of ranks among arguments, also in tuples."""
    for each in given:
        if isinstance(each, AxisGroup):
            yield each
        elif isinstance(each, tuple):
            yield from _groups(each)
