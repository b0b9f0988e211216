"""Tries one fault after the other on a copy of the tree: is the suite's failure one, and for the right reason?

The copy is what is imported (PYTHONPATH), so the tree itself never holds a fault. Each pytest is forked from a Python
that has torch imported (`tests/warm.py`).
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
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest

from tests import warm
from tests.mutants.fault import Fault

PARTS = ("shardlang", "tests", "specs", "stdlib", "starts", "grammars", "examples", "pyproject.toml", "README.md")
# But for the test that each fault can be made, which is no longer so once one is made, and that of links, some of which
# lead out of PARTS.
WHOLE_SUITE = ("tests", "specs", "--ignore=tests/mutants", "--ignore=tests/documents/test_links.py")
# A fault that makes the code no program at all says nothing about the suite.
NO_PROGRAM = re.compile(r"\b(?:Syntax|Indentation|Import|ModuleNotFound|Name|UnboundLocal)Error\b")
# A test's parameters may hold " - " as well.
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\[\n]+?(?:\[.*?\](?= - |$))?)(?: - .*)?$", re.MULTILINE)
_REASON = re.compile(r"^E +(\S.*)$", re.MULTILINE)
SECONDS = 1800
_NO_SUCH_TEST = (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED)


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
        return warm.run(
            [sys.executable, *arguments], cwd=self.root, env=environment, timeout=SECONDS, kind=warm.Bare
        )  # fmt: skip

    def tests(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", *arguments)

    def write(self, file: str, text: str) -> None:
        """A file of the package; its compiled form goes too, since a change within a second may not be noticed."""
        path = self.root / "shardlang" / file
        path.write_text(text, "utf-8")
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def attempt(copy: Copy, fault: Fault, known: str = "", whole_suite: bool = True) -> Outcome:
    """Makes the fault, runs the tests that should catch it, then the whole suite, and puts the file back.

    known: the test that caught it the last time, which is run before all others.
    """
    before = (copy.root / "shardlang" / fault.file).read_text("utf-8")
    begun = time.monotonic()
    suites = [[known]] if known else []
    suites += [[f"tests/{test}"] for test in fault.tests]
    suites += [list(WHOLE_SUITE)] if whole_suite else []
    try:
        copy.write(fault.file, fault.mutated(copy.root))
        for tests in suites:
            done = copy.tests("-x", *tests)
            if done.returncode != 0 and not (tests == [known] and done.returncode in _NO_SUCH_TEST):
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


def confirmed(copy: Copy, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes, in which a fault is broken whose test fails without any fault as well."""
    failed: dict[str, str] = {}
    named = sorted({o.by for o in outcomes if o.verdict == "caught"})
    for _, group in groupby(named, lambda test: test.partition("::")[0]):
        failed |= _failing(copy, list(group))
    return [
        replace(o, verdict="broken", reason=f"without the fault: {failed[o.by]}")
        if o.verdict == "caught" and o.by in failed else o
        for o in outcomes
    ]  # fmt: skip


def _failing(copy: Copy, tests: Sequence[str]) -> dict[str, str]:
    """Those of some tests of one file that fail, and what pytest says of them."""
    done = copy.tests(*tests)
    if done.returncode == 0:
        return {}
    if len(tests) == 1:
        return {tests[0]: done.stdout[-1000:]}
    return {test: said for each in tests for test, said in _failing(copy, [each]).items()}
