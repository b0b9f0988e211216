"""Plans on simulated ranks against one device: graphs of the examples under several strategies and numbers of ranks."""

from __future__ import annotations

import time

import pytest
from building import chain, digits, planned, quickstart

from shardlang.interpret.compare import verify_plan
from shardlang.plan.plan import Plan

POSITIONAL = "strategy s {\n  at h: shard ((2, 4), (4, 1))\n}\n"
CHAIN = "strategy s {\n  at y: shard ((4, 1), (1, 1))\n  at z: shard ((1, 1), (1, 4))\n}\n"
DATA = "strategy s {\n  mesh dp = auto\n  split batch over dp\n}\n"
TENSOR = "strategy s {\n  mesh mp = auto\n  split hidden over mp\n}\n"
BOTH = "strategy s {\n  mesh dp = auto, mp = 2\n  split batch over dp\n  split hidden over mp\n}\n"
ZERO = "strategy s {{\n  mesh dp = auto\n  split batch over dp\n  zero {} over dp\n}}\n"


def agrees(graph: object, strategy: str, ranks: int, steps: int = 2) -> None:
    found = planned(graph, strategy, ranks)  # type: ignore[arg-type]
    assert isinstance(found, Plan), found
    report = verify_plan(found, steps=steps)
    assert report.ok, str(report.difference)
    assert report.gradients > 3


def test_quickstart() -> None:
    agrees(quickstart(), POSITIONAL, 8)


def test_dense_chain() -> None:
    agrees(chain(), CHAIN, 4)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("strategy", [DATA, BOTH, ZERO.format(1), ZERO.format(2), ZERO.format(3)])
def test_digits(strategy: str, ranks: int) -> None:
    if ranks == 1 and strategy == BOTH:
        pytest.skip("mp = 2 is more than one rank")
    agrees(digits(), strategy, ranks)


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_digits_tensor_parallel(ranks: int) -> None:
    agrees(digits(), TENSOR, ranks)


def test_512_ranks_take_seconds() -> None:
    start = time.perf_counter()
    agrees(digits(1024), BOTH, 512, steps=1)
    assert time.perf_counter() - start < 30
