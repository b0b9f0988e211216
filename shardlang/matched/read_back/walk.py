"""A function of the emitted text -> its lines that communicate, in the order in which Python comes
to them.

Names are followed from where they are bound, with their types. A function of a layer is read once
for all layers that are declared alike."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import groupby

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import Again, AxisGroup, Items, Line, Local, Repeated, Size, Uneven
from shardlang.matched.read_back.text import Emitted, File, Places, is_runtime, parts_of
from shardlang.matched.shapes import made_by
from shardlang.matched.table import CONVERSIONS, EXCHANGES, HALVES, KEEPING, MEMBERS, SILENT, STATISTICS


@dataclass(frozen=True, slots=True)
class LocalValue:
    """A tensor: its local type where it is known."""

    local: Local | None = None


@dataclass(frozen=True, slots=True)
class LayerRef:
    """A layer, or an array of layers, of the model: what is at `path`."""

    path: str


@dataclass(frozen=True, slots=True)
class Closure:
    """A function, and the names and local sizes that it reads from around it."""

    file: File
    node: ast.FunctionDef
    around: Mapping[str, Bound]
    sizes: Mapping[str, Size] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Returned:
    """Values by name, as a function returns them."""

    values: Mapping[str, Bound]


Bound = LocalValue | LayerRef | Closure | Returned
NOTHING = LocalValue()
# The lines of a call, and what it gives.
Result = tuple[Items, tuple[Bound, ...]]


@dataclass
class Reader:
    """Reads the functions of one program; `paths`: of the parameters and states that a stage has.
    read: what has been read, by function and what it was given."""

    text: Emitted
    paths: Mapping[str, None]
    read: dict[object, Result]
    alike: dict[str, object] = field(default_factory=dict)

    @cached_property
    def places(self) -> Places:
        return Places(self.paths)

    def called(self, function: Closure, given: Sequence[Bound]) -> Result:
        """The lines of a call."""
        key = id(function.node), *map(self._kind, given)
        if function.around or key not in self.read:
            made = CallFrame(self, function.file, dict(function.around), dict(function.sizes))
            made.define(function.node)
            made.bound.update(zip((a.arg for a in function.node.args.args), given, strict=False))
            made.run(function.node.body)
            self.read[key] = tuple(made.items), made.returned
        return self.read[key]

    def _kind(self, x: Bound) -> object:
        """The same of layers that are declared alike."""
        if not isinstance(x, LayerRef):
            return x if isinstance(x, LocalValue) else id(x)
        if x.path not in self.alike:
            self._declared({x.path: self.places.within(x.path)})
        return self.alike[x.path]

    def _declared(self, layers: Mapping[str, Sequence[str]]) -> None:
        for layer, paths in layers.items():
            self.alike[layer] = tuple([(path[len(layer) :], id(self.text.declared[path])) for path in paths])

    def layers(self, array: str) -> list[str]:
        """The layers of an array that have parameters or states here."""
        found = self.places.layers(array)
        self._declared(found)  # to look for the paths of each layer would take as long again
        return [*found]

    def at(self, path: str) -> Bound:
        """The meaning of `p.a.b`."""
        declared = self.text.declared.get(path)
        return LayerRef(path) if declared is None else LocalValue(declared.local)


@dataclass
class CallFrame:
    """One function while it is read. bound: what names stand for; sizes: by the names of local
    sizes."""

    reader: Reader
    file: File
    bound: dict[str, Bound]
    sizes: dict[str, Size] = field(default_factory=dict)
    items: list[Line | Repeated | Again] = field(default_factory=list)
    returned: tuple[Bound, ...] = ()

    def define(self, node: ast.FunctionDef) -> None:
        """Takes in the local sizes that comments of a function define, before or behind those that
        its text computes."""
        for row in self.file.rows[node.lineno : node.end_lineno]:
            if match := _SIZE.match(row):
                sizes: list[int] = []
                for size, _, count in (run.partition(" x ") for run in match[2].split(",") if run.strip()):
                    sizes += [int(size)] * int(count or 1)
                group = ast.parse(match[3], mode="eval").body
                self.sizes[match[1]] = Uneven(tuple(sizes), self.reader.text.group(group))

    def run(self, body: Sequence[ast.stmt]) -> None:
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
                    self.bound[node.name] = Closure(self.file, node, self.bound, self.sizes)
                case ast.Return(value=value):
                    self.returned = self._returned(value)
                case ast.Expr(value=ast.Constant() | ast.Call(func=ast.Attribute(attr="within"))):
                    pass
                case _:
                    raise InternalError(f"the emitted text has a statement that is not read: {ast.unparse(node)}")

    def _assign(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        names = [n.id for n in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(n, ast.Name)]
        size = self._size(value)
        if size is not None:
            self.sizes[names[0]] = size
            return
        types = [each.local(self.sizes) for each in self.file.told(node)]
        found = self._value(value)
        for at, name in enumerate(names):
            one = found[at] if at < len(found) else found[0]
            if isinstance(one, LocalValue) and at < len(types):
                self._told(types[at], one)
                one = LocalValue(types[at])
            self.bound[name] = one

    def _told(self, type: Local, value: LocalValue) -> None:
        """Takes the type that a comment tells of as the result of the line before it."""
        if self.items and isinstance(last := self.items[-1], Line) and last.made is value.local is not None:
            self.items[-1] = replace(last, made=type)

    def _size(self, value: ast.expr) -> Size | None:
        """`(3, 3, 2)[mesh.dp.index]`."""
        match value:
            case ast.Subscript(value=ast.Tuple() as sizes, slice=ast.Attribute(value=group, attr="index")):
                return Uneven(ast.literal_eval(sizes), self.reader.text.group(group))
        return None

    def _loop(self, node: ast.For, name: str, over: ast.expr) -> None:
        part = None
        if isinstance(over, ast.Subscript) and isinstance(over.slice, ast.Slice):
            first, end = over.slice.lower, over.slice.upper
            part = range(ast.literal_eval(first) if first else 0, ast.literal_eval(end) if end else sys.maxsize)
            over = over.value
        array = self._bound(over)
        if not isinstance(array, LayerRef):
            raise InternalError(f"the emitted text has a loop that is not over layers: {ast.unparse(over)}")
        every, before = self.reader.layers(array.path), len(self.items)
        # A stage has some layers of an array, by their index in the whole of it.
        layers = [path for path in every if part is None or int(path[len(array.path) + 1 : -1]) in part]
        found: list[Repeated] = []
        for _, alike in groupby(layers, lambda path: self.reader._kind(LayerRef(path))):
            paths = list(alike)
            self.bound[name] = LayerRef(paths[0])
            self.run(node.body)
            lines = tuple(self.items[before:])
            del self.items[before:]
            if found and found[-1].items == lines:
                paths += [""] * found.pop().times
            found += [Repeated(len(paths), lines)] if lines else []
        self.items += found

    def _returned(self, value: ast.expr | None) -> tuple[Bound, ...]:
        parts = value.elts if isinstance(value, ast.Tuple) else [] if value is None else [value]
        return tuple(found for part in parts for found in self._result(part))

    def _result(self, node: ast.expr) -> tuple[Bound, ...]:
        if not isinstance(node, ast.Dict):
            return self._value(node)
        values = [self._value(value)[0] for value in node.values]
        return (Returned({ast.literal_eval(key): x for key, x in zip(node.keys, values, strict=True) if key}),)

    def _value(self, node: ast.expr) -> tuple[Bound, ...]:
        """The values that an expression gives; its lines are added."""
        match node:
            case ast.Constant():
                return (NOTHING,)
            case ast.Name() | ast.Attribute() | ast.Subscript() if (found := self._bound(node)) is not None:
                return (found,)
            case ast.Call() if (made := self._given(node)) is not None:
                return made
        inner = [self._value(part)[0] for part in parts_of(node)]
        if isinstance(node, ast.Call):
            if (name := is_runtime(node.func)) and name not in SILENT:
                self._operator(name, node)
            if name == KEEPING:
                span, kept = self.file.span(node), inner[2:]  # behind `rt` and the result
                parts = [x.local if isinstance(x, LocalValue) else None for x in kept]
                self.items += [Line(KEEPING, AxisGroup(0, ()), given=x, span=span) for x in parts]
            for group in members(node):
                self._operator(is_runtime(group.func), group)
        return (NOTHING,)

    def _given(self, node: ast.Call) -> tuple[Bound, ...] | None:
        """The results of a call of a function of the program, or of the runtime for one or for a
        conversion; None of other calls."""
        if isinstance(node.func, ast.Name):
            function = self._function(node.func.id)
            return None if function is None else self._call(function, node.args)
        match is_runtime(node.func):
            case "":
                return None
            case "saved_on_host" if node.args:
                return self._value(ast.Call(node.args[0], node.args[1:], []))
            case "recompute":
                return self._again(node)
            case name if name == MEMBERS:
                return (NOTHING,)  # its sums are of the call that it is given to
            case name if name in CONVERSIONS:
                return (self._converted(name, node),)
        return None

    def _bound(self, node: ast.expr) -> Bound | None:
        """The meaning of a name, or of a path from one; None where it is no tensor and no layer."""
        match node:
            case ast.Name(id=name):
                return self.bound.get(name)
            case ast.Attribute(value=value, attr=attribute):
                outer = self._bound(value)
                return self._below(outer, f".{attribute}") if isinstance(outer, LayerRef) else None
            case ast.Subscript(value=value, slice=ast.Constant(value=int() | str() as index)):
                outer = self._bound(value)
                step = f"[{index}]" if isinstance(index, int) else f".{index}"
                return self._below(outer, step) if isinstance(outer, LayerRef) else None
        return None

    def _below(self, outer: LayerRef, step: str) -> Bound:
        return self.reader.at(f"{outer.path}{step}".removeprefix("."))

    def _function(self, name: str) -> Closure | None:
        bound = self.bound.get(name)
        if isinstance(bound, Closure):
            return bound
        file: File | None = self.file
        if name not in self.file.functions:
            file = self.reader.text.files.get(self.file.imported.get(name, ""))
        return Closure(file, file.functions[name], {}) if file is not None and name in file.functions else None

    def _call(self, function: Closure, given: Sequence[ast.expr]) -> tuple[Bound, ...]:
        items, made = self.reader.called(function, [self._value(x)[0] for x in given])
        self.items.extend(items)
        return made

    def _again(self, node: ast.Call) -> tuple[Bound, ...]:
        first, *given = node.args
        function = self._function(first.id) if isinstance(first, ast.Name) else None
        if function is None:
            raise InternalError(f"the emitted text computes something again that is no function: {ast.unparse(node)}")
        items, made = self.reader.called(function, [self._value(x)[0] for x in given])
        self.items += [Again(items)] if items else []
        return made

    def _converted(self, what: str, node: ast.Call) -> LocalValue:
        """A row of the conversion table: the operand, dims, then the group."""
        x, *rest = node.args
        operand = self._value(x)[0]
        assert isinstance(operand, LocalValue)
        named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
        groups = [at for at, one in enumerate(rest) if not _is_literal(one)]
        group = self.reader.text.group(rest[groups[0]])
        dims = tuple(ast.literal_eval(one) for at, one in enumerate(rest) if at != groups[0])
        if what == "permute":
            dims = dims[0]
        parts = tuple(named.get(name) for name in (_SIZES if what == "all_to_all" else ("sizes",)))
        line = Line(
            what, group, dims, operand.local, None, parts if any(parts) else (), span=self.file.span(node),
        )  # fmt: skip
        line = replace(line, made=made_by(line, self.reader.text.degree(group)))
        self.items.append(line)
        return LocalValue(line.made)

    def _operator(self, name: str, node: ast.Call) -> None:
        """An operator of the runtime: it communicates over the groups that it is given."""
        given = [*node.args, *[word.value for word in node.keywords]]
        halved = name != "ring_attention" or any(word.arg == "causal" for word in node.keywords)
        exchanges = [what for what in EXCHANGES.get(name, (STATISTICS,)) if what != HALVES or halved]
        within = {(what, group) for node in given for group in self.reader.text.groups(node) for what in exchanges}
        span = self.file.span(node)
        for what, group in sorted(within, key=_by_name):
            self.items.append(Line(what, group, span=span))


def _by_name(within: tuple[str, AxisGroup]) -> tuple[str, tuple[str, ...]]:
    return within[0], within[1].axes


_SIZE = re.compile(r"\s*# (\w+) = \((.*)\)\[(mesh.*)\.index\]$")
_SIZES = ("gather_sizes", "split_sizes")


def members(node: ast.Call) -> list[ast.Call]:
    """The group that a function of the user's gets to sum over, among the arguments of its call."""
    given = [word.value for word in node.keywords if word.arg == "group"] if not is_runtime(node.func) else []
    return [one for one in given if isinstance(one, ast.Call) and is_runtime(one.func) == MEMBERS]


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
