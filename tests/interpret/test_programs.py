"""The programs that this project is measured by, under their strategies, on simulated ranks against one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emit import sources
from tests.interpret.verify_plan import verify_plan

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CASES = [
    ("quickstart", "propagated", (8,)),
    ("operator_parallel", "mixed", (8,)),
    ("dense_chain", "rows_then_columns", (4,)),
    ("dense_chain", "named", (4,)),
    ("digits", "data_parallel", (1, 2, 4, 8, 16, 64)),
    ("digits", "tensor_parallel", (1, 2, 8, 32)),
    ("digits", "both", (2, 4, 8, 32)),
    ("digits", "sharded", (1, 2, 4, 8, 64)),
    ("mnist_ddp", "ddp", (1, 2, 4, 8, 16, 64)),
]
FLAT = [(name, strategy, ranks) for name, strategy, counts in CASES for ranks in counts]


@pytest.mark.parametrize(("name", "strategy", "ranks"), FLAT)
def test_program_is_the_same_on_ranks(name: str, strategy: str, ranks: int) -> None:
    file = EXAMPLES / f"{name}.shard"
    report = verify_plan(sources.planned(file.read_text(), ranks, strategy, str(file)), steps=2)
    assert report.ok, str(report.difference)
    assert report.largest < 1e-9
