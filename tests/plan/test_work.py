"""The operations of a step, against torch's own count of them and against the published formula."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from shardlang.folds.flops import peak_flops, step_flops, step_tokens
from shardlang.plan.plan import Plan
from tests.emit import sources

ROOT = Path(__file__).resolve().parents[2]


def _planned(name: str, strategy: str | None, ranks: int, **sizes: str) -> Plan:
    return sources.planned((ROOT / "examples" / name).read_text(), ranks, strategy, settings=sizes)


def test_convolutions_as_torch_counts_them() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10), nn.LogSoftmax(1),
    )  # fmt: skip
    with FlopCounterMode(display=False) as counter:
        net(torch.ones(128, 1, 28, 28)).sum().backward()
    for ranks in (1, 4):
        plan = _planned("mnist_ddp.shard", "ddp" if ranks > 1 else None, ranks)
        assert step_flops(plan.graph) == counter.get_total_flops()


@pytest.mark.parametrize("strategy", ["fsdp", "large"])
def test_a_transformer_by_the_formula(strategy: str) -> None:
    """6 operations a token and weight of a product; under the mask 6 of each pair's width a layer, for two products."""
    plan = _planned("llama.shard", strategy, 512)
    batch, seq, d, layers, ffn, vocab, kv = 1024, 8192, 4096, 32, 14336, 128256, 1024
    weights = layers * (2 * d * d + 2 * d * kv + 3 * d * ffn) + d * vocab
    pairs = batch * seq * (seq + 1) // 2
    assert step_flops(plan.graph) == 6 * weights * batch * seq + 6 * 2 * layers * pairs * d
    assert step_tokens(plan) == batch * seq
    assert peak_flops(plan) == 989 * 10**12


def test_what_is_not_said_is_not_guessed() -> None:
    plan = _planned("llama.shard", "fsdp", 512, **{"train.precision": "f32"})
    assert peak_flops(plan) == 0
    assert step_tokens(_planned("mnist_ddp.shard", "ddp", 4)) == 0
