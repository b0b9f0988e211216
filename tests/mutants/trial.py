"""Tries one fault after the other on a copy of the tree: is the suite's failure one, and for the right reason?

The copy is what is imported (PYTHONPATH), so the tree itself never holds a fault.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.fault import Fault

PARTS = ("shardlang", "tests", "specs", "stdlib", "starts", "grammars", "examples", "pyproject.toml", "README.md")
# But for the test that each fault can be made, which is no longer so once one is made, and that of links, some of which
# lead out of PARTS.
WHOLE_SUITE = ("tests", "specs", "--ignore=tests/mutants", "--ignore=tests/documents/test_links.py")
# A fault that makes the code no program at all says nothing about the suite.
NO_PROGRAM = re.compile(r"\b(?:Syntax|Indentation|Import|ModuleNotFound|Name|UnboundLocal)Error\b")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_REASON = re.compile(r"^E +(\S.*)$", re.MULTILINE)
SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verdict`: caught, survived, or broken (the tests fail, but not because of what the fault means).

    by: the test that fails. reason: its message. seconds: until it failed.
    """

    fault: Fault
    verdict: str
    by: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the tree, in which files are changed and put back."""

    root: Path

    @classmethod
    def of(cls, tree: Path, folder: Path) -> Copy:
        """Copies what the suite needs of `tree` to `folder`."""
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        for name in PARTS:
            source = tree / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignore)
            elif source.exists():
                shutil.copy(source, folder / name)
        copy = cls(folder)
        copy._check()
        return copy

    def _check(self) -> None:
        """The copy must be what its tests import."""
        found = self.run("-c", "import shardlang; print(shardlang.__file__)").stdout.strip()
        if Path(found) != self.root / "shardlang" / "__init__.py":
            raise RuntimeError(f"the tests of {self.root} would import {found}")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python in the copy."""
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=environment, capture_output=True, text=True,
            timeout=SECONDS,
        )  # fmt: skip

    def tests(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pytest", "-x", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", *arguments)

    def write(self, file: str, text: str) -> None:
        """A file of the package; its compiled form goes too, since a change within a second may not be noticed."""
        path = self.root / "shardlang" / file
        path.write_text(text, "utf-8")
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def attempt(copy: Copy, fault: Fault, whole_suite: bool = True) -> Outcome:
    """Makes the fault, runs the tests that should catch it, then the whole suite, and puts the file back."""
    before = (copy.root / "shardlang" / fault.file).read_text("utf-8")
    begun = time.monotonic()
    suites = [[f"tests/{test}" for test in fault.tests]]
    suites += [list(WHOLE_SUITE)] if whole_suite else []
    try:
        copy.write(fault.file, fault.mutated(copy.root))
        for tests in suites:
            done = copy.tests(tests)
            if done.returncode != 0:
                return _judged(fault, done, time.monotonic() - begun)
    except subprocess.TimeoutExpired:
        return Outcome(fault, "broken", "", f"the tests do not end within {SECONDS} s", time.monotonic() - begun)
    finally:
        copy.write(fault.file, before)
    return Outcome(fault, "survived", "", "", time.monotonic() - begun)


def _judged(fault: Fault, done: subprocess.CompletedProcess[str], seconds: float) -> Outcome:
    """A failed test is a catch, unless what failed is that there is no program."""
    failed = _FAILED.search(done.stdout)
    no_program = NO_PROGRAM.search(done.stdout)
    told = _REASON.search(done.stdout)
    by, reason = failed[1] if failed else "", told[1] if told else "\n".join(done.stdout.splitlines()[-3:])
    caught = done.returncode == 1 and failed is not None and no_program is None
    if no_program is not None:
        reason = no_program[0]
    return Outcome(fault, "caught" if caught else "broken", by, reason, seconds)


def baseline(copy: Copy, faults: Sequence[Fault]) -> str:
    """What fails of the named tests without any fault; "" where nothing does."""
    tests = sorted({f"tests/{test}" for fault in faults for test in fault.tests})
    wider = {t for t in tests if "::" not in t}
    done = copy.tests([t for t in tests if t in wider or t.partition("::")[0] not in wider])
    return "" if done.returncode == 0 else done.stdout[-4000:]
