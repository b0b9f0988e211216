"""Operators that users declare are held to their declarations: wrong ones are refused, with the split that breaks
each, and right ones pass in seconds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shardlang.interpret.trials.declared import verify
from tests.extensions.cases import RIGHT, WRONG, Example

LIMIT = 5.0  # seconds of a processor


@pytest.mark.parametrize("example", RIGHT, ids=lambda example: example.name)
def test_right_declarations_pass_in_time(example: Example, tmp_path: Path) -> None:
    declaration = example.declaration(tmp_path)
    verify(declaration)  # torch loads much of itself with the first gradient
    begun = time.process_time()
    verdict = verify(declaration)
    assert verdict.refused == "" and verdict.sets >= 2 and verdict.tried >= 7, verdict
    assert time.process_time() - begun < LIMIT
    assert verdict.free == example.free


@pytest.mark.parametrize("example", WRONG, ids=lambda example: example.name)
def test_wrong_declarations_are_refused_with_what_breaks_them(example: Example, tmp_path: Path) -> None:
    verdict = verify(example.declaration(tmp_path))
    assert verdict.refused and example.says in verdict.refused, verdict.refused


def test_there_are_twenty_wrong_ones_that_a_split_breaks_and_eight_right_ones() -> None:
    assert len(RIGHT) >= 8 and len(WRONG) >= 20
