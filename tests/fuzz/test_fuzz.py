"""A seeded part of the fuzzing, what it once found, and that the fuzzer itself sees what it looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Diagnostic, Label, Sink
from shardlang.sources.files import decoded
from shardlang.sources.source import Source, Span
from tests.fuzz.found import FOUND
from tests.fuzz.kinds import KINDS, counts, made
from tests.fuzz.mutate import ROOT
from tests.fuzz.trial import told


def fuzzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The fuzzer in a process of its own: its limit on memory must not count what the tests have loaded."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_part_of_the_inputs() -> None:
    result = fuzzed("--count", "250", "--seed", "2026")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, list[list[str]]]:
    result = fuzzed("--found")
    found: Mapping[str, list[list[str]]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", list(FOUND))
def test_what_was_found(name: str, outcomes: Mapping[str, list[list[str]]]) -> None:
    assert outcomes[name] == []
    case, expected = FOUND[name]
    if expected is not None:
        sink = Sink()
        program = driver.check_source(Source("main.shard", decoded(case.text)), sink, case.overrides)
        if program is not None and case.ranks is not None:
            driver.check_strategies(program, None, case.ranks, sink)
        assert tuple(f"{d.code}: {d.message}" for d in sink.found) == expected


@pytest.mark.parametrize("kind", list(KINDS))
def test_inputs_are_always_the_same(kind: str) -> None:
    assert [made(kind, 3, i) for i in range(6)] == [made(kind, 3, i) for i in range(6)]


def test_all_kinds_have_their_share() -> None:
    shares = counts(200_000)
    assert sum(shares.values()) == 200_000
    assert min(shares.values()) >= 2_000


def test_wrong_diagnostics_are_seen() -> None:
    place = Span(Source("x.shard", "dim"), 1, 9)
    wrong = [Diagnostic("SH999", "no page"), Diagnostic("SH101", "", Label(place)), Diagnostic("SH101", "m" * 2_000)]
    assert {fault.sort for fault in told(wrong)} == {"code", "span", "length"}
