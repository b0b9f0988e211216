"""A file's tree -> a table of its names: each with its place, its role, and the place of its
declaration, which may be in an imported file.

It goes by what is written, in the order in which the checker looks names up, and needs no value.
Dims of an operand that the text around a call does not declare stay without a declaration."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from shardlang.check.context import Loader
from shardlang.check.declared import called
from shardlang.check.model.forward import UNUSED
from shardlang.check.train.data_sources import SOURCES
from shardlang.check.train.overrides import root_model
from shardlang.check.train.settings import SETTINGS
from shardlang.editor.words.scopes import (
    FileNames,
    NameDecl,
    NameRole,
    Names,
    NameScope,
    file_names,
    formal_decl,
    member_names,
    members,
    model_of,
)
from shardlang.editor.words.uses import NameUse, SelectorUse, Uses
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast


@dataclass(frozen=True, eq=False)
class NameTable:
    """uses: in the order of the text. places: what is visible in each item or body, outer ones
    first. root: the model of `train`."""

    source: Source
    file: FileNames
    uses: tuple[NameUse, ...]
    selectors: tuple[SelectorUse, ...]
    places: tuple[tuple[Span, NameScope], ...]
    root: NameDecl | None
    values: NameScope

    def at(self, offset: int) -> NameUse | None:
        """The name at an offset, or that ends there."""
        at = bisect_right(self.uses, offset, key=lambda use: use.span.start) - 1
        return self.uses[at] if at >= 0 and offset <= self.uses[at].span.end else None

    def scope(self, offset: int) -> NameScope:
        """All that is visible at an offset."""
        inner = [scope for span, scope in self.places if span.start <= offset <= span.end]
        return inner[-1] if inner else NameScope(now=self.file.names)


def names_of(tree: ast.File, load: Loader) -> NameTable:
    """The table of a tree, which may be partial. load: finds the texts of imports."""
    file = file_names(tree, load)
    walk = _Items(file)
    walk.read(tree)
    uses = tuple(sorted(walk.uses.found.values(), key=lambda use: use.span.start))
    return NameTable(
        tree.source, file, uses, tuple(walk.uses.selectors), places=tuple(walk.places), root=walk.uses.root,
        values=walk.uses.values,
    )  # fmt: skip


@dataclass
class _Items:
    """Goes through the items of a file. waiting: bodies, which are read once all members are known,
    with the scope that they stand in."""

    file: FileNames
    places: list[tuple[Span, NameScope]] = field(default_factory=list)
    waiting: list[tuple[ast.Forward, NameScope]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uses = Uses(self.file)
        self.outer = NameScope(now=self.file.names)

    def read(self, tree: ast.File) -> None:
        root = self.file.names.get(root_model(tree) or "")
        self.uses.root = root if root is not None and root.role is NameRole.MODEL else None
        self.uses.values = NameScope(self.outer)
        # `train` is read first: selectors of strategies name its values.
        for item in sorted(tree.items, key=lambda item: not isinstance(item, ast.Train)):
            self._item(item)

    def _inner(self, span: Span, outer: NameScope) -> NameScope:
        scope = NameScope(outer)
        self.places.append((span, scope))
        return scope

    def _own(self, name: ast.Name) -> NameDecl | None:
        """The declaration of an item of this file; of two of one name it is the first."""
        found = self.file.names.get(name.text)
        return found if found is not None and found.span.source is name.span.source else None

    def _item(self, item: ast.Item) -> None:
        uses, outer = self.uses, self.outer
        if isinstance(item, ast.Model | ast.Function | ast.Operator | ast.Own | ast.Hardware):
            found = self._own(item.name)
            uses.mark(item.name.span, found.role if found is not None else NameRole.VALUE, found)
        match item:
            case ast.Use():
                self._use(item)
            case ast.DimDecl():
                self._dims(item, outer, self.file.names)
            case ast.Model():
                self._model(item)
            case ast.Function():
                scope = self._inner(item.span, outer)
                self._formals(item.formals, scope, {})
                self._body(item.results, item.body, scope, {})
            case ast.Operator():
                self._operator(item)
            case ast.OwnSource() | ast.OwnSchedule() | ast.OwnOptimizer():
                self._own_item(item)
            case ast.Strategy():
                self._strategy(item)
            case ast.Train():
                self._train(item)
            case ast.Hardware():
                self._hardware(item)

    def _use(self, use: ast.Use) -> None:
        other = self.file.uses.get(use.path_span)
        start = Span(other.source, 0, 0) if other is not None else None
        self.uses.mark(use.path_span, NameRole.LIBRARY, start)
        for name in use.names:
            self.uses.name(name, self.outer, NameRole.VALUE)

    def _dims(self, node: ast.DimDecl, scope: NameScope, known: Mapping[str, NameDecl]) -> None:
        """known: the first declarations of these names."""
        for entry in node.entries:
            self.uses.expression(entry.value, scope)
            decl = known.get(entry.name.text) or self.file.declared(NameRole.DIM, entry.name, entry)
            self.uses.declare(decl, entry.name, scope)

    # --- models and functions ---

    def _formals(self, formals: Sequence[ast.Formal], scope: NameScope, known: Mapping[str, NameDecl]) -> None:
        for formal in formals:
            if isinstance(formal.kind, ast.TensorType):
                self.uses.type(formal.kind, scope, True)
            else:
                self.uses.mark(formal.kind.span, NameRole.TYPE)
            self.uses.expression(formal.default, scope)
        for formal in formals:
            decl = known.get(formal.name.text)
            decl = decl if decl is not None and isinstance(decl.node, ast.Formal) else formal_decl(formal, self.file)
            self.uses.declare(decl, formal.name, scope)

    def _model(self, model: ast.Model) -> None:
        scope = self._inner(model.span, self.outer)
        known = members(self.file.declared(NameRole.MODEL, model.name, model))
        scope.below = dict(known)
        self._formals(model.formals, scope, {})
        self._members(model.members, scope, known)
        for forward, inner in self.waiting:
            body = self._inner(forward.span, inner)
            self._formals(forward.formals, body, known)
            self._body(forward.results, forward.body, body, known)
        self.waiting.clear()

    def _members(self, nodes: Sequence[ast.Member], scope: NameScope, known: Mapping[str, NameDecl]) -> None:
        for member in nodes:
            match member:
                case ast.DimDecl():
                    self._dims(member, scope, known)
                case ast.Layer():
                    self.uses.expression(member.count, scope)
                    self.uses.expression(member.value, scope)
                    self._member(member, scope, known)
                case ast.Tensor():
                    self.uses.type(member.type, scope)
                    if isinstance(member.init, ast.Call):
                        self.uses.call(member.init, scope, member.keyword)
                    else:
                        self.uses.expression(member.init, scope)
                    self._member(member, scope, known)
                case ast.Forward():
                    self.waiting.append((member, scope))
                case ast.If():
                    self.uses.expression(member.condition, scope)
                    self._branches(member, scope, known)

    def _branches(self, node: ast.If, scope: NameScope, known: Mapping[str, NameDecl]) -> None:
        """A branch sees what the other declares only where it has nothing of that name itself."""
        inner = [NameScope(scope, dict(scope.now)) for _ in range(2)]
        for branch, nodes in zip(inner, (node.then, node.otherwise), strict=True):
            self._members(nodes, branch, known)
        scope.now.update({**inner[1].now, **inner[0].now})

    def _member(self, node: ast.Layer | ast.Tensor, scope: NameScope, known: Mapping[str, NameDecl]) -> None:
        ((name, own),) = member_names(node, self.file)
        first = known.get(name)
        same = first is not None and type(first.node) is type(node)
        self.uses.declare(first if same and first is not None else own, node.name, scope)

    def _body(
        self, results: Iterable[ast.TensorType], body: Iterable[ast.Assign | ast.Return], scope: NameScope,
        known: Mapping[str, NameDecl],
    ) -> None:  # fmt: skip
        for result in results:
            self.uses.type(result, scope)
        for statement in body:
            for value in (statement.value,) if isinstance(statement, ast.Assign) else statement.values:
                self.uses.expression(value, scope)
            for name in self._bound(statement) if isinstance(statement, ast.Assign) else ():
                first = known.get(name.text)
                first = first if first is not None and isinstance(first.node, ast.Assign) else None
                own = self.file.declared(NameRole.VALUE, name, statement)
                self.uses.declare(first or scope.now.get(name.text) or own, name, scope)

    def _bound(self, statement: ast.Assign | ast.Setting) -> list[ast.Name]:
        """The names that a statement gives its values; `_` among others gives none."""
        none = [name for name in statement.names if name.text == UNUSED and statement.others]
        self.uses.each(none, NameRole.WORD)
        return [name for name in statement.names if name not in none]

    # --- what is written in Python ---

    def _operator(self, node: ast.Operator) -> None:
        uses, scope = self.uses, self._inner(node.span, self.outer)
        for dims in (fact for fact in node.facts if isinstance(fact, ast.DimDecl)):
            scope.below.update(dict(member_names(dims, self.file)))
        self._formals(node.formals, scope, {})
        uses.type(node.result, scope)
        for fact in node.facts:
            match fact:
                case ast.DimDecl():
                    self._dims(fact, scope, {})
                case ast.Whole() | ast.Inside():
                    for name in fact.dims:
                        uses.name(name, scope, NameRole.DIM)
                case ast.Linear() | ast.Keeps():
                    for name in fact.operands if isinstance(fact, ast.Linear) else fact.names:
                        uses.name(name, scope, NameRole.WORD)
                case ast.Reduces():
                    uses.expression(fact.forward, scope)
                    uses.expression(fact.backward, scope)
                case ast.Flops():
                    uses.expression(fact.count, scope)
                case ast.Python():
                    uses.mark(fact.name.span, NameRole.FUNCTION)

    def _own_item(self, node: ast.Own) -> None:
        uses, scope = self.uses, self._inner(node.span, self.outer)
        self._formals(node.formals, scope, {})
        for each in node.fields if isinstance(node, ast.OwnSource) else ():
            uses.mark(each.name.span, NameRole.FIELD, each.name.span)
            uses.type(each.type, scope, True)
            uses.expression(each.bound, scope, NameRole.DIM)
        for fact in node.facts:
            match fact:
                case ast.Python():
                    uses.mark(fact.name.span, NameRole.FUNCTION)
                case ast.Needs():
                    uses.each(fact.words, NameRole.WORD)
                case ast.Remembers():
                    uses.mark(fact.name.span, NameRole.STATE, fact.name.span)
                    uses.mark(fact.like.span, NameRole.WORD)

    def _hardware(self, node: ast.Hardware) -> None:
        for setting in node.settings:
            self.uses.mark(setting.name.span, NameRole.SETTING)
            self.uses.expression(setting.value, self.outer)
        for level in node.levels:
            self.uses.mark(level.name.span, NameRole.LEVEL, level.name.span)
            self._hardware(level)

    # --- strategies ---

    def _strategy(self, node: ast.Strategy) -> None:
        self.uses.mark(node.name.span, NameRole.STRATEGY, node.name.span)
        self.uses.axes = NameScope()
        axes = [axis for rule in node.rules if isinstance(rule, ast.Mesh) for axis in rule.axes]
        for axis in axes:
            self.uses.axes.now.setdefault(axis.name.text, self.file.declared(NameRole.AXIS, axis.name, axis))
        scope = self._inner(node.span, self.outer)
        scope.now = self.uses.axes.now
        for rule in node.rules:
            self._rule(rule, scope)

    def _rule(self, rule: ast.Rule, scope: NameScope, owners: Sequence[NameDecl] = ()) -> None:
        """owners: what the selectors around the rule name."""
        uses = self.uses
        match rule:
            case ast.Mesh():
                for axis in rule.axes:
                    uses.axis((axis.name,))
                    uses.expression(axis.size, self.outer)
            case ast.Split():
                for path in rule.dims:
                    uses.dim_path(path.parts, self.outer)
                uses.axis(use.name for use in rule.axes)
                for size in rule.sizes or ():
                    uses.expression(size, scope)
            case ast.Pin():
                uses.type(rule.type, self._dims_of(owners))
            case ast.Stages():
                uses.axis((rule.axis,))
                uses.expression(rule.virtual, scope)
                for entry in rule.entries:
                    uses.expression(entry.stage, scope)
                    uses.select(entry.selectors)
            case ast.Microbatches() | ast.Chunks():
                uses.expression(rule.count, scope)
            case ast.At():
                owners = uses.select(rule.selectors)
                for inner in rule.rules:
                    self._rule(inner, scope, owners)
            case _:
                uses.words(rule)

    def _dims_of(self, owners: Iterable[NameDecl]) -> NameScope:
        """The dims that a pin may name: of the models that have what it pins, then of the root."""
        homes = [members(model) for owner in owners if (model := model_of(owner)) is not None]
        holders = [members(self.file.names[name]) for name in self.file.names if self._holds(name, owners)]
        root = members(self.uses.root) if self.uses.root is not None else {}
        found: Names = {}
        for names in (root, *homes, *holders):
            found.update({name: decl for name, decl in names.items() if decl.role is NameRole.DIM})
        return NameScope(self.outer, found)

    def _holds(self, name: str, owners: Iterable[NameDecl]) -> bool:
        decl = self.file.names[name]
        span = decl.node.span
        return decl.role is NameRole.MODEL and any(
            owner.span.source is span.source and span.start <= owner.span.start < span.end for owner in owners
        )

    # --- training ---

    def _train(self, node: ast.Train) -> None:
        scope = self.uses.values
        self.places.append((node.span, scope))
        scope.below = self._of_train(node)
        for setting in node.settings:
            self._setting(setting, scope)

    def _of_train(self, node: ast.Train) -> Names:
        """The names that `train` declares: fields, values, and the settings that are values too."""
        found: Names = {}
        for setting in node.settings:
            if setting.name.text == "data" and isinstance(setting.value, ast.Call):
                found.update(self._fields(setting.value))
            plain = not setting.keyword and not setting.at
            for name in setting.names if plain and (setting.others or setting.name.text not in SETTINGS) else ():
                found.setdefault(name.text, self.file.declared(NameRole.VALUE, name, setting))
            if plain and setting.name.text in ("model", "loss"):
                found.setdefault(setting.name.text, self.file.declared(NameRole.SETTING, setting.name, setting))
        return found

    def _fields(self, call: ast.Call) -> Names:
        """The fields of a source: written in its call, in its declaration, or the language's, which
        the call stands for."""
        own = self.file.names.get(called(call))
        written = own.node.fields if own is not None and isinstance(own.node, ast.OwnSource) else call.fields
        home = own.home if own is not None and isinstance(own.node, ast.OwnSource) else self.file
        known = SOURCES.get(called(call)) if own is None else None
        names = (known.fields or ()) if known is not None else ()
        found = {name: NameDecl(NameRole.FIELD, call.callee.span, call, self.file) for name in names}
        return {**found, **{f.name.text: home.declared(NameRole.FIELD, f.name, f) for f in written}}

    def _setting(self, setting: ast.Setting, scope: NameScope) -> None:
        uses, name = self.uses, setting.name.text
        uses.select(setting.at)
        language = setting.keyword == "freeze" or (name in SETTINGS and setting.keyword != "metric")
        if setting.keyword != "freeze":
            self._given(setting.value, name if language else "", scope)
        for each in self._bound(setting):
            if setting.keyword == "metric":
                uses.mark(each.span, NameRole.METRIC, each.span)
            elif language and not setting.others:
                uses.mark(each.span, NameRole.SETTING)
            else:
                uses.declare(
                    scope.below.get(each.text) or self.file.declared(NameRole.VALUE, each, setting), each, scope
                )
        if name == "data":
            scope.now.update({n: decl for n, decl in scope.below.items() if decl.role is NameRole.FIELD})

    def _given(self, value: ast.Expr, setting: str, scope: NameScope) -> None:
        """The value of a setting, or of a name, then `setting` is empty."""
        if isinstance(value, ast.Call):
            self.uses.call(value, scope, setting)
        else:
            self.uses.expression(value, scope, NameRole.WORD if setting else NameRole.VALUE)
