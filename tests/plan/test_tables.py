"""What an optimizer of rows does to a table never follows from the strategy: gradients are rows, or the plan is
refused.
"""

from __future__ import annotations

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import check_source, plan_program
from shardlang.plan.plan import Plan
from shardlang.source import Source
from tests.plan.test_exchange import PROGRAM, RULES

WHOLE = "  mesh dp = auto\n  split batch over dp\n  at table: [vocab@dp, width]\n"
ELSEWHERE = "  mesh dp = auto\n  split batch over dp\n  at table: place on host\n  at rows: place on device\n"
ZERO = "  mesh dp = auto\n  split batch over dp\n  zero {} over dp\n"


def planned(rules: str, kind: str) -> tuple[Plan | None, Sink]:
    sink = Sink()
    text = PROGRAM.replace(RULES, rules).replace("lazy_adam", kind)
    program = check_source(Source("clicks.shard", text), sink)
    assert program is not None, sink.found
    return plan_program(program, None, 4, sink), sink


def table(rules: str, kind: str) -> tuple[bool, int]:
    """Whether its gradient is rows, and its level of ZeRO."""
    found, sink = planned(rules, kind)
    assert found is not None, sink.found
    param = next(p for v, p in found.params.items() if found.graph.values[v].path == "table")
    return param.sparse, param.zero


@pytest.mark.parametrize("level", [1, 2, 3])
def test_zero_leaves_out_tables_of_which_rows_alone_change(level: int) -> None:
    assert table(ZERO.format(level), "lazy_adam") == (True, 0)
    assert table(ZERO.format(level), "ftrl") == (True, 0)
    assert table(ZERO.format(level), "adam") == (False, level)
    assert table(ZERO.format(level), "adagrad") == (False, level)  # zeros change nothing


@pytest.mark.parametrize("rules", [WHOLE, ELSEWHERE])
def test_a_table_that_is_brought_whole_to_its_lookup(rules: str) -> None:
    for kind in ("lazy_adam", "ftrl"):
        found, sink = planned(rules, kind)
        assert found is None
        (mistake,) = sink.found
        assert mistake.code == "SH400"
        assert "`table`" in mistake.message and f"`{kind}`" in mistake.message
    assert table(rules, "adam") == (False, 0)
    assert table(rules, "adagrad") == (False, 0)
