"""The list of faults keeps up with the code: each can still be made, and the tests that should catch it are there."""

from __future__ import annotations

import ast
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.mutants.__main__ import known
from tests.mutants.fault import ROOT, Fault, Stale
from tests.mutants.faults import FAULTS
from tests.mutants.pairs import FOUND
from tests.mutants.trial import NO_PROGRAM, Copy, Outcome, attempt, confirmed


def statements(text: str) -> list[tuple[list[str], ast.stmt]]:
    """Each statement of a module with its lines."""
    lines = text.splitlines()
    return [(lines[each.lineno - 1 : each.end_lineno], each) for each in ast.parse(text).body]


@pytest.mark.parametrize("file", sorted({fault.file for fault in FAULTS}))
def test_faults_of_a_file_can_be_made(file: str) -> None:
    there = statements((ROOT / "shardlang" / file).read_text("utf-8"))
    for fault in (fault for fault in FAULTS if fault.file == file):
        pairs = zip_longest(statements(fault.checked(ROOT)), there, fillvalue=([], ast.Pass()))
        differ = (ast.dump(new) != ast.dump(old) for (mine, new), (theirs, old) in pairs if mine != theirs)
        assert any(differ), fault.name


def test_names_are_unique_and_there_are_enough() -> None:
    assert [name for name, count in Counter(f.name for f in FAULTS).items() if count > 1] == []
    assert len(FAULTS) >= 60


def test_the_faults_that_pairs_find_are_there() -> None:
    assert set(FOUND) <= {f.name for f in FAULTS}


def test_what_caught_faults_is_of_faults_that_are_there() -> None:
    assert set(known()) <= {f.name for f in FAULTS}


def test_a_text_that_is_not_there_once_is_told(tmp_path: Path) -> None:
    (tmp_path / "shardlang").mkdir()
    (tmp_path / "shardlang" / "a.py").write_text("x = 1\ny = 1\n")
    for old, count in (("z", 0), ("1", 2)):
        with pytest.raises(Stale, match=f"is {count} times"):
            Fault("f", "", "a.py", old, "2", ()).mutated(tmp_path)
    assert Fault("f", "", "a.py", "x = 1", "x = 2", ()).mutated(tmp_path) == "x = 2\ny = 1\n"
    with pytest.raises(Stale, match=r"there is no tests/nowhere\.py"):
        Fault("f", "", "a.py", "x = 1", "x = 2", ("nowhere.py",)).checked(tmp_path)


def test_what_is_no_program_is_no_catch() -> None:
    assert NO_PROGRAM.search("E   NameError: name 'x' is not defined")
    assert not NO_PROGRAM.search("E   AssertionError: the gradient differs")


PACKAGE = "def double(x):\n    return 2 * x\n"
TESTS = "from shardlang.a import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
CATCHES = "tests/test_a.py::test_double"


def copied(tmp_path: Path, tests: str = TESTS) -> Copy:
    """A copy, in tmp_path/copy, of a tree of one function and one test."""
    tree, folder = tmp_path / "tree", tmp_path / "copy"
    for path, text in {
        "shardlang/__init__.py": "", "shardlang/a.py": PACKAGE, "tests/test_a.py": tests, "pyproject.toml": "",
    }.items():  # fmt: skip
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    folder.mkdir()
    return Copy.of(tree, folder)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [("2 * x", "3 * x", "caught"), ("2 * x", "x * 2", "survived"), ("2 * x", "2 * y", "broken")],
)
def test_a_fault_is_tried_in_a_copy(tmp_path: Path, old: str, new: str, verdict: str) -> None:
    copy = copied(tmp_path)
    outcome = attempt(copy, Fault("f", "", "a.py", old, new, ("test_a.py",)), whole_suite=False)
    assert (outcome.verdict, outcome.by) == (verdict, "" if verdict == "survived" else CATCHES)
    assert (tmp_path / "tree/shardlang/a.py").read_text() == (copy.root / "shardlang/a.py").read_text() == PACKAGE
    assert confirmed(copy, [outcome]) == [outcome]


def test_what_caught_it_the_last_time_comes_first(tmp_path: Path) -> None:
    copy = copied(tmp_path, "from pathlib import Path\n" + TESTS + "\n\ndef test_more():\n    Path('more').touch()\n")
    fault = Fault("f", "", "a.py", "2 * x", "3 * x", ("test_a.py",))
    for last in (CATCHES, "tests/test_a.py::test_more", "tests/test_a.py::test_gone", "tests/test_gone.py"):
        outcome = attempt(copy, fault, last, whole_suite=False)
        assert (outcome.verdict, outcome.by) == ("caught", CATCHES)
        assert (copy.root / "more").exists() == (last != CATCHES)


def test_a_test_that_fails_without_the_fault_catches_nothing(tmp_path: Path) -> None:
    copy = copied(tmp_path, TESTS + "\n\ndef test_false():\n    assert False\n")
    fault = Fault("f", "", "a.py", "2 * x", "3 * x", ())
    both = [Outcome(fault, "caught", test, "", 0) for test in (CATCHES, "tests/test_a.py::test_false")]
    assert [o.verdict for o in confirmed(copy, both)] == ["caught", "broken"]
