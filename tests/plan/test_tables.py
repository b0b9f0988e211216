"""What an optimizer of rows does to a table never follows from the strategy: gradients are rows, or the plan is
refused.
"""

from __future__ import annotations

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import check_source, plan_program
from shardlang.plan.bytes.report import report
from shardlang.plan.plan import Plan
from shardlang.source import Source
from tests.emit.sources import planned as planned_text
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


# Lookups whose ids are no data, and one that no gradient comes back from.
PLACES = """\
dim batch = 8, seq = 4, d = 2, places = 6

model Net {
  param table: [places, d] = zeros()

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return x + LOOKED_UP
  }
}

strategy s {
  mesh dp = 2
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, seq, d], ids: i64[batch, seq] < places, batches = 2)
  loss = mean(square(model(x)))
  metric others = mean(embedding(ids, model.table))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
GPT2 = """\
use std.gpt2: GPT2

dim batch = 8, seq = 4

strategy s {
  mesh dp = 2
  split batch over dp
}

train {
  model = GPT2(vocab = 16, d = 8, heads = 2, layers = 1, max_len = 6)
  data = random(ids: i64[batch, seq] < 16, label: i64[batch, seq] < 16, batches = 2)
  loss = cross_entropy(model(ids), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def kept(text: str) -> tuple[set[str], int]:
    """The parameters whose gradient is rows, and the bytes of all gradients on a rank, as `shardc plan` shows them."""
    page = report(planned_text(text, 2))
    return {p["path"] for p in page["parameters"] if p["rows"]}, page["per_rank"]["gradients_bytes"]


@pytest.mark.parametrize(
    ("looked_up", "rows"),
    [
        ("embedding(arange(seq), table)", 4),
        ("embedding(argmax(one_hot(arange(seq), places), over = places), table)", 4),
        ("embedding(arange(seq), table) + detach(embedding(arange(seq), table))", 4),
        ("embedding(arange(seq), table) + embedding(arange(seq) + 1, table)", 6),  # all that there are
    ],
)
def test_rows_by_numbers_that_are_no_data(looked_up: str, rows: int) -> None:
    a_row_and_its_number = 2 * 4 + 8
    assert kept(PLACES.replace("LOOKED_UP", looked_up)) == ({"table"}, rows * a_row_and_its_number)


def test_the_positions_of_gpt2_under_sgd() -> None:
    rows, gradients = kept(GPT2)
    assert rows == {"embed.positions"} and gradients > 0
