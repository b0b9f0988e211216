"""`sizes (4, 20, 8)`: parts cut by hand, through plan, simulated ranks and the emitted text."""

from __future__ import annotations

import json

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.folds.report import report
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from tests.interpret.verify_plan import verify_plan

# A table and a head that share `vocab`, a bias, softmax and loss over it, and a relabelled copy.
PROGRAM = """
dim batch = 8, seq = 4, vocab = 32, width = 6, heads = 4, head_dim = 3

model Net {
  param table: [vocab, width] = normal(1.0)
  param head: [vocab, width] = normal(1.0)
  param bias: [vocab] = normal(1.0)
  param mix: [width, heads * head_dim] = normal(1.0)
  param scale: [heads, head_dim] = normal(1.0)

  forward(ids: i64[batch, seq]) -> [batch, seq, vocab] {
    rows = embedding(ids, table)
    h = rearrange(rows @ mix -> [batch, seq, heads, head_dim]) * scale
    back = einsum(rearrange(h -> [batch, seq, heads * head_dim]), mix -> [batch, seq, width])
    logits = einsum(tanh(back), head -> [batch, seq, vocab]) + bias
    return logits * softmax(logits, over = vocab)
  }
}

strategy s {
RULES
}

train {
  model = Net()
  data = random(ids: i64[batch, seq] < vocab, label: i64[batch, seq] < vocab, batches = 3)
  scores = model(ids)
  loss = cross_entropy(scores, label)
  metric right = mean(argmax(scores, over = vocab) == label)
  optimizer = adamw(lr = 0.1)
  steps = 3
}
"""


def planned(rules: str, ranks: int | None, text: str = PROGRAM) -> tuple[Plan | None, list[Diagnostic]]:
    sink = Sink()
    text = text.replace("RULES", "\n".join(f"  {line}" for line in rules.splitlines()))
    program = driver.check_source(Source("sizes.shard", text), sink)
    plan = driver.check_strategies(program, None, ranks, sink) if program is not None else None
    return plan, sink.found


def plan_of(rules: str, ranks: int, text: str = PROGRAM) -> Plan:
    plan, found = planned(rules, ranks, text)
    assert plan is not None, [d.message for d in found]
    return plan


STRATEGIES = [
    ("mesh mp = 3\nsplit vocab over mp sizes (4, 20, 8)", 3),
    ("mesh mp = 2\nsplit vocab over mp sizes (4, 28)", 2),
    ("mesh mp = 4\nsplit vocab over mp sizes (0, 31, 0, 1)", 4),
    ("mesh dp = 2, mp = 3\nsplit batch over dp\nsplit vocab over mp sizes (4, 20, 8)", 6),
    ("mesh dp = 2, mp = 3\nsplit batch over dp\nsplit vocab over mp sizes (4, 20, 8)\nzero 1 over dp", 6),
    ("mesh dp = 2, mp = 3\nsplit batch over dp\nsplit vocab over mp sizes (4, 20, 8)\nzero 2 over dp", 6),
    ("mesh dp = 2, mp = 3\nsplit batch over dp\nsplit vocab over mp sizes (4, 20, 8)\nzero 3 over dp", 6),
    ("mesh a = 2, b = 2\nsplit vocab over (a, b) sizes (1, 2, 3, 26)", 4),
    ("mesh dp = 3\nsplit batch over dp sizes (1, 5, 2)", 3),
    ("mesh dp = 2\nsplit batch over dp sizes (1, 7)\nzero 3 over dp", 2),
    ("mesh mp = 2\nsplit width over mp sizes (5, 1)", 2),
    ("mesh mp = 2\nsplit heads over mp sizes (3, 1)", 2),
    ("mesh dp = 2, mp = 2\nsplit batch over dp sizes (2, 6)\nsplit heads, vocab over mp\n", 4),
    ("mesh mp = 2\nsplit seq over mp sizes (3, 1)", 2),
    ("mesh mp = 2\nat table, rows: split vocab over mp sizes (30, 2)", 2),
    ("mesh mp = 3\nsplit vocab over mp sizes (4, 20, 8)\nat logits: [batch, seq, vocab]", 3),
    ("mesh mp = 3\nsplit vocab over mp sizes (4, 20, 8)\nat logits: [batch, seq, vocab@mp]", 3),
    ("mesh dp = 2, mp = 3\nsplit batch over dp\nsplit vocab over mp sizes (4, 20, 8)\nmicrobatches 2", 6),
]


@pytest.mark.parametrize(("rules", "ranks"), STRATEGIES)
def test_simulated_ranks_compute_what_one_device_does(rules: str, ranks: int) -> None:
    found = verify_plan(plan_of(rules, ranks), steps=3)
    assert found.ok, str(found.difference)


@pytest.mark.parametrize(("rules", "ranks"), STRATEGIES)
def test_the_plan_says_the_sizes_of_what_is_cut_so(rules: str, ranks: int) -> None:
    plan = plan_of(rules, ranks)
    found = report(plan)
    json.dumps(found)
    dims = {d.name: sizes for d, sizes in plan.sizes.items()}
    for parameter in found["parameters"]:
        value = next(v for v in plan.graph.values if v.path == parameter["path"])
        for term, axes, sizes in zip(value.type.dims, parameter["cut"], parameter["sizes"], strict=True):
            if len(term) == 1 and axes and term[0].name in dims:
                assert sizes == list(dims[term[0].name])


def test_each_place_of_the_emitted_program_has_the_sizes() -> None:
    plan = plan_of(STRATEGIES[0][0], 3)
    sink = Sink()
    files = driver.emit_plan(plan, sink)
    assert files is not None, [d.message for d in sink.found]
    text = files["main.py"]
    assert text.count("sizes={0: (4, 20, 8)}") == 3  # table, head, bias
    assert "vocab_start = (0, 4, 24)[mesh.mp.index]" in text


def test_memory_is_that_of_the_largest_part() -> None:
    even = report(plan_of("mesh mp = 2\nsplit vocab over mp", 2))["per_rank"]["parameters_bytes"]
    uneven = report(plan_of("mesh mp = 2\nsplit vocab over mp sizes (4, 28)", 2))["per_rank"]["parameters_bytes"]
    assert uneven - even == 12 * (6 + 6 + 1) * 4  # 12 rows more than 16 of two tables and a bias, in f32


MISTAKES = [
    (
        "split vocab over mp sizes (4, 20)", "SH324", "2 sizes for the 3 parts over axis `mp`",
        "give 3 sizes, a part each",
    ),
    (
        "split vocab over mp sizes (4, 20, 9)", "SH324", "the sizes (4, 20, 9) sum to 33, and `vocab` is 32",
        "`sizes (4, 20, 8)` would fit",
    ),
    (
        "split vocab over mp sizes (30, 20, 9)", "SH324", "the sizes (30, 20, 9) sum to 59, and `vocab` is 32",
        "they must sum to 32",
    ),
    (
        "split vocab over mp sizes (4, -20, 48)", "SH324", "`-20` is no size of a part",
        "write a number, a dim of the file, or an expression of them",
    ),
    (
        "split vocab over mp sizes (4, 20, width / 4)", "SH324", "`width / 4`, which is 1.5, is no size of a part",
        "write a number, a dim of the file, or an expression of them",
    ),
    (
        "split vocab over mp sizes (4, 20, 8)\nat logits: split vocab over mp sizes (8, 20, 4)", "SH309",
        "two rules cut `vocab` in different sizes", "a dim has one list of sizes: keep one of them",
    ),
    (
        "split vocab over mp sizes (4, 20, 8)\nat logits: split vocab over mp uneven", "SH309",
        "two rules cut `vocab` in different sizes", "a dim has one list of sizes: keep one of them",
    ),
    (
        "split batch over mp sizes (4, 2, 2)\nmicrobatches 2", "SH411",
        "`batch` is cut in sizes by hand, and microbatches are all alike", "leave out the sizes, or the microbatches",
    ),
]  # fmt: skip


@pytest.mark.parametrize("ranks", [3, None])
@pytest.mark.parametrize(("rules", "code", "message", "help"), MISTAKES)
def test_mistakes_say_the_numbers(rules: str, code: str, message: str, help: str, ranks: int | None) -> None:
    _, found = planned(f"mesh mp = 3\n{rules}", ranks)
    assert [(d.code, d.message, d.help) for d in found] == [(code, message, (help,))]


def test_a_product_with_such_a_dim_is_not_cut() -> None:
    _, found = planned("mesh mp = 2\nsplit heads over mp sizes (3, 1)\nat h: [batch, seq, heads@mp, head_dim]", 2)
    assert [d.code for d in found] in ([], ["SH324"])


def test_sizes_may_be_expressions() -> None:
    plan = plan_of("mesh mp = 3\nsplit vocab over mp sizes (heads, 5 * heads, 2 * mp + 2)", 3)
    assert list(plan.sizes.values()) == [(4, 20, 8)]
