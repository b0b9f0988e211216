"""The parts that all declarations of Python functions have: settings with literal defaults, types
without layouts, clauses, the Python file and the lock beside the declaration.

Texts are read for their hashes; none is ever run here."""

from __future__ import annotations

import keyword
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardlang.check.context import Frame
from shardlang.extensions import locks
from shardlang.facts.dtypes import DTYPES
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import Param
from shardlang.ops.declared import REST, Signature
from shardlang.sources.files import beneath, folder_of
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.tables import tables
from shardlang.syntax.tokens import NEWLINE, TokenStream

SETTINGS = ("int", "float", "bool", "str")


class DeclarationReader:
    """Reads one declaration; `sound` until something is reported. what: its kind, in words. kinds:
    those of its settings. clauses: node -> its word and an example; all but `optional` are due."""

    what = "operator"
    kinds: Sequence[str] = SETTINGS
    clauses: Mapping[type, tuple[str, str]] = {}
    optional: Sequence[str] = ()

    def __init__(self, node: ast.Operator | ast.Own, frame: Frame) -> None:
        self.node, self.frame, self.sound = node, frame, True
        self.name = node.name.text

    @property
    def article(self) -> str:
        return "an" if self.what[0] in "aeiou" else "a"

    def wrong(self, code: str, fact: str, span: Span, label: str = "", help: str = "") -> None:
        self.sound = False
        self.frame.wrong(code, fact, span, label, help=help)

    def _names(self, formals: Sequence[ast.Formal], reserved: Collection[str] = ()) -> None:
        """Reports names that Python could not be given, or that calls have already."""
        seen: set[str] = set()
        for name in (formal.name for formal in formals):
            why = "is declared twice" if name.text in seen else ""
            why = why or ("is a keyword of Python, which computes it" if keyword.iskeyword(name.text) else "")
            why = why or ("is an argument of every source" if name.text in reserved else "")
            if why:
                self.wrong("SH614", f"`{name.text}` of `{self.name}` {why}", name.span, "another name is needed")
            seen.add(name.text)

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
            if kind.text not in self.kinds:
                self._no_kind(kind)
                continue
            default = ... if formal.default is None else self._default(formal.default, kind.text)
            yield Param(formal.name.text, kind.text, default)

    def _no_kind(self, kind: ast.Name) -> None:
        help = "dims come with the tensors that have them" if kind.text == "dim" and self.what == "operator" else ""
        further = ", or a tensor type" if self.what == "operator" else ""
        help = help or offer(kind.text, self.kinds, f"the kinds are {', '.join(self.kinds)}{further}")
        fact = f"there is no kind `{kind.text}` for {self.article} {self.what}"
        self.wrong("SH208", fact, kind.span, "unknown kind", help)

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

    def _all(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in self.node.facts if isinstance(fact, kind)]

    def _once(self, kind: type[Any]) -> Any:
        """The clause of a kind; None without one, which is reported unless it is optional."""
        found, (word, example) = self._all(kind), self.clauses[kind]
        if len(found) > 1:
            self.sound = False
            help = f"a declaration has one `{word}`"
            self.frame.context.sink.again("SH610", f"`{word}` is there twice", found[1].span, found[0].span, help)
        if not found and word not in self.optional:
            help = f"add `{example.format(self.name)}`, say"
            fact = f"{self.what} `{self.name}` has no `{word}`"
            self.wrong("SH610", fact, self.node.name.span, "declared here", help)
        return found[0] if found else None

    # --- files ---

    def _source(self, file: ast.String) -> Source | None:
        """The Python file's text; None after a report."""
        name = file.value
        parts = name.split("/")
        home = self.node.span.source.name
        help = 'the file lies beside the declaration or below it, and is named so: `python "ops/conv.py": conv`'
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

    def _definition(self, python: ast.Python | None, program: str) -> dict[str, Any] | None:
        """The facts that a declaration has of its Python function; None after a report. program:
        paths are relative to its folder."""
        source = self._source(python.file) if python is not None else None
        if python is None or source is None:
            return None
        home = self.node.span.source.name
        path = os.path.join(folder_of(home), python.file.value)
        hashes = locks.LockEntry(self._digest(), locks.digest(source.text))
        verified = self.what not in ("operator", "optimizer") or self._locked() == hashes
        return {
            "name": self.name, "function": python.name.text, "file": os.path.relpath(path, folder_of(program)),
            "path": path, "source": hashes.source, "digest": hashes.declaration, "home": home, "verified": verified,
        }  # fmt: skip

    def _locked(self) -> locks.LockEntry | None:
        home = self.node.span.source.name
        lock = os.path.splitext(os.path.basename(home))[0] + ".lock"
        found = self.frame.context.load(home, lock, True)
        return locks.read(found.text).get(self.name) if isinstance(found, Source) else None

    def _digest(self) -> str:
        """The hash of the declaration's tokens: layout and comments do not count."""
        source = Source("", self.node.span.text)
        words = [source.text[start:end] for kind, start, end in TokenStream(source, tables()) if kind != NEWLINE]
        return locks.digest("\n".join(words))
