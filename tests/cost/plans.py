"""Every example with every strategy, planned."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from shardlang.plan.plan import Plan
from tests.emit import sources
from tests.plan.small_llama import llama

ROOT = Path(__file__).resolve().parents[2]
# (file, strategy, ranks)
EXAMPLES = (
    ("dense_chain", "rows_then_columns", 4), ("dense_chain", "named", 4), ("digits", "data_parallel", 4),
    ("digits", "tensor_parallel", 4), ("digits", "both", 4), ("digits", "sharded", 4), ("llama", "fsdp", 512),
    ("llama", "large", 512), ("mnist_ddp", "ddp", 4), ("operator_parallel", "mixed", 8),
    ("quickstart", "propagated", 8),
    ("transformer", "data_parallel", 4), ("transformer", "model_parallel", 4), ("transformer", "three_d", 8),
    ("wide_deep", "host_device", 4), ("wide_deep", "split_tables", 4),
)  # fmt: skip


@cache
def planned(name: str, strategy: str, ranks: int) -> Plan:
    """The plan of an example."""
    path = ROOT / "examples" / f"{name}.shard"
    return plan_of(path.read_text(), strategy, ranks, path.name)


def plan_of(text: str, strategy: str | None, ranks: int, name: str = "a.shard", **sizes: str) -> Plan:
    """The plan of a program."""
    return sources.planned(text, ranks, strategy, name=name, settings=sizes)


# Rules for a small Llama (tests/plan/small_llama.py), and ranks.
_PIPELINE = "mesh pp = 2, dp = 2; split batch over dp; stages over pp balanced; "
_CONTEXT = "mesh dp = 2, cp = 2; split batch over dp; split seq over cp; "
_TENSOR = "mesh dp = 2, tp = 2; split batch over dp; split heads, kv_heads, ffn, vocab over tp; "
RULES = (
    (_TENSOR + "at blocks[*]: recompute", 4),
    (_CONTEXT + "zero 3 over (dp, cp), keep; microbatches 2", 4),
    (_CONTEXT + "at blocks[*]: attend evenly", 4),
    (_CONTEXT + "at blocks[*]: attend in a ring", 4),
    ("mesh dp = 4; split batch over dp; zero 2 over dp; microbatches 2; at train.loss: chunks 4", 4),
    (_PIPELINE + 'microbatches 4; schedule "zero_bubble"', 4),
    (_PIPELINE + 'microbatches 4; zero 3 over dp; schedule "1f1b"; at blocks[*]: recompute', 4),
    ("mesh dp = 4; split batch over dp; zero 1 over dp", 4),
    (_PIPELINE + 'microbatches 4; zero 3 over dp; schedule "gpipe"', 4),
    (_PIPELINE.replace("balanced", "balanced, virtual = 2") + 'microbatches 4; zero 3 over dp; schedule "zbv"', 4),
)


@cache
def small(rules: str, ranks: int) -> Plan:
    """The plan of a small Llama."""
    return plan_of(llama(rules.replace("; ", "\n  "), "bf16"), "s", ranks)


PLANS: list[Callable[[], Plan]] = [partial(planned, *e) for e in EXAMPLES] + [partial(small, *e) for e in RULES]
NAMES = [*(" ".join(map(str, each)) for each in EXAMPLES), *(rules for rules, _ in RULES)]
