"""Each script in benchmarks/ that makes a claim is run by `python -m benchmarks`, and has its line in the README."""

from __future__ import annotations

import re

from benchmarks.__main__ import HERE, NAMES


def test_scripts() -> None:
    assert {path.stem for path in HERE.glob("*.py") if path.read_text().startswith('"""Claim: ')} == set(NAMES)


def test_listed() -> None:
    claims, _, _ = (HERE / "README.md").read_text().partition("## Measured")
    assert tuple(re.findall(r"^\| `(\w+)` \|", claims, re.MULTILINE)) == NAMES
