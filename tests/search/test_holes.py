"""Strategies that leave something open: how they parse, what checking says of them, and that none is planned."""

from __future__ import annotations

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.format.format import format_file
from shardlang.plan.strategy.holes import holes
from shardlang.sources.source import Source
from tests.search.exhaustive import PROGRAM

USED = ["split batch over dp", "split classes over tp"]
STAGED = ["mesh pp = 2, dp = auto", "split batch over dp"]
HOLES = {
    "axes": (["mesh dp = auto, tp = auto", *USED], 2),
    "axes and more": (["mesh dp = auto, tp = auto", *USED, "zero auto over dp"], 3),
    "split": (["mesh dp = auto, tp = 2", "split batch over dp", "split auto over tp"], 1),
    "split at": (["mesh dp = auto, tp = 2", "split batch over dp", "at hidden[*]: split auto over tp"], 1),
    "stages": ([*STAGED, "stages over pp auto"], 1),
    "virtual is given": ([*STAGED, "stages over pp auto, virtual = 2"], 1),
    "microbatches": ([*STAGED, "stages over pp balanced", "microbatches auto", 'schedule "1f1b"'], 1),
    "schedule": ([*STAGED, "stages over pp balanced", "microbatches 4", "schedule auto"], 1),
    "zero": (["mesh dp = auto", "split batch over dp", "zero auto over dp"], 1),
    "zero at": (["mesh dp = auto", "split batch over dp", "at up: zero auto over dp"], 1),
    "bucket": (["mesh dp = auto", "split batch over dp", "bucket gradients auto"], 1),
    "recompute": (["mesh dp = auto", "split batch over dp", "recompute auto"], 1),
    "recompute at": (["mesh dp = auto", "split batch over dp", "at hidden[*]: recompute auto"], 1),
    "place": (["mesh dp = auto", "split batch over dp", "place auto"], 1),
}


def source(rules: list[str]) -> Source:
    return Source("t.shard", PROGRAM.format(batch=16, d=32, layers=4, rules="\n".join(f"  {rule}" for rule in rules)))


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_checks_formats_and_is_not_planned(name: str) -> None:
    rules, count = HOLES[name]
    text, sink = source(rules), Sink()
    program = driver.check_source(text, sink)
    assert program is not None
    driver.check_strategies(program, None, None, sink)
    assert not sink.found and format_file(driver.parse_source(text, sink)) == text.text
    assert len(holes(program.strategies[0], {})) == count
    assert driver.plan_program(program, None, 8, sink) is None
    assert [d.code for d in sink.found] == ["SH325"]


def test_one_axis_takes_what_is_left() -> None:
    sink = Sink()
    program = driver.check_source(source(["mesh dp = auto, tp = 2", *USED]), sink)
    assert program is not None and not holes(program.strategies[0], {})
    assert holes(program.strategies[0], {"tp": 0}), "--set s.tp=auto leaves two open"
    assert driver.plan_program(program, None, 4, sink) is not None


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (["mesh dp = auto", "split batch over dp", "zero auto"], "SH327"),
        (["mesh dp = auto", "split batch over dp", "zero auto over dp, keep"], "SH321"),
        (["mesh dp = auto", "split batch over dp", "zero auto over mp"], "SH306"),
        (["mesh dp = auto, tp = 2", "split batch over dp", "split auto over tp sizes (1, 2)"], "SH327"),
        (["mesh dp = auto, tp = auto", "split batch over dp", "microbatches auto"], "SH322"),
        (["mesh pp = 2, dp = auto", "split batch over dp", "stages over pp auto", "zero auto over pp"], "SH426"),
        (["mesh pp = 16, dp = auto", "split batch over dp", "stages over pp auto"], "SH425"),
        (["mesh dp = auto", "split batch over dp", "schedule auto"], "SH440"),
        (["mesh dp = auto", "split batch over dp", "microbatches auto", "microbatches 4"], "SH321"),
        (["mesh dp = auto", "split batch over dp", "at nothing: zero auto over dp"], "SH308"),
    ],
)
def test_mistakes_beside_holes_are_told(rules: list[str], code: str) -> None:
    sink = Sink()
    program = driver.check_source(source(rules), sink)
    if program is not None:
        driver.check_strategies(program, None, None, sink)
    assert [d.code for d in sink.found] == [code]
