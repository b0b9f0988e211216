"""The examples of specs/python.md are true."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testfile(str(ROOT / "specs" / "python.md"), module_relative=False)
    assert found.attempted == 8 and found.failed == 0
