"""The state that all parts of one check share: the sink, dims, the growing graph, and what has been
used.

Also the frame an expression is evaluated in. Looks names up; evaluating and reporting are left to
others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, NoReturn, ParamSpec, TypeVar

from shardlang.check.graph.drafts import GraphBuilder
from shardlang.check.graph.unify import Unifier
from shardlang.check.values import UNKNOWN, FileScope, FunctionDecl, Instance, ModelDecl, Numbering, Tensor
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import Cuts
from shardlang.sources.files import MISSING, Unreadable
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim, Term

# How deep layers stand in one another, and functions call each other. Neither can recur.
DEPTH = 64
Loader = Callable[[str, str, bool], Source | Unreadable]
Read = TypeVar("Read")
Given = ParamSpec("Given")


class Reported(Exception):
    """A mistake that is reported, and leaves nothing of what was read."""


def attempted(read: Callable[Given, Read], *given: Given.args, **named: Given.kwargs) -> Read | None:
    """The outcome of `read`; None after a report."""
    try:
        return read(*given, **named)
    except Reported:
        return None


@dataclass
class Context:
    """`dtype`: the floating type of `[d1, d2]`. `used`: identities of the declarations that
    something uses.

    `candidates`: declarations that something has to use: identity -> (what, name, place).
    `instantiated`: models that are in use; `run`: those whose `forward` was. `stack`: the
    functions being called; `models`: the models being instantiated; both for recursion.
    `too_deep`: how deep a function may not be called, as was reported. `memo`: what operators
    inferred before. `headless`: models reported for want of a `forward`. `unknown`: names
    reported as unknown. `uncalled`: models of layers that nothing has called. `overrides`: dims
    of the root model that are set from outside. `load`: finds files that settings name. `low`:
    the low precision of a mixed run, or ""; `stream`: whether what layers hand on is in it too.
    `wide`: parameters used in f32 there. `below`: model, and whether from within a body -> what
    is declared there. `casts`: value and type -> the cast made of it. `runs`: where runs of
    equal layers, which are told once, are cut; None where each layer is told. `in_runs`: whether
    some are. `words`: the words or texts that dims of files number."""

    sink: Sink
    dtype: str = "f32"
    dims: Unifier = field(default_factory=Unifier)
    build: GraphBuilder = field(default_factory=GraphBuilder)
    used: set[int] = field(default_factory=set)
    candidates: dict[int, tuple[str, str, Span]] = field(default_factory=dict)
    stack: list[FunctionDecl] = field(default_factory=list)
    too_deep: dict[FunctionDecl, int] = field(default_factory=dict)
    models: list[ModelDecl] = field(default_factory=list)
    instantiated: set[int] = field(default_factory=set)
    run: set[int] = field(default_factory=set)
    memo: dict[object, Any] = field(default_factory=dict)
    layers: int = 0
    calls: int = 0
    full: bool = False
    headless: set[int] = field(default_factory=set)
    overrides: dict[str, ast.Expr] = field(default_factory=dict)
    unknown: set[tuple[int, str]] = field(default_factory=set)
    uncalled: dict[int, Span] = field(default_factory=dict)
    evaluator: Callable[[ast.Expr, Frame], Any] = lambda node, frame: UNKNOWN
    load: Loader = lambda importing, path, is_file: MISSING
    low: str = ""
    stream: bool = False
    wide: set[int] = field(default_factory=set)
    casts: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    runs: Cuts | None = None
    in_runs: bool = False
    words: dict[Dim, Numbering] = field(default_factory=dict)
    below: dict[tuple[int, bool], dict[str, Span]] = field(default_factory=dict)


@dataclass
class Frame:
    """Where an expression stands. `names` bind first, then the instance's, then the file's.

    `prefix`: the path of the layer (values are named below it); `call`: the number of its call.
    `ops`: operators of the statement being evaluated. `ellipsis`: what `...` stands for in this
    call, None where it stands for nothing. `inline`: a function's frame, whose operators belong to
    the caller's statement. `sightless`: a mistake that is reported took names away, so an unknown
    one is no further mistake. `steps`: how many steps outward its caller is."""

    context: Context
    file: FileScope
    prefix: str = ""
    call: int = 0
    instance: Instance | None = None
    names: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    nodes: dict[str, object] = field(default_factory=dict)
    ops: list[int] = field(default_factory=list)
    ellipsis: tuple[Term, ...] | None = None
    inline: bool = False
    sightless: bool = False
    steps: int = 1

    def evaluate(self, node: ast.Expr) -> Any:
        """The value of an expression here."""
        return self.context.evaluator(node, self)

    def load(self, path: str, is_file: bool, what: str, span: Span, help: str) -> Source | None:
        """The file that this one names at `span`; None after a report."""
        found = self.context.load(self.file.source.name, path, is_file)
        if isinstance(found, Source):
            return found
        if found.brief:
            self.wrong("SH401", f"`{path}` {found}", span, found.brief, help=found.help)
        else:
            self.wrong("SH203", f"there is no {what}", span, "not found", help=help)
        return None

    def wrong(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> Any:
        """UNKNOWN, as the value of what is wrong, after reporting it."""
        self.context.sink.report(code, message, span, label, **more)
        return UNKNOWN

    def refuse(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> NoReturn:
        """Reports what leaves nothing to go on with."""
        self.context.sink.report(code, message, span, label, **more)
        raise Reported

    def steps_to(self, layer: Instance) -> int:
        """How many layers deeper `layer` is: its dims go through those of all layers between."""
        return layer.depth - (self.instance.depth if self.instance is not None else -1)

    def leaf(self) -> str:
        """A name for the result of the layer if the program gives it none."""
        return self.prefix.rpartition(".")[2].partition("[")[0] or "output"

    def find(self, name: str) -> Any:
        """The value of a name, or None where there is none. Marks its declaration as used."""
        for place in (self, self.instance):
            if place is not None and name in place.names:
                if name in place.nodes:
                    self.context.used.add(id(place.nodes[name]))
                return place.names[name]
        return self.file.find(name)

    def first_unknown(self, name: str, called: bool = False) -> bool:
        """Whether an unknown name is new in this model (or file): it is one mistake. called: it is,
        so that no mistake that took fields or dims away explains it."""
        key = (id(self.instance.decl.node) if self.instance else id(self.file), name)
        new = key not in self.context.unknown
        self.context.unknown.add(key)
        return new and (called or not self.sightless)

    def declared_below(self, name: str) -> Span | None:
        """The declaration of a dim, member or value of this file, model or body that is to come."""
        below = self.file.below
        if self.instance is None:
            return below.get(name)
        key = id(self.instance.decl.node), bool(self.spans)
        if key not in self.context.below:
            self.context.below[key] = _declared(self.instance.decl.node, bool(self.spans))
        return self.context.below[key].get(name) or below.get(name)

    def visible(self) -> list[str]:
        """All names that `find` would find."""
        inner = list(self.instance.names) if self.instance else []
        return [*self.names, *inner, *self.file.visible()]

    def bind(self, name: str, value: Any, span: Span, node: object | None = None) -> bool:
        """Bind a name once; False where it is bound already (in this call or model)."""
        before = self.spans.get(name) or (self.instance.spans.get(name) if self.instance else None)
        if before is not None:
            help = "a name is bound once; give one of them another name"
            self.context.sink.again("SH201", f"`{name}` is bound twice", span, before, help)
            self.names.setdefault(name, UNKNOWN)
            return False
        self.names[name] = value
        self.spans[name] = span
        if node is not None:
            self.nodes[name] = node
        return True


def _declared(model: ast.Model, in_body: bool) -> dict[str, Span]:
    """Each name that a model declares -> where first. in_body: with those of its bodies."""
    found: dict[str, Span] = {}
    for member in model.members:
        names = [e.name for e in member.entries] if isinstance(member, ast.DimDecl) else []
        body = member.body if isinstance(member, ast.Forward) and in_body else ()
        names += [name for s in body if isinstance(s, ast.Assign) for name in s.names]
        names += [member.name] if isinstance(member, ast.Layer | ast.Tensor) else []
        for name in names:
            found.setdefault(name.text, name.span)
    return found
