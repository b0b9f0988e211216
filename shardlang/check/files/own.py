"""A `source`, `schedule` or `optimizer` of a file -> how programs may call it, its declaration
checked.

Reads the text of the Python file, for its hash, and the lock beside the declaration. Neither is
ever run here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.files.declarations import SETTINGS, DeclarationReader
from shardlang.check.own import NEEDS, OwnDecl
from shardlang.check.values import UNKNOWN, FileScope
from shardlang.facts.dtypes import INTEGERS
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import Param
from shardlang.ops.declared import REST
from shardlang.syntax import ast

# Arguments that every call of a source may have, and so no setting of one.
OF_EVERY_SOURCE = (Param("shuffle", "bool", None), Param("seed", "int", None), Param("workers", "int", 0))
_WHAT = {ast.OwnSource: "source", ast.OwnSchedule: "schedule", ast.OwnOptimizer: "optimizer"}
_PYTHON = {"source": "my_data.py", "schedule": "my_lr.py", "optimizer": "my_opt.py"}
_PARAMS = {"int": "int", "float": "number", "bool": "bool", "str": "str", "dim": "newdim"}


def declare_own(node: ast.Own, frame: Frame, program: str) -> Any:
    """The declaration, UNKNOWN after a report. program: paths are relative to its folder."""
    found = _OwnReader(node, frame).read(program)
    return UNKNOWN if found is None else found


def own_of(scope: FileScope, kind: str) -> list[OwnDecl]:
    """All that a file itself declares of a kind, in order."""
    found = (value for value in scope.names.values() if isinstance(value, OwnDecl) and value.kind == kind)
    return [value for value in found if value.span.source is scope.source]


def visible(scope: FileScope, kind: str) -> dict[str, OwnDecl]:
    """All that a program may call of a kind, by the name that it has there."""
    return {n: v for n, v in scope.names.items() if isinstance(v, OwnDecl) and v.kind == kind}


class _OwnReader(DeclarationReader):
    """Reads one declaration of what is no operator."""

    def __init__(self, node: ast.Own, frame: Frame) -> None:
        super().__init__(node, frame)
        self.own: ast.Own = node
        self.what = _WHAT[type(node)]
        self.kinds = (*SETTINGS, "dim") if self.what == "source" else SETTINGS
        python = f'python "{_PYTHON[self.what]}": {{}}'
        self.clauses = {ast.Python: ("python", python), ast.Needs: ("needs", "needs elements")}
        self.optional = () if self.what == "optimizer" else ("needs",)

    def read(self, program: str) -> OwnDecl | None:
        node = self.own
        self._names(node.formals, [p.name for p in OF_EVERY_SOURCE] if self.what == "source" else ())
        for formal in node.formals:
            if isinstance(formal.kind, ast.TensorType):
                self.wrong("SH614", f"a setting of {self.article} {self.what} is no tensor", formal.span, "here")
            elif formal.kind.text == "dim" and formal.default is not None:
                self.wrong("SH614", f"`{formal.name.text}` is a dim, which has no default", formal.default.span, "here")
                return None
        settings = tuple(Param(p.name, _PARAMS[p.kind], p.default) for p in self._settings(node.formals))
        python, needs = self._once(ast.Python), self._once(ast.Needs)
        remembered: list[ast.Remembers] = self._all(ast.Remembers)
        fields: dict[str, Any] = {}
        batch: str = ""
        dims: tuple[str, ...] = ()
        if isinstance(node, ast.OwnSource):
            fields, batch, dims = self._fields(node, [p.name for p in settings if p.kind == "newdim"])
            self._bounds(node, {*dims, *(p.name for p in settings if p.kind in ("newdim", "int"))})
        if not isinstance(node, ast.OwnOptimizer):
            for clause in (*self._all(ast.Needs), *remembered):
                self.wrong("SH614", f"`{clause.span.text}` is a clause of optimizers", clause.span, "here")
        need = self._needs(needs) if needs is not None else ""
        state = self._state(remembered)
        if isinstance(node, ast.OwnOptimizer) and not any(p.name == "lr" and p.kind == "number" for p in settings):
            help = f"`optimizer {self.name}(lr: float)`: a schedule changes it"
            self.wrong("SH614", f"optimizer `{self.name}` has no `lr`", node.name.span, "no learning rate", help)
        definition = self._definition(python, program)
        if definition is None or not self.sound:
            return None
        return OwnDecl(
            kind=self.what, span=node.name.span, settings=settings, fields=fields, dims=dims, batch=batch, needs=need,
            state=state, **definition,
        )  # fmt: skip

    # --- fields of a source ---

    def _fields(
        self, node: ast.OwnSource, given: Collection[str]
    ) -> tuple[dict[str, tuple[str, tuple[int | str, ...], int | str | None]], str, tuple[str, ...]]:
        """The fields, the name of their first dim, and the dims that a call names. given: settings
        that are dims."""
        found: dict[str, tuple[str, tuple[int | str, ...], int | str | None]] = {}
        batch = ""
        for field in node.fields:
            if field.name.text in found:
                self.wrong("SH614", f"field `{field.name.text}` is declared twice", field.name.span, "again here")
            entries = list(self._entries(field))
            first = entries[0] if entries else ""
            if not isinstance(first, str) or not first or (batch and first != batch) or first in given:
                help = f"begin each field with one name, that of the batch: `[{batch or 'batch'}, ...]`"
                fact = f"field `{field.name.text}` does not begin with the batch"
                self.wrong("SH614", fact, field.type.span, "here", help)
                continue
            batch = batch or first
            dtype = field.type.dtype.text if field.type.dtype is not None else ""
            found[field.name.text] = dtype, tuple(entries[1:]), self._bound(field)
        dims = dict.fromkeys(size for _, sizes, _ in found.values() for size in sizes if isinstance(size, str))
        named = tuple(name for name in (batch, *dims) if name and name not in given)
        taken = {p.name for p in OF_EVERY_SOURCE} | {f.name.text for f in node.formals}
        for name in taken.intersection(named):
            fact = f"`{name}` of `{self.name}` is a dim, and another argument too"
            self.wrong("SH614", fact, node.name.span, "declared here", f"`{name}: dim` gives the function its size")
        return found, batch, named

    def _entries(self, field: ast.Field) -> Iterator[int | str]:
        for entry in self._signature(field.type).dims:
            if isinstance(entry, int):
                yield entry
            elif len(entry) == 1 and entry != (REST,):
                yield entry[0]
            else:
                fact = f"a dim of field `{field.name.text}` is no single name or number"
                self.wrong("SH614", fact, field.type.span, "here")

    def _bound(self, field: ast.Field) -> int | str | None:
        """A number, or the name of the dim or setting that a call gives it by."""
        bound, dtype = field.bound, field.type.dtype
        if bound is None:
            return None
        if dtype is not None and dtype.text in INTEGERS:
            if isinstance(bound, ast.Name):
                return bound.text
            if isinstance(bound, ast.Number) and isinstance(bound.value, int) and bound.value >= 1:
                return bound.value
        fact = f"the bound of `{field.name.text}` is no name and no whole number from 1 on, of whole numbers"
        self.wrong("SH614", fact, bound.span, "here", f"`{field.name.text}: i64[batch] < 10`, say")
        return None

    def _bounds(self, node: ast.OwnSource, known: Collection[str]) -> None:
        """Reports bounds by names that no call gives."""
        for field in node.fields:
            if isinstance(field.bound, ast.Name) and field.bound.text not in known:
                name = field.bound.text
                fact = f"the bound of `{field.name.text}` is `{name}`, which is no dim and no `int` of `{self.name}`"
                help = offer(name, known, f"`{self.name}(.., {name}: dim)` declares it")
                self.wrong("SH614", fact, field.bound.span, "here", help)

    # --- clauses of an optimizer ---

    def _needs(self, node: ast.Needs) -> str:
        words = " ".join(word.text for word in node.words)
        if words not in NEEDS:
            help = offer(words, NEEDS, f"it needs {', '.join(f'`{n}`' for n in NEEDS)}")
            self.wrong("SH614", f"no optimizer needs `{words}`", node.span, "here", help)
        return NEEDS.get(words, "")

    def _state(self, nodes: Sequence[ast.Remembers]) -> tuple[str, ...]:
        seen: Mapping[str, ast.Remembers] = {}
        for node in nodes:
            name = node.name.text
            if name in seen:
                self.wrong("SH614", f"state `{name}` is declared twice", node.name.span, "again here")
            if node.like.text != "parameter":
                fact = f"a state is like the parameter, and not like `{node.like.text}`"
                self.wrong("SH614", fact, node.like.span, "here", f"`state {name} like parameter`")
            seen = {**seen, name: node}
        return tuple(seen)
