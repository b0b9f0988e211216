"""Compiles the hostile program of a seed and its plain twin, and says what of the hostile one is more than text.

What must hold: each emitted file parses, has one structure with its twin's (equal syntax trees but for what strings
say and how things are called), and its lines end at the same places for all who read it.
"""

from __future__ import annotations

import ast
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.diagnostics.rendered import rendered
from shardlang.sources.source import Source
from tests.hostile.programs import Written, program
from tests.hostile.texts import Hostile, Plain

SAME, REFUSED, FAILED = "same", "refused", "failed"
# What emitted programs call by these names themselves; `mesh2` and so on for further factorings.
_OWN = re.compile(
    r"rt|torch|F|math|p|mesh\d*|program|parameters|states|stages|schedule|stage\d+|rows|totals|forward|evaluate|finish"
    r"|before_microbatch|before_step|conclude|float|int|len|max|min|sum|range|slice|tuple|__name__"
)


@dataclass(frozen=True)
class Outcome:
    """`kind`: one of the three above. files: how many were emitted. detail: what was wrong, or why it was refused."""

    seed: int
    kind: str
    files: int = 0
    detail: str = ""


def trial(seed: int) -> Outcome:
    """The outcome of a seed."""
    hostile, plain = program(seed, Hostile(seed)), program(seed, Plain())
    try:
        found, why = compiled(hostile)
        twins, error = compiled(plain)
        if twins is None or found is None:
            assert twins is not None or plain.refusable, f"the twin is refused: {error}"
            return Outcome(seed, REFUSED if hostile.refusable else FAILED, 0, why)
        wrong = _differences(found, twins)
    except (InternalError, AssertionError, OSError, ValueError) as fault:
        return Outcome(seed, FAILED, 0, f"{type(fault).__name__}: {fault}")
    return Outcome(seed, FAILED if wrong else SAME, len(found), wrong)


def compiled(written: Written) -> tuple[Mapping[str, str] | None, str]:
    """The emitted files of all plans of a program; None, and why, where it is refused."""
    files: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        for name, text in written.beside.items():
            if "\0" not in name:
                Path(folder, name).write_text(text, "utf-8", newline="")
        sink = Sink()
        source = Source(os.path.join(folder, written.name), written.text)
        checked = driver.check_source(source, sink, written.overrides)
        for strategy, ranks in written.plans if checked is not None else ():
            plan = driver.plan_program(checked, strategy, ranks, sink)
            emitted = driver.emit_plan(plan, sink) if plan is not None else None
            files |= {f"{strategy} {name}": text for name, text in (emitted or {}).items()}
    for form in ("full", "concise", "json", "sarif"):
        shown = rendered(sink.found, form)
        assert shown.replace("\n", "").isprintable(), f"{form} shows {shown!r}"
    return (None, f"{sink.found[0].code}: {sink.found[0].message}") if sink.failed else (files, "")


def _differences(found: Mapping[str, str], twins: Mapping[str, str]) -> str:
    """What is wrong with the hostile files, beside their twins."""
    if len(found) != len(twins):
        return f"{len(found)} files, and {len(twins)} of the twin"
    for text, twin in zip(found.values(), twins.values(), strict=True):
        if not text.replace("\n", "").isprintable() or text.splitlines() != text.removesuffix("\n").split("\n"):
            return "a character that is not to be there"
        try:
            tree = ast.parse(text.encode())
        except (SyntaxError, ValueError) as error:
            return f"no Python: {error.args[0]}"
        if structure(tree) != structure(ast.parse(twin)):
            return "another structure than its twin's"
    return ""


def structure(tree: ast.Module) -> str:
    """A file without what its strings say and its names are. What is imported, and read of modules, stays."""
    return ast.dump(_Bare().visit(tree))


class _Bare(ast.NodeTransformer):
    def __init__(self) -> None:
        self.bound: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """What a function binds is called as the program likes, but for what each emitted file has."""
        outside = self.bound
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        inner = {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node}
        named = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        self.bound = outside | ((stored | inner | named) - {"p", "rows", "totals"})
        self.generic_visit(node)
        self.bound = outside
        node.name = self._bare(node.name)
        return node

    def _bare(self, name: str) -> str:
        return name if name not in self.bound and _OWN.fullmatch(name) else "_"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """The functions of the file that stages share are called after models."""
        names = [ast.alias("_") if node.module == "layers" and name.asname is None else name for name in node.names]
        return ast.ImportFrom(node.module, names, node.level)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._bare(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._bare(node.arg))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._member(node, node.value) or self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return self._member(node, node.value) or self.generic_visit(node)

    def _member(self, node: ast.expr, owner: ast.expr) -> ast.AST | None:
        """A parameter or a group, however it is written: `p.w`, `p["__class__"]`, `mesh["lambda"]`."""
        while isinstance(owner, ast.Attribute | ast.Subscript):
            owner = owner.value
        if not isinstance(owner, ast.Name) or owner.id in self.bound or not re.fullmatch(r"p|mesh\d*", owner.id):
            return None
        of_group = owner.id != "p" and isinstance(node, ast.Attribute) and node.value is not owner
        return None if of_group else ast.Name(owner.id)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Axes are arguments of a mesh by name, or by `**`, and totals those of the functions that take them."""
        if ast.unparse(node.func) == "rt.Mesh":
            sizes = [k.value for k in node.keywords if k.arg is not None]
            sizes += [v for k in node.keywords if isinstance(k.value, ast.Dict) for v in k.value.values]
            node.keywords = [ast.keyword("_", size) for size in sizes]
        return self.generic_visit(node)
