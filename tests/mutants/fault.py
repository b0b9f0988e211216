"""A fault as data: one exact text of a file and what stands there instead."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Stale(Exception):
    """The code has moved on: a fault's text is not there exactly once, or its tests are gone."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`file` below shardlang/, in which `old` stands once and becomes `new`. `breaks`: what is then wrong.

    tests: arguments of pytest, below tests/, that should catch it, tried in their order before the whole suite is.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self, root: Path) -> str:
        """The file's text with the fault; Stale where it cannot be made, or would be no Python."""
        text = (root / "shardlang" / self.file).read_text("utf-8")
        count = text.count(self.old)
        if count != 1:
            raise Stale(f"{self.name}: {self.old!r} is {count} times in shardlang/{self.file}, and is to be there once")
        changed = text.replace(self.old, self.new)
        ast.parse(changed)
        return changed

    def checked(self, root: Path) -> str:
        """The file's text with the fault; Stale unless its tests are there too."""
        for test in self.tests:
            path, _, name = test.partition("::")
            file = root / "tests" / path
            if not file.exists() or (name and f"def {name.partition('[')[0]}(" not in file.read_text("utf-8")):
                raise Stale(f"{self.name}: there is no tests/{test}")
        return self.mutated(root)
