"""Files and what their names mean: imports, dims, models and functions of a file.

Turns files into scopes; parses what they import, reports unknown imports and cycles. Members of
models are left to `instantiate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial

from shardlang.check.constants import size
from shardlang.check.context import Context, Frame
from shardlang.check.declared import TEXTS, WORDS, called
from shardlang.check.files.arrows import require_read
from shardlang.check.files.operators import declare_operator
from shardlang.check.files.own import declare_own
from shardlang.check.values import UNKNOWN, DimValue, FileScope, FunctionDecl, HardwareDecl, ModelDecl, Numbering
from shardlang.frozen.records import dataclass
from shardlang.hints.nearest import nearest, offer
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from shardlang.types.dim import Dim

LIBRARIES = ("std.nn", "std.recurrent", "std.transformer", "std.gpt2", "std.llama", "std.clusters")


@dataclass
class Library:
    """All files of a program. `chain`: the files being read, with the span of each `use`. `files`:
    their trees."""

    context: Context
    overrides: Mapping[str, ast.Expr] = field(default_factory=dict)
    scopes: dict[str, FileScope] = field(default_factory=dict)
    chain: list[str] = field(default_factory=list)
    files: list[ast.File] = field(default_factory=list)

    def open(self, file: ast.File) -> FileScope:
        """The scope of a file, with its imports. `declare_dims` evaluates the dims later."""
        dims = [entry.name for item in file.items if isinstance(item, ast.DimDecl) for entry in item.entries]
        scope = FileScope(file.source, below={name.text: name.span for name in dims})
        self.scopes[file.source.name] = scope
        self.chain.append(file.source.name)
        self.files.append(file)
        require_read(file, self.context.sink)
        for item in file.items:
            self._item(item, scope)
        self.chain.pop()
        return scope

    def _item(self, item: ast.Item, scope: FileScope) -> None:
        context = self.context
        match item:
            case ast.Use():
                self._use(item, scope)
            case ast.Model():
                scope.declare(item.name, ModelDecl(item, scope), self.context.sink)
            case ast.Function():
                scope.declare(item.name, FunctionDecl(item, scope), self.context.sink)
            case ast.Operator():
                found = declare_operator(item, Frame(context, scope), self.chain[0])
                scope.declare(item.name, found, self.context.sink)
            case ast.OwnSource() | ast.OwnSchedule() | ast.OwnOptimizer():
                scope.declare(item.name, declare_own(item, Frame(context, scope), self.chain[0]), self.context.sink)
            case ast.Hardware():
                scope.declare(item.name, HardwareDecl(item, scope), self.context.sink)
            case ast.DimDecl():
                declare_dims(item, scope, context, self.overrides if len(self.chain) == 1 else {})
            case ast.Strategy() | ast.Train():
                pass

    def _use(self, use: ast.Use, scope: FileScope) -> None:
        other = self._imported(use, scope)
        for name in use.names:
            value = UNKNOWN if other is None else other.names.get(name.text)
            if value is None and other is not None:
                fact = f"`{use.path}` has no `{name.text}`"
                self.context.sink.report("SH202", fact, name.span, "not there", help=partial(_nearest, name, other))
                # Further down the name may be written as it was meant.
                scope.names.setdefault(nearest(name.text, other.names) or name.text, UNKNOWN)
                value = UNKNOWN
            scope.declare(name, value, self.context.sink)

    def _imported(self, use: ast.Use, scope: FileScope) -> FileScope | None:
        sink = self.context.sink
        what, help = ("file", "") if use.file else ("library", offer(use.path, LIBRARIES))
        source = Frame(self.context, scope).load(use.path, use.file, f"{what} `{use.path}`", use.path_span, help)
        if source is None:
            return None
        if source.name in self.chain:
            if source.name == scope.source.name:
                scope.own.update(name.text for name in use.names)
            names = [*self.chain[self.chain.index(source.name) :], source.name]
            help = "leave the line out: a file's own names need no import"
            help = "move what both need into a third file" if len(names) > 2 else help
            fact = f"imports form a circle: {' -> '.join(f'`{n}`' for n in names)}"
            sink.report("SH204", fact, use.path_span, "closes the circle", help=help)
            return None
        known = self.scopes.get(source.name)
        return known if known is not None else self.open(parse(source, sink))


def _nearest(name: ast.Name, other: FileScope) -> str:
    """Help for a name that an imported file has not."""
    listed = ", ".join(f"`{n}`" for n in other.names) or "no names"
    return offer(name.text, other.names, f"it has {listed}")


def declare_dims(node: ast.DimDecl, scope: FileScope, context: Context, overrides: Mapping[str, ast.Expr]) -> None:
    """`dim a = 1, b = 2 * a` of a file: always new dims."""
    for entry in node.entries:
        name = entry.name.text
        expression = overrides.get(name, entry.value)
        value = Frame(context, scope).evaluate(expression)
        numbers = called(entry.value) if called(entry.value) in (*WORDS, *TEXTS) else ""
        if expression is not entry.value and numbers and not isinstance(value, Numbering):
            what, example = ("words", "categories") if numbers in WORDS else ("texts", "words")
            fact = f"`{name}` numbers {what}, and `--set` gives it `{expression.span.text}`"
            help = f"say which: `--set '{name}={example}(most = 100)'`"
            context.sink.report("SH224", fact, None, help=help)
            value = UNKNOWN
        length = value.count if isinstance(value, Numbering) else None
        if length is None:
            length = size(value, expression.span, context.sink, f"the size of dim `{name}`")
        dim = Dim(name, length, entry.name.span)
        if isinstance(value, Numbering):
            context.words[dim] = value
        scope.declare(entry.name, DimValue((dim,)), context.sink)
