"""Layers that are called otherwise than a layer of the library -> steps of the model around them:
tables of which one row alone is read, products with a matrix of another layer."""

from __future__ import annotations

from shardlang.importing.steps.nodes import PARAM, Traced
from shardlang.importing.steps.unfold import is_number


def tables(traced: Traced) -> None:
    """Changes the steps in place."""
    for table, readers in traced.readers().items():
        home = table.name.rpartition(".")[0]
        one = all(node.op == "aten.embedding" and node.args[0] is table and is_number(node.args[1]) for node in readers)
        if table.op == PARAM and home and one:
            for node in readers:
                if node.scopes and node.scopes[-1].path == home:
                    node.scopes = node.scopes[:-1]
    for node in traced.nodes:
        linear = node.op == "aten.linear" and node.scopes and node.scopes[-1].kind.endswith(".Linear")
        if linear and not node.args[1].name.startswith(f"{node.scopes[-1].path}."):
            node.scopes = node.scopes[:-1]
