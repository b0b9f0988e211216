"""Strategies of transformers that cannot be: one error that names the dims, and what would fit."""

from __future__ import annotations

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from tests.interpret.verify_plan import verify_plan
from tests.models.planned import HERE, program_of

LLAMA = (HERE / "llama.shard").read_text()


def tried(rules: str, ranks: int) -> Sink:
    sink, start = Sink(), LLAMA.index("strategy dp")
    text = LLAMA[:start] + f"strategy s {{\n  {rules}\n}}\n\n" + LLAMA[LLAMA.index("train {") :]
    plan = driver.plan_program(program_of(text), "s", ranks, sink)
    if plan is not None:
        report = verify_plan(plan)
        assert report.ok, str(report.difference)
    return sink


@pytest.mark.parametrize(
    ("rules", "ranks", "messages", "help"),
    [
        ("mesh tp = auto\n  split heads, kv_heads over tp", 8,
         ["SH304: dim `kv_heads` does not divide over axis `tp`"], "`tp` could be 1, 2 or 4"),
        ("mesh tp = auto\n  split heads over tp", 8,
         ["SH304: dim `kv_heads` does not divide over axis `tp`"], "`tp` could be 1, 2 or 4"),
        ("mesh a = 2, b = 2\n  split heads over a\n  split kv_heads over b", 4,
         ["SH309: `attention` takes `kv_heads` and `heads` together, and they are split differently"],
         "split both over `b`"),
        ("mesh tp = auto\n  split heads, seq over tp", 4,
         ["SH310: axis `tp` would cut two dims of `blocks[0].attention.q.return`: `seq` and `heads`"], "`tp?`"),
    ],
)  # fmt: skip
def test_mistakes(rules: str, ranks: int, messages: list[str], help: str) -> None:
    sink = tried(rules, ranks)
    assert [f"{d.code}: {d.message}" for d in sink.found][: len(messages)] == messages
    assert help in " ".join(sink.found[0].help)


@pytest.mark.parametrize(
    ("rules", "ranks"),
    [
        ("mesh tp = auto\n  split heads over tp", 4),
        ("mesh tp = auto\n  split kv_heads over tp", 2),
        ("mesh a = 4, b = 2\n  split heads over (a, b)", 8),
        ("mesh a = 2, b = 2\n  split heads, kv_heads over (a, b)\n  at blocks[1]: split heads, kv_heads over a", 4),
        ("mesh a = 2, b = 2\n  split kv_heads over a\n  at blocks[0].attention: split heads over (a, b)", 4),
        ("mesh tp = 2, cp = 2\n  at blocks[*].attention.mixed: [batch, heads@tp, seq@cp, head_dim]", 4),
        ("mesh tp = 2\n  at blocks[0].attention.queries: [batch, heads, seq@tp, head_dim]", 2),
        ("mesh a = 2, b = 3\n  split seq over (a, b) uneven", 6),
    ],
)
def test_what_fits(rules: str, ranks: int) -> None:
    assert not tried(rules, ranks).found
