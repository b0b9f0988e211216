"""An `operator` of a file -> the operator that programs call, its declaration checked.

Reads the text of the Python file, for its hash, and the lock beside the declaration. Neither is
ever run here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.files.declarations import DeclarationReader
from shardlang.check.values import UNKNOWN, FileScope, OperatorDecl
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import Param
from shardlang.ops.declared import GROUP, REST, RESULT, Declaration, Signature, operator_of
from shardlang.syntax import ast
from shardlang.types.dim import FLOATS

# How many sums a declaration may count: each is a collective of every call.
_SUMS = 64


def declare_operator(node: ast.Operator, frame: Frame, program: str) -> Any:
    """The declared operator, UNKNOWN after a report. program: paths are relative to its folder."""
    reader = _OperatorReader(node, frame)
    found = reader.read(program)
    return UNKNOWN if found is None else OperatorDecl(node, found, operator_of(found))


def operators_of(scope: FileScope) -> list[OperatorDecl]:
    """The operators that a file itself declares, in order."""
    found = (value for value in scope.names.values() if isinstance(value, OperatorDecl))
    return [value for value in found if value.node.span.source is scope.source]


class _OperatorReader(DeclarationReader):
    """Reads one declaration of an operator."""

    node: ast.Operator
    clauses: Mapping[type, tuple[str, str]] = {
        ast.Flops: ("flops", "flops 2 * batch * d"),
        ast.Python: ("python", 'python "my_ops.py": {}'),
        ast.Keeps: ("keeps", "keeps x"),
        ast.Reduces: ("reduces", "reduces 1, 1"),
    }
    optional = ("keeps", "reduces")

    def read(self, program: str) -> Declaration | None:
        node = self.node
        tensors = [f for f in node.formals if isinstance(f.kind, ast.TensorType)]
        operands = tuple((f.name.text, self._signature(f.kind)) for f in tensors if isinstance(f.kind, ast.TensorType))
        settings = tuple(self._settings(node.formals))
        result = self._signature(node.result)
        self._formals(tensors)
        clauses = {kind: self._once(kind) for kind in self.clauses}
        dims = self._dims([name for _, s in operands for name in s.names], settings)
        given = [name for _, signature in operands for name in signature.names if name != REST]
        known = list(dict.fromkeys([*given, *(name for name, _ in dims)]))
        whole = frozenset(name.text for c in self._all(ast.Whole) for name in c.dims if self._known(name, known, "dim"))
        self._result(result, operands, [name for name, _ in dims], whole)
        inside = self._inside(given, whole)
        reduces = self._reduces(clauses[ast.Reduces], inside)
        linear = tuple(self._linear(operands))
        flops, keeps, python = clauses[ast.Flops], clauses[ast.Keeps], clauses[ast.Python]
        if flops is not None:
            self._expression(flops.count, [*known, *(p.name for p in settings if p.kind in ("int", "float"))])
        named = [name for name, _ in operands]
        kept = None if keeps is None else [n.text for n in keeps.names if self._known(n, [*named, RESULT], "operand")]
        definition = self._definition(python, program)
        if not self.sound or flops is None or definition is None:
            return None
        return Declaration(
            operands=operands, settings=settings, result=result, dims=dims, whole=whole, inside=inside,
            reduces=reduces, linear=linear, flops=flops.count, keeps=None if kept is None else tuple(kept),
            **definition,
        )  # fmt: skip

    # --- the signature ---

    def _formals(self, tensors: Sequence[ast.Formal]) -> None:
        if not tensors:
            self.wrong("SH614", f"`{self.name}` has no tensor to compute from", self.node.name.span, "no operand",
                       f"`operator {self.name}(x: [batch, d]) -> [batch, d]`, say")  # fmt: skip
        self._names(self.node.formals)
        for formal in tensors:
            if formal.default is not None:
                fact = f"operand `{formal.name.text}` of `{self.name}` has a default"
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

    def _inside(self, given: Collection[str], whole: Collection[str]) -> frozenset[str]:
        """The dims over which the function itself sums."""
        found = [name for clause in self._all(ast.Inside) for name in clause.dims]
        for name in found:
            if self._known(name, given, "dim of an operand") and name.text in whole:
                help = f"leave it out of `whole` if `{self.name}` sums over it by `{GROUP}`"
                self.wrong("SH614", f"dim `{name.text}` is both `whole` and `inside`", name.span, "here", help)
        taken = next((formal for formal in self.node.formals if found and formal.name.text == GROUP), None)
        if taken is not None:
            fact = f"`{GROUP}` is the name by which `{self.name}` gets the ranks that share `{found[0].text}`"
            self.wrong("SH614", fact, taken.name.span, "the name is taken", "another name is needed here")
        return frozenset(name.text for name in found)

    def _reduces(self, clause: ast.Reduces | None, inside: Collection[str]) -> tuple[int, int]:
        """How many sums that are, forward and backward; (0, 0) where there are none."""
        if clause is None:
            if inside:
                dims = next(iter(self._all(ast.Inside)))
                help = "add `reduces 1, 1`, say: how many sums it makes, forward and backward"
                self.wrong("SH610", f"operator `{self.name}` has `inside`, and no `reduces`", dims.span, "here", help)
            return 0, 0
        if not inside:
            help = "`inside d`, say, names the dims of these sums"
            self.wrong("SH610", f"operator `{self.name}` has `reduces`, and no `inside`", clause.span, "here", help)
        counts = []
        for node in (clause.forward, clause.backward):
            value = node.value if isinstance(node, ast.Number) else None
            if not isinstance(value, int) or not value <= _SUMS:
                help = f"`reduces` takes two whole numbers from 0 to {_SUMS}: `reduces 2, 1`, say"
                self.wrong("SH614", f"`{node.span.text}` is no number of sums", node.span, "here", help)
            counts.append(value if isinstance(value, int) else 0)
        return counts[0], counts[1]

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
