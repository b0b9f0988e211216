"""The examples of specs/python.md, specs/bind.md and specs/torch_checkpoints.md are true."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parent.parent.parent


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testfile(str(ROOT / "specs" / "python.md"), module_relative=False)
    assert found.attempted == 8 and found.failed == 0


@pytest.mark.parametrize("page", ["bind", "torch_checkpoints"])
def test_a_page_of_torch(page: str) -> None:
    """In a process of its own, which forks ranks."""
    script = f"import doctest, sys; sys.exit(doctest.testfile('specs/{page}.md', module_relative=False).failed)"
    done = warm.run([sys.executable, "-c", script], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
