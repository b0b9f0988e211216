"""Declarations of everything but operators that a program may call (optimizers, learning-rate
schedules, data sources, starts of parameters): one declaration each, which the checker reads and
the reference is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.ops.declaration import Param
from shardlang.records import dataclass
from shardlang.syntax import ast


def called(node: ast.Expr) -> str:
    """The name that an expression calls; "" where it is no call of a name."""
    return node.callee.text if isinstance(node, ast.Call) and isinstance(node.callee, ast.Name) else ""


@dataclass(frozen=True)
class Declared:
    """`doc`: a sentence or a formula a line. `params`: as an operator's."""

    doc: str
    params: tuple[Param, ...] = ()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Argument -> its default; Ellipsis where it must be given."""
        return {param.name: param.default for param in self.params}
