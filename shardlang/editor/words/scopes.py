"""The tree of a file, and of those that it imports -> what its names declare: of a file, of a
model, of a call.

Nothing is checked: a tree with mistakes has the names that are left in it. Which name is meant
where is left to `names`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache

from shardlang.check.context import Loader
from shardlang.check.files.removed_members import flat
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.sources.files import MISSING
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.parse import parse


class NameRole(Enum):
    """The role of a name: of a user's declaration, or of the language (from SETTING on)."""

    MODEL = "model"
    FUNCTION = "function"
    OPERATOR = "operator"
    SOURCE = "source"
    SCHEDULE = "schedule"
    OPTIMIZER = "optimizer"
    DEVICE = "device"
    CLUSTER = "cluster"
    LEVEL = "level"
    LIBRARY = "library"
    DIM = "dim"
    FORMAL = "formal"
    ARGUMENT = "argument"
    LAYER = "layer"
    PARAMETER = "parameter"
    STATE = "state"
    VALUE = "value"
    FIELD = "field"
    METRIC = "metric"
    STRATEGY = "strategy"
    AXIS = "axis"
    SELECTOR = "selector"
    SETTING = "setting"
    FIGURE = "figure"
    START = "initial value"
    TYPE = "type"
    WORD = "word"


@dataclass(frozen=True, slots=True, eq=False)
class NameDecl:
    """A declaration: where its name stands, its node, and the names of its file."""

    role: NameRole
    span: Span
    node: ast.Node
    home: FileNames

    @property
    def text(self) -> str:
        return self.span.text


Names = dict[str, NameDecl]


@dataclass(eq=False)
class FileNames:
    """`names` of a file, imports too; `uses`: the file that each `use` names, by the place of its
    path. members: what models declare, as far as it was asked for."""

    source: Source
    tree: ast.File
    names: Names = field(default_factory=dict)
    uses: dict[Span, FileNames] = field(default_factory=dict)
    members: dict[int, Names] = field(default_factory=dict)

    def declared(self, role: NameRole, name: ast.Name, node: ast.Node) -> NameDecl:
        return NameDecl(role, name.span, node, self)

    def around(self, place: Span) -> Names:
        """All that is declared anywhere in the model around a place."""
        for decl in self.names.values():
            node = decl.node.span
            if decl.role is NameRole.MODEL and node.source is place.source and node.start <= place.start < node.end:
                return members(decl)
        return {}


ITEM_ROLES: Mapping[type, NameRole] = {
    ast.Model: NameRole.MODEL, ast.Function: NameRole.FUNCTION, ast.Operator: NameRole.OPERATOR,
    ast.OwnSource: NameRole.SOURCE, ast.OwnSchedule: NameRole.SCHEDULE, ast.OwnOptimizer: NameRole.OPTIMIZER,
}  # fmt: skip
# Files that import one another are read one within the other.
_MOST_FILES = 100


def file_names(tree: ast.File, load: Loader, known: dict[str, FileNames] | None = None) -> FileNames:
    """The names of a file. known: those of files that are read already, or are being read."""
    known = {} if known is None else known
    made = FileNames(tree.source, tree)
    known[tree.source.name] = made
    for item in tree.items:
        for name, found in _of_item(item, made, load, known):
            made.names.setdefault(name, found)
    return made


def _of_item(
    item: ast.Item, file: FileNames, load: Loader, known: dict[str, FileNames]
) -> Iterator[tuple[str, NameDecl]]:
    match item:
        case ast.Use():
            other = _imported(item, file, load, known)
            for name in item.names:
                found = other.names.get(name.text) if other is not None else None
                yield name.text, found or file.declared(NameRole.VALUE, name, item)
        case ast.DimDecl():
            for entry in item.entries:
                yield entry.name.text, file.declared(NameRole.DIM, entry.name, entry)
        case ast.Hardware():
            yield item.name.text, file.declared(NameRole(item.keyword), item.name, item)
        case _ if type(item) in ITEM_ROLES:
            yield item.name.text, file.declared(ITEM_ROLES[type(item)], item.name, item)  # type: ignore[union-attr]


def _imported(use: ast.Use, file: FileNames, load: Loader, known: dict[str, FileNames]) -> FileNames | None:
    source = load(file.source.name, use.path, use.file) if use.path else MISSING
    if not isinstance(source, Source) or len(known) > _MOST_FILES:
        return None
    if source.name not in known:
        file_names(_parsed(source.name, source.text, source.library), load, known)
    file.uses[use.path_span] = known[source.name]
    return known[source.name]


@lru_cache(32)
def _parsed(name: str, text: str, library: bool) -> ast.File:
    """The tree of an imported file, which few keys change."""
    return parse(Source(name, text, library), Sink())


# --- models and calls ----------------------------------------------------------


def members(model: NameDecl) -> Names:
    """The names that a model declares: formals, dims, layers, parameters, and the values of its
    `forward`."""
    node, home = model.node, model.home
    if not isinstance(node, ast.Model):
        return {}
    if id(node) not in home.members:
        home.members[id(node)] = {}
        found = list(flat(node.members))[::-1]  # of several of one name the first counts
        formals = {f.name.text: formal_decl(f, home) for f in node.formals}
        values = {name: decl for member in found for name, decl in _of_forward(member, home)}
        made = {name: decl for member in found for name, decl in member_names(member, home)}
        home.members[id(node)] = {**values, **formals, **made}
    return home.members[id(node)]


def formal_decl(formal: ast.Formal, home: FileNames) -> NameDecl:
    """A formal: a tensor is a value, and of the others dims are told apart."""
    kind = formal.kind.text if isinstance(formal.kind, ast.Name) else ""
    role = {"dim": NameRole.DIM, "": NameRole.VALUE}.get(kind, NameRole.FORMAL)
    return home.declared(role, formal.name, formal)


def member_names(member: ast.Member, home: FileNames) -> Iterator[tuple[str, NameDecl]]:
    """The names that a member declares in its model."""
    match member:
        case ast.DimDecl():
            for entry in member.entries:
                yield entry.name.text, home.declared(NameRole.DIM, entry.name, entry)
        case ast.Layer():
            yield member.name.text, home.declared(NameRole.LAYER, member.name, member)
        case ast.Tensor():
            role = NameRole.PARAMETER if member.keyword == "param" else NameRole.STATE
            yield member.name.text, home.declared(role, member.name, member)


def _of_forward(member: ast.Member, home: FileNames) -> Iterator[tuple[str, NameDecl]]:
    if isinstance(member, ast.Forward):
        for statement in (s for s in reversed(member.body) if isinstance(s, ast.Assign)):
            for name in statement.names:
                yield name.text, home.declared(NameRole.VALUE, name, statement)
        for formal in member.formals:
            yield formal.name.text, formal_decl(formal, home)


def model_of(decl: NameDecl | None) -> NameDecl | None:
    """The model of a layer, or of the setting `model`; a model itself."""
    if decl is None or decl.role is NameRole.MODEL:
        return decl
    if not isinstance(decl.node, ast.Layer | ast.Setting) or not isinstance(decl.node.value, ast.Call):
        return None
    callee = decl.node.value.callee
    found = decl.home.names.get(callee.text) if isinstance(callee, ast.Name) else None
    return found if found is not None and found.role is NameRole.MODEL else None


def formals_of(decl: NameDecl | None, name: str = "") -> tuple[ast.Formal, ...]:
    """The formals of what is called: of a layer those of its `forward`, where there are several of
    the first that has `name`."""
    node = decl.node if decl is not None else None
    if isinstance(node, ast.Model | ast.Function | ast.Operator | ast.OwnSource | ast.OwnSchedule | ast.OwnOptimizer):
        return node.formals
    model = model_of(decl) if isinstance(node, ast.Layer | ast.Setting) else None
    inner = flat(model.node.members) if model is not None and isinstance(model.node, ast.Model) else ()
    found = [member.formals for member in inner if isinstance(member, ast.Forward)]
    having = (formals for formals in found if name in [f.name.text for f in formals])
    return next(having, found[0] if found else ())


# --- where names are visible ---------------------------------------------------


@dataclass(eq=False)
class NameScope:
    """Names in the order in which they are declared: `now` those so far, `below` all of them."""

    outer: NameScope | None = None
    now: Names = field(default_factory=dict)
    below: Names = field(default_factory=dict)

    def find(self, name: str) -> NameDecl | None:
        """The meaning of a name: the innermost that is declared so far, or one that is to come."""
        chain = list(self.chain())
        found = (scope.now[name] for scope in chain if name in scope.now)
        return next(found, None) or next((scope.below[name] for scope in chain if name in scope.below), None)

    def chain(self) -> Iterator[NameScope]:
        here: NameScope | None = self
        while here is not None:
            yield here
            here = here.outer

    def visible(self) -> Names:
        """All names that `find` finds, the nearest first."""
        chain = list(self.chain())
        order = dict.fromkeys(name for scope in chain for name in (*scope.now, *scope.below))
        below = {name: decl for scope in reversed(chain) for name, decl in scope.below.items()}
        now = {name: decl for scope in reversed(chain) for name, decl in scope.now.items()}
        return {name: now.get(name) or below[name] for name in order}
