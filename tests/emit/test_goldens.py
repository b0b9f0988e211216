"""Each golden is what is emitted today, is Python, and calls only what the runtime and torch have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.emit.cases import CASES, Case, emitted

by_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@by_case
def test_golden(case: Case) -> None:
    files = emitted(case)
    kept = {name: case.golden(name).read_text() for name in files}
    assert files == kept, "run `python -m tests.emit.bless` and review the difference"


@by_case
def test_golden_is_well_formed(case: Case) -> None:
    for name, text in emitted(case).items():
        compile(text, name, "exec")
        assert all(len(line) <= 120 for line in text.splitlines())
        assert not any(line != line.rstrip() for line in text.splitlines())
        assert text.endswith("\n") and not text.endswith("\n\n")


@by_case
def test_every_called_name_exists(case: Case) -> None:
    import torch
    import torch.nn.functional as F

    from shardlang import runtime as rt

    homes = {"rt": rt, "torch": torch, "F": F}
    text = "\n".join(emitted(case).values())
    for home, name in _attributes(ast.parse(text)):
        if home in homes:
            assert hasattr(homes[home], name), f"{home}.{name}"


@by_case
def test_what_a_file_uses_is_what_it_imports(case: Case) -> None:
    for name, text in emitted(case).items():
        tree = ast.parse(text)
        imports = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        bound = {alias.asname or alias.name for alias in imports}
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert bound <= used and used & {"torch", "F"} <= bound, name


def _attributes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr
