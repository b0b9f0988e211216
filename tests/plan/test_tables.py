"""What an optimizer of rows does to a table never follows from the strategy: gradients are rows, or the plan is
refused.
"""

from __future__ import annotations

import re

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import emit_plan
from shardlang.folds.memory import memory
from shardlang.folds.report import report
from shardlang.plan.plan import Plan
from tests.emit.sources import planned as planned_text
from tests.emit.sources import tried
from tests.plan.test_exchange import PROGRAM, RULES

PLAIN = "  mesh dp = auto\n  split batch over dp\n"
WHOLE = PLAIN + "  at table: [vocab@dp, width]\n"
ELSEWHERE = PLAIN + "  at table: place on host\n  at rows: place on device\n"
ZERO = PLAIN + "  zero {} over dp\n"


LOW = {"train.precision": "bf16"}


def planned(rules: str, kind: str, settings: dict[str, str] | None = None) -> tuple[Plan | None, Sink]:
    return tried(PROGRAM.replace(RULES, rules).replace("lazy_adam", kind), 4, settings=settings)


def table(rules: str, kind: str, settings: dict[str, str] | None = None) -> tuple[bool, int]:
    """Whether its gradient is rows, and its level of ZeRO."""
    found, sink = planned(rules, kind, settings)
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


def lookup(rules: str, kind: str) -> tuple[str, str, int]:
    """In a run of bf16: the type in which the table is read, the line that looks up, and the bytes of copies."""
    found, sink = planned(rules, kind, LOW)
    assert found is not None, sink.found
    files = emit_plan(found, sink)
    assert files is not None, sink.found
    text = re.sub(r"\(\n +([^\n]+?),?\n +\)", r"(\1)", files["main.py"])  # a statement of several lines
    (line,) = (line for line in text.splitlines() if "embedding(ids" in line and "#" not in line[:8])
    dtype = next(v.type.dtype for v in found.graph.values if v.path == "table")
    copies = memory(found).copies - 2 * 8  # w is [8, 1]
    return dtype, line.partition(" = ")[2].partition("  #")[0], copies


@pytest.mark.parametrize(
    ("rules", "kind", "text"),
    [
        (RULES, "lazy_adam", "rt.exchanged_embedding(ids, p.table, 400, mesh.dp, dtype=torch.bfloat16, sparse=True)"),
        (RULES, "adam", "rt.exchanged_embedding(ids, p.table, 400, mesh.dp, dtype=torch.bfloat16)"),
        (PLAIN, "adam", "F.embedding(ids, p.table).to(torch.bfloat16)"),
        (PLAIN, "lazy_adam", "rt.sparse_embedding(ids, p.table).to(torch.bfloat16)"),
        (
            PLAIN.replace("batch", "vocab"), "adam",
            "rt.embedding(ids, p.table, start=mesh.dp.index * 100).to(torch.bfloat16)",
        ),
    ],
)  # fmt: skip
def test_in_bf16_rows_are_cast_and_no_table(rules: str, kind: str, text: str) -> None:
    assert lookup(rules, kind) == ("f32", text, 0)
    assert table(rules, kind, LOW) == (kind == "lazy_adam", 0)


@pytest.mark.parametrize(
    ("rules", "copies"), [(ZERO.format(1), 400 * 8 * 2), (ZERO.format(3), None), (WHOLE, 100 * 8 * 2)]
)
def test_a_table_that_is_sent_in_bf16_has_a_copy(rules: str, copies: int | None) -> None:
    """ZeRO 1 gathers what has been updated, ZeRO 3 and a layout of its own what is read: 2 bytes an element."""
    dtype, line, held = lookup(rules, "adam")
    assert dtype == "bf16" and line.startswith("F.embedding(ids, ") and "bfloat16" not in line
    assert copies is None or held == copies


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
