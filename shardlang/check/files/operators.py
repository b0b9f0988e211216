"""An `operator` of a file -> the operator that programs call, its declaration checked.

Reads the text of the Python file, for its hash, and the lock beside the declaration. Neither is
ever run here."""

from __future__ import annotations

import keyword
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.values import UNKNOWN, FileScope, OperatorDecl
from shardlang.diagnostics.nearest import offer
from shardlang.extensions import locks
from shardlang.files import beneath, folder_of
from shardlang.ops.declaration import Param
from shardlang.ops.declared import REST, RESULT, Declaration, Signature, operator_of
from shardlang.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.tables import tables
from shardlang.syntax.tokens import NEWLINE, Tokens
from shardlang.types.dim import DTYPES, FLOATS

SETTINGS = ("int", "float", "bool", "str")
_CLAUSES: dict[type, tuple[str, str]] = {
    ast.Flops: ("flops", "flops 2 * batch * d"),
    ast.Python: ("python", 'python "my_ops.py": {}'),
    ast.Keeps: ("keeps", "keeps x"),
}


def declare_operator(node: ast.Operator, frame: Frame, program: str) -> Any:
    """The declared operator, UNKNOWN after a report. program: paths are relative to its folder."""
    reader = _Reader(node, frame)
    found = reader.read(program)
    return UNKNOWN if found is None else OperatorDecl(node, found, operator_of(found))


def operators_of(scope: FileScope) -> list[OperatorDecl]:
    """The operators that a file itself declares, in order."""
    found = (value for value in scope.names.values() if isinstance(value, OperatorDecl))
    return [value for value in found if value.node.span.source is scope.source]


class _Reader:
    """Reads one declaration; `sound` until something is reported."""

    def __init__(self, node: ast.Operator, frame: Frame) -> None:
        self.node, self.frame, self.sound = node, frame, True
        self.name = node.name.text

    def wrong(self, code: str, fact: str, span: Span, label: str = "", help: str = "") -> None:
        self.sound = False
        self.frame.wrong(code, fact, span, label, help=help)

    def read(self, program: str) -> Declaration | None:
        node = self.node
        tensors = [f for f in node.formals if isinstance(f.kind, ast.TensorType)]
        operands = tuple((f.name.text, self._signature(f.kind)) for f in tensors if isinstance(f.kind, ast.TensorType))
        settings = tuple(self._settings(node.formals))
        result = self._signature(node.result)
        self._formals(tensors)
        clauses = {kind: self._once(kind) for kind in _CLAUSES}
        dims = self._dims([name for _, s in operands for name in s.names], settings)
        given = [name for _, signature in operands for name in signature.names if name != REST]
        known = list(dict.fromkeys([*given, *(name for name, _ in dims)]))
        whole = frozenset(name.text for c in self._all(ast.Whole) for name in c.dims if self._known(name, known, "dim"))
        self._result(result, operands, [name for name, _ in dims], whole)
        linear = tuple(self._linear(operands))
        flops, keeps, python = clauses[ast.Flops], clauses[ast.Keeps], clauses[ast.Python]
        if flops is not None:
            self._expression(flops.count, [*known, *(p.name for p in settings if p.kind in ("int", "float"))])
        named = [name for name, _ in operands]
        kept = None if keeps is None else [n.text for n in keeps.names if self._known(n, [*named, RESULT], "operand")]
        source = self._source(python.file) if python is not None else None
        if not self.sound or flops is None or python is None or source is None:
            return None
        home = node.span.source.name
        path = os.path.join(folder_of(home), python.file.value)
        hashes = locks.Passed(self._digest(), locks.digest(source.text))
        return Declaration(
            self.name, operands, settings, result, dims, whole, linear, flops.count,
            None if kept is None else tuple(kept), python.name.text, os.path.relpath(path, folder_of(program)), path,
            hashes.source, hashes.declaration, home, self._locked() == hashes,
        )  # fmt: skip

    # --- the signature ---

    def _signature(self, type: ast.TensorType) -> Signature:
        axes = [*type.pending, *type.replicated, *(a for t in type.dims for f in t.factors for a in f.axes)]
        if axes:
            self.wrong("SH254", "a type of a declaration has a layout", axes[0].span, f"axis `{axes[0].text}`")
        if type.dtype is not None and type.dtype.text not in DTYPES:
            help = offer(type.dtype.text, DTYPES, f"the element types are {', '.join(DTYPES)}")
            self.wrong("SH257", f"there is no element type `{type.dtype.text}`", type.dtype.span, "unknown", help)
        entries: list[Any] = []
        for term in type.dims:
            factors = [f.dim for f in term.factors]
            numbers = [int(f.value) for f in factors if isinstance(f, ast.Number)]
            if numbers and len(factors) > 1:
                self.wrong("SH614", "a product of a signature is of names", term.span, "a number in it")
            elif any(isinstance(f, ast.Number) and (f.value != int(f.value) or f.value < 1) for f in factors):
                fact = f"a size of a signature is a whole number from 1 on, and `{term.span.text}` is not"
                self.wrong("SH614", fact, term.span, "no size")
            names = tuple(f.text for f in factors)
            entries.append((REST,) if term.ellipsis else numbers[0] if numbers else names)
        flat = [name for entry in entries if isinstance(entry, tuple) for name in entry]
        if len(set(flat)) < len(flat):
            self.wrong("SH614", f"a dim of `{self.name}` occurs twice in one type", type.span, "twice in here",
                       "give each dim a name of its own: a program may give one dim for both")  # fmt: skip
        return Signature(type.dtype.text if type.dtype is not None else "", tuple(entries))

    def _settings(self, formals: Sequence[ast.Formal]) -> Iterator[Param]:
        for formal in formals:
            kind = formal.kind
            if not isinstance(kind, ast.Name):
                continue
            if kind.text not in SETTINGS:
                help = "dims come with the tensors that have them" if kind.text == "dim" else ""
                help = help or offer(kind.text, SETTINGS, f"the kinds are {', '.join(SETTINGS)}, or a tensor type")
                self.wrong("SH208", f"there is no kind `{kind.text}` for an operator", kind.span, "unknown kind", help)
                continue
            default = ... if formal.default is None else self._default(formal.default, kind.text)
            yield Param(formal.name.text, kind.text, default)

    def _default(self, node: ast.Expr, kind: str) -> Any:
        negative = isinstance(node, ast.Unary) and node.op == "-" and kind in ("int", "float")
        inner = node.operand if isinstance(node, ast.Unary) and negative else node
        wanted = {"int": ast.Number, "float": ast.Number, "bool": ast.Bool, "str": ast.String}[kind]
        value: Any = getattr(inner, "value", None)
        if not isinstance(inner, wanted) or (kind == "int" and not isinstance(value, int)):
            self.wrong("SH614", f"the default `{node.span.text}` is no literal of kind {kind}", node.span, "here")
            return None
        if kind in ("bool", "str"):
            return value
        number = float(value) if kind == "float" else value
        return -number if negative else number

    def _formals(self, tensors: Sequence[ast.Formal]) -> None:
        if not tensors:
            self.wrong("SH614", f"`{self.name}` has no tensor to compute from", self.node.name.span, "no operand",
                       f"`operator {self.name}(x: [batch, d]) -> [batch, d]`, say")  # fmt: skip
        seen: set[str] = set()
        for formal in self.node.formals:
            name = formal.name.text
            if name in seen or keyword.iskeyword(name):
                why = "is declared twice" if name in seen else "is a keyword of Python, which computes it"
                self.wrong("SH614", f"`{name}` of `{self.name}` {why}", formal.name.span, "another name is needed")
            seen.add(name)
            if formal in tensors and formal.default is not None:
                fact = f"operand `{name}` of `{self.name}` has a default"
                self.wrong("SH614", fact, formal.default.span, "an operand is always given")
        last = max((at for at, f in enumerate(self.node.formals) if f in tensors), default=0)
        early = next((f for f in self.node.formals[:last] if f not in tensors), None)
        if early is not None:
            self.wrong("SH614", f"`{early.name.text}` comes before an operand", early.span, "put operands first")

    def _result(
        self, result: Signature, operands: Sequence[tuple[str, Signature]], made: Sequence[str], whole: Collection[str]
    ) -> None:  # fmt: skip
        given = {name for _, s in operands for name in s.names}
        span = self.node.result.span
        for name in dict.fromkeys(result.names):
            if name not in given and name not in made:
                help = "bind `...` in an operand first" if name == REST else f"declare it: `dim {name} = ...`"
                self.wrong("SH612", f"no operand of `{self.name}` has `{name}`", span, "in the result", help)
            elif name in made and name not in whole:
                fact = f"dim `{name}` is of the result alone, so no rank can compute a part of it"
                self.wrong("SH614", fact, span, "may not be split", f"`whole {', '.join([*sorted(whole), name])}`")

    # --- the clauses ---

    def _all(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in self.node.facts if isinstance(fact, kind)]

    def _once(self, kind: type[Any]) -> Any:
        """The clause of a kind; None without one, which is reported unless it is `keeps`."""
        found, (word, example) = self._all(kind), _CLAUSES[kind]
        if len(found) > 1:
            self.sound = False
            help = f"a declaration has one `{word}`"
            self.frame.context.sink.again("SH610", f"`{word}` is there twice", found[1].span, found[0].span, help)
        if not found and word != "keeps":
            help = f"add `{example.format(self.name)}`, say"
            self.wrong("SH610", f"operator `{self.name}` has no `{word}`", self.node.name.span, "declared here", help)
        return found[0] if found else None

    def _known(self, name: ast.Name, known: Collection[str], what: str) -> bool:
        if name.text not in known:
            listed = ", ".join(f"`{n}`" for n in known) or "none"
            help = offer(name.text, known, f"there is {listed}")
            self.wrong("SH612", f"operator `{self.name}` has no {what} `{name.text}`", name.span, "unknown name", help)
        return name.text in known

    def _dims(self, given: Sequence[str], settings: Sequence[Param]) -> tuple[tuple[str, ast.Expr], ...]:
        made: dict[str, ast.Expr] = {}
        numbers = [p.name for p in settings if p.kind in ("int", "float")]
        for entry in (entry for decl in self._all(ast.DimDecl) for entry in decl.entries):
            if entry.name.text in (*given, *made):
                self.wrong("SH614", f"dim `{entry.name.text}` is there already", entry.name.span, "declared again")
            self._expression(entry.value, [*(n for n in given if n != REST), *made, *numbers])
            made[entry.name.text] = entry.value
        return tuple(made.items())

    def _expression(self, node: ast.Expr, known: Collection[str]) -> None:
        match node:
            case ast.Name():
                self._known(node, known, "dim or number")
            case ast.Number():
                pass
            case ast.Unary(op="-"):
                self._expression(node.operand, known)
            case ast.Binary(op="+" | "-" | "*" | "/" | "//" | "%"):
                self._expression(node.left, known)
                self._expression(node.right, known)
            case _:
                help = "numbers, dims and settings, with `+ - * / // %`"
                self.wrong("SH614", f"`{node.span.text}` cannot stand in a declaration", node.span, "here", help)

    def _linear(self, operands: Sequence[tuple[str, Signature]]) -> Iterator[tuple[int, ...]]:
        names = [name for name, _ in operands]
        for clause in self._all(ast.Linear):
            at = [names.index(name.text) for name in clause.operands if self._known(name, names, "operand")]
            for place in at:
                dtype = operands[place][1].dtype
                if dtype and dtype not in FLOATS:
                    fact = f"`{names[place]}` is {dtype}, and no sum of it is ever pending"
                    self.wrong("SH614", fact, clause.span, "not linear")
            yield tuple(sorted(set(at)))

    # --- files ---

    def _source(self, file: ast.String) -> Source | None:
        """The Python file's text; None after a report."""
        name = file.value
        parts = name.split("/")
        home = self.node.span.source.name
        help = "the file lies beside the declaration or below it, and is named so: `python \"ops/conv.py\": conv`"
        odd = not name.endswith(".py") or "\\" in name or not name.isprintable()
        if odd or name.startswith("/") or {"..", ".", ""}.intersection(parts):
            fact = f"`{name}` is no Python file beside the declaration or below it"
            self.wrong("SH615", fact, file.span, "here", help)
            return None
        if not beneath(home, name):
            self.wrong("SH615", f"`{name}` is a link to a file elsewhere", file.span, "leads outside", help)
            return None
        found = self.frame.context.load(home, name, True)
        if isinstance(found, Source):
            return found
        self.wrong("SH615", f"`{name}` {found}", file.span, "not read", help)
        return None

    def _locked(self) -> locks.Passed | None:
        home = self.node.span.source.name
        lock = os.path.splitext(os.path.basename(home))[0] + ".lock"
        found = self.frame.context.load(home, lock, True)
        return locks.read(found.text).get(self.name) if isinstance(found, Source) else None

    def _digest(self) -> str:
        """The hash of the declaration's tokens: layout and comments do not count."""
        source = Source("", self.node.span.text)
        words = [source.text[start:end] for kind, start, end in Tokens(source, tables()) if kind != NEWLINE]
        return locks.digest("\n".join(words))
