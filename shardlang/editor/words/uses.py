"""Expressions, types and selectors of a tree -> which name at which place is what.

Items and their scopes are `names`'; this goes through what stands in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from shardlang.check.declared import TEXTS, WORDS, DeclaredKind
from shardlang.check.model.initial import KINDS as STARTS
from shardlang.check.model.operators import is_operator
from shardlang.check.model.scan import SCAN
from shardlang.check.train.data_sources import SOURCES
from shardlang.check.train.late import FIGURES
from shardlang.check.train.optimizers import KINDS as OPTIMIZERS
from shardlang.check.train.settings import SCHEDULES
from shardlang.editor.words.scopes import FileNames, NameDecl, NameRole, Names, NameScope, formals_of, members, model_of
from shardlang.facts.dtypes import DTYPES
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import REGISTRY, Param
from shardlang.paths.patterns import matcher
from shardlang.sources.source import Span
from shardlang.syntax import ast

# What the language has to be called, by where it is called: a setting of `train`, or a tensor.
CALLED: Mapping[str, tuple[NameRole, Mapping[str, DeclaredKind]]] = {
    "optimizer": (NameRole.OPTIMIZER, OPTIMIZERS), "lr_schedule": (NameRole.SCHEDULE, SCHEDULES),
    "data": (NameRole.SOURCE, SOURCES), "eval": (NameRole.SOURCE, SOURCES), "param": (NameRole.START, STARTS),
    "state": (NameRole.START, STARTS),
}  # fmt: skip
# Roles of names that need no declaration.
OF_LANGUAGE = frozenset((
    NameRole.ARGUMENT, NameRole.SETTING, NameRole.WORD, NameRole.TYPE, NameRole.FIGURE, NameRole.LIBRARY,
    NameRole.OPERATOR, NameRole.SOURCE, NameRole.SCHEDULE, NameRole.OPTIMIZER, NameRole.START,
))  # fmt: skip
# Settings whose value is made of words of the language.
_WORDS = ("precision", "compile", "not_finite", "evaluate", "checkpoint", "log", "init")
TRAIN = "train"
_OPENED, _WORD = re.compile(r"(?:[(\s]|#[^\n]*)*"), re.compile(r"\w*")
_SCAN = DeclaredKind("A call of a layer for each place of a dim.", (Param("x", "tensors"), Param("over", "dim")))
OF_DIMS = ("dim", "dims", "newdim")
_BY_DIM = ("slices", "places", "pads")


@dataclass(frozen=True, slots=True)
class NameUse:
    """A name at a place. declared: the place of its declaration, itself for one; None where the
    language declares it, or nothing does."""

    span: Span
    role: NameRole
    declared: Span | None

    @property
    def declares(self) -> bool:
        return self.declared == self.span

    @property
    def missing(self) -> bool:
        """Whether it needs a declaration and has none."""
        language = self.role in OF_LANGUAGE or self.span.text in WORDS or self.span.text in TEXTS
        return self.declared is None and not language


@dataclass(frozen=True, slots=True)
class SelectorUse:
    """A selector. steps: the name of each part, and what the path up to it names, wherever that is
    declared."""

    span: Span
    steps: tuple[tuple[Span, tuple[NameDecl, ...]], ...]


@dataclass
class Uses:
    """All that was found so far of a file. root: the model of `train`; values: what `train`
    declares. axes: those of the strategy that is being read."""

    file: FileNames
    root: NameDecl | None = None
    values: NameScope = field(default_factory=NameScope)
    axes: NameScope = field(default_factory=NameScope)
    found: dict[int, NameUse] = field(default_factory=dict)
    selectors: list[SelectorUse] = field(default_factory=list)

    def mark(self, span: Span, role: NameRole, declared: NameDecl | Span | None = None) -> None:
        """Notes a name, once: a comparison in a chain, say, has its middle twice. The place of one
        in parentheses has them too."""
        place = declared.span if isinstance(declared, NameDecl) else declared
        if span.source.text.startswith("(", span.start):
            start = _OPENED.match(span.source.text, span.start).end()  # type: ignore[union-attr]
            span = Span(span.source, start, _WORD.match(span.source.text, start).end())  # type: ignore[union-attr]
        self.found.setdefault(span.start, NameUse(span, role, place))

    def each(self, names: Iterable[ast.Name], role: NameRole) -> None:
        """Notes words that no declaration belongs to."""
        for name in names:
            self.mark(name.span, role)

    def declare(self, decl: NameDecl, name: ast.Name, scope: NameScope) -> None:
        """Notes a declaration that is visible from here on. name: may be another of the same."""
        self.mark(name.span, decl.role, decl)
        scope.now[name.text] = decl

    def name(self, name: ast.Name, scope: NameScope, otherwise: NameRole) -> NameDecl | None:
        """Notes a name that is used. otherwise: what it is where nothing declares it."""
        found = scope.find(name.text)
        self.mark(name.span, found.role if found is not None else otherwise, found)
        return found

    # --- expressions ---

    def expression(self, node: ast.Expr | None, scope: NameScope, otherwise: NameRole = NameRole.VALUE) -> None:
        match node:
            case ast.Name():
                self.name(node, scope, _language(node.text, otherwise))
            case ast.Call():
                self.call(node, scope)
            case ast.Pipe():
                self.expression(node.left, scope)
                self._piped(node.right, scope)
            case ast.Attribute():
                self.expression(node.value, scope)
                owner = model_of(self.owner(node.value, scope))
                found = members(owner).get(node.name.text) if owner is not None else None
                self.mark(node.name.span, found.role if found is not None else NameRole.VALUE, found)
            case ast.Pick():
                self.expression(node.value, scope)
                for place in node.places:
                    self.name(place.name, scope, NameRole.DIM)
                    self.expression(place.value, scope)
            case None | ast.Number() | ast.String() | ast.Bool():
                pass
            case _:
                for inner in _parts(node):
                    self.expression(inner, scope, otherwise)

    def _piped(self, node: ast.Expr, scope: NameScope) -> None:
        if isinstance(node, ast.Name):
            self.name(node, scope, NameRole.OPERATOR)
        else:
            self.expression(node, scope)

    def owner(self, node: ast.Expr, scope: NameScope) -> NameDecl | None:
        """The declaration of a layer that an expression names: `blocks[0].attention`."""
        match node:
            case ast.Name():
                return scope.find(node.text)
            case ast.Index():
                return self.owner(node.value, scope)
            case ast.Attribute():
                model = model_of(self.owner(node.value, scope))
                return members(model).get(node.name.text) if model is not None else None
        return None

    def call(self, node: ast.Call, scope: NameScope, place: str = "") -> None:
        """A call. place: the setting that it gives, or `param`, where other things are called."""
        role, table = CALLED.get(place, (NameRole.FUNCTION, {}))
        target = self.owner(node.callee, scope)
        if isinstance(node.callee, ast.Name):
            name = node.callee.text
            otherwise = role if name in table else builtin_role(name)
            target = self.file.names.get(name) if place in CALLED else called_by(name, target)
            self.mark(node.callee.span, target.role if target is not None else otherwise, target)
        else:
            self.expression(node.callee, scope)
        named = {} if target is not None else params_of(node.callee.span.text, place)
        order = [param for param in named.values() if param.kind not in _BY_DIM]
        plain = NameRole.WORD if place in _WORDS else NameRole.VALUE
        for at, argument in enumerate(node.args):
            param = order[min(at, len(order) - 1)] if order else None
            self.expression(argument, scope, _role_of(param, plain))
        for keyword in node.keywords:
            self._keyword(keyword, target, named, scope)
            self.expression(keyword.value, scope, _role_of(named.get(keyword.name.text), plain))
        for each in node.fields:
            self.field(each, scope)
        if node.arrow is not None:
            self.type(node.arrow, scope)

    def _keyword(
        self, keyword: ast.Keyword, target: NameDecl | None, named: Mapping[str, Param], scope: NameScope
    ) -> None:
        name = keyword.name
        formal = next((f for f in formals_of(target, name.text) if f.name.text == name.text), None)
        by_dim = name.text not in named and any(param.kind in _BY_DIM for param in named.values())
        if by_dim:
            self.name(name, scope, NameRole.DIM)
        else:
            self.mark(name.span, NameRole.ARGUMENT, formal.name.span if formal is not None else None)

    def field(self, node: ast.Field, scope: NameScope, declares: bool = False) -> None:
        """A field of a data source. declares: its type declares the dims in it."""
        decl = self.values.below.get(node.name.text) or self.file.declared(NameRole.FIELD, node.name, node)
        self.mark(node.name.span, NameRole.FIELD, decl)
        self.type(node.type, scope, declares)
        self.expression(node.bound, scope, NameRole.DIM)

    def type(self, node: ast.TensorType, scope: NameScope, declares: bool = False) -> None:
        """A type. declares: names in it that nothing has declared are new dims."""
        if node.dtype is not None:
            self.mark(node.dtype.span, NameRole.TYPE)
        for factor in (factor for term in node.dims for factor in term.factors):
            if isinstance(factor.dim, ast.Name):
                if declares and scope.find(factor.dim.text) is None:
                    scope.now[factor.dim.text] = self.file.declared(NameRole.DIM, factor.dim, factor)
                self.name(factor.dim, scope, NameRole.DIM)
            self.axis(factor.axes)
        self.axis((*node.pending, *node.replicated))

    def axis(self, names: Iterable[ast.Name]) -> None:
        """Axes of the strategy that is being read."""
        for name in names:
            self.name(name, self.axes, NameRole.AXIS)

    # --- rules ---

    def words(self, rule: ast.Rule) -> None:
        """A rule of axes and words alone."""
        match rule:
            case ast.Shard():
                for entry in (e for each in (*rule.inputs, *(rule.outputs or ())) for e in each.entries):
                    self.axis(entry.axes)
                    if entry.span.text == "_":
                        self.mark(entry.span, NameRole.WORD)
            case ast.Zero():
                self.axis(rule.axes)
                self.each((rule.word,) if rule.word is not None else (), NameRole.WORD)
            case ast.Recompute():
                self.each(rule.what or (), NameRole.WORD)
            case ast.Attend():
                self.each(rule.how, NameRole.WORD)
            case ast.Place():
                self.each((rule.where,) if rule.where is not None else (), NameRole.WORD)

    def dim_path(self, parts: Sequence[ast.Name], outer: NameScope) -> None:
        """`hidden`, or `fc1.out`: layers of the root model, then a dim; or a dim of the file."""
        model = self.root
        for at, part in enumerate(parts):
            found = members(model).get(part.text) if model is not None else None
            last = at == len(parts) - 1
            if last and (found is None or found.role is not NameRole.DIM):
                found = outer.find(part.text) if at == 0 else None
            self.mark(part.span, NameRole.DIM if last else NameRole.LAYER, found)
            model = model_of(found)

    # --- selectors ---

    def select(self, selectors: Sequence[ast.Selector]) -> list[NameDecl]:
        """Notes what selectors name, part by part; all that they name."""
        everything: list[NameDecl] = []
        for selector in selectors:
            parts = [segment.name for segment in selector.segments]
            found_of = named(parts, members(self.root) if self.root is not None else {}, self.values.below)
            steps = [(_name_of(s), found) for s, (found, _) in zip(selector.segments, found_of, strict=True)]
            for place, found in steps:
                exact = found[0] if found and "*" not in place.text else None
                self.mark(place, exact.role if exact is not None else NameRole.SELECTOR, exact)
            self.selectors.append(SelectorUse(selector.span, tuple(steps)))
            everything += steps[-1][1]
        return everything


def _name_of(segment: ast.Segment) -> Span:
    """A part of a selector without its index."""
    start = segment.span.start
    return Span(segment.span.source, start, start + len(segment.name))


def named(parts: Sequence[str], root: Names, values: Names) -> Iterator[tuple[tuple[NameDecl, ...], list[Names]]]:
    """For each part of a selector all that the path up to it names, and what may stand below that.
    values: those of `train`, whose paths begin so."""
    below = [root]
    for at, part in enumerate(parts):
        found: tuple[NameDecl, ...] = ()
        if at == 0 and part == TRAIN and TRAIN not in root:
            below = [values]
        else:
            found = tuple(selected(part, below))
            below = [members(model) for each in found if (model := model_of(each)) is not None]
            below += [root] if part == "**" and at == 0 else []
        yield found, below


def selected(pattern: str, below: Sequence[Mapping[str, NameDecl]]) -> Iterator[NameDecl]:
    """The declarations that a part of a selector names: of members, or for `**` of all that stands
    below them."""
    if pattern == "**":
        yield from deep(below)
        return
    fits: Callable[[str], object] = matcher(pattern) if "*" in pattern else lambda name: name == pattern
    for names in below:
        yield from (decl for name, decl in names.items() if fits(name))


def deep(below: Sequence[Mapping[str, NameDecl]]) -> Iterator[NameDecl]:
    """Members, and those of their models, each model once: it may be a layer of many."""
    waiting, seen = list(below), set()
    while waiting:
        for decl in waiting.pop().values():
            yield decl
            model = model_of(decl) if decl.role is NameRole.LAYER else None
            if model is not None and id(model.node) not in seen:
                seen.add(id(model.node))
                waiting.append(members(model))


def builtin_role(name: str) -> NameRole:
    """The role of a name that the language has everywhere."""
    return NameRole.OPERATOR if is_operator(name) or name == SCAN else NameRole.FUNCTION


def called_by(name: str, found: NameDecl | None) -> NameDecl | None:
    """The declaration that a call of a name calls: no value of this name where there is an operator
    of it."""
    plain = found is not None and found.role in (NameRole.FORMAL, NameRole.DIM, NameRole.VALUE, NameRole.FIELD)
    return None if plain and is_operator(name) else found


def params_of(name: str, place: str = "") -> Mapping[str, Param]:
    """The parameters of what the language has under a name, where it is called for `place`."""
    declared = {SCAN: _SCAN, **WORDS, **TEXTS, **CALLED.get(place, (None, {}))[1]}
    if name in declared:
        return {param.name: param for param in declared[name].params}
    return {param.name: param for param in REGISTRY[name].params} if is_operator(name) else {}


def _role_of(param: Param | None, otherwise: NameRole) -> NameRole:
    """The role of a name that is given for a parameter, where nothing declares it."""
    return NameRole.DIM if param is not None and param.kind in OF_DIMS else otherwise


def _language(name: str, otherwise: NameRole) -> NameRole:
    return NameRole.TYPE if name in DTYPES else NameRole.FIGURE if name in FIGURES else otherwise


def _parts(node: ast.Node) -> Iterator[ast.Expr]:
    """The expressions that an expression is made of."""
    match node:
        case ast.Binary():
            yield from (node.left, node.right)
        case ast.Unary():
            yield node.operand
        case ast.Index():
            yield from (node.value, *((node.index,) if node.index is not None else ()))
        case ast.Tuple():
            yield from node.items
        case ast.Conditional():
            yield from (node.then, node.condition, node.otherwise)
        case ast.Range():
            yield from (node.start, node.end, *((node.step,) if node.step is not None else ()))
