"""A seeded part of the generated pairs, the same in every run: simulated ranks, and a few on real gloo ranks.

`python -m tests.generated` runs as many as one likes. What it found is in tests/plan/test_generated_faults.py and with
the parts that were at fault.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.source import Source
from tests.generated import program
from tests.generated.cases import AGREED, REFUSED, case, reached
from tests.generated.real import Real
from tests.generated.tally import INTERNAL, REGISTRY

FIRST = 700_000
EACH = 10


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("part", range(5))
def test_generated_pairs_agree_on_simulated_ranks(part: int) -> None:
    outcomes = [case(seed) for seed in range(FIRST + part * EACH, FIRST + (part + 1) * EACH)]
    failed = [f"seed {o.seed}, {o.ranks} ranks: {o.kind}: {o.detail}" for o in outcomes if o.failed]
    assert not failed, "\n".join(failed)
    assert sum(o.kind == AGREED for o in outcomes) >= EACH // 2


@pytest.mark.slow
def test_generated_pairs_agree_on_real_ranks(tmp_path: Path) -> None:
    real = Real(tmp_path)
    try:
        # 2 and 4 ranks by turns.
        outcomes = [real.case(seed) for seed in range(FIRST, FIRST + 12) if seed % 4 < 2]
    finally:
        real.close()
    failed = [f"seed {o.seed}, {o.ranks} ranks: {o.kind}: {o.detail}" for o in outcomes if o.failed]
    assert not failed, "\n".join(failed)
    assert {o.kind for o in outcomes} <= {AGREED, REFUSED}


def test_every_operator_is_generated_with_and_without_a_gradient() -> None:
    forward: set[str] = set()
    backward: set[str] = set()
    for seed in range(FIRST, FIRST + 150):
        sink = Sink()
        checked = driver.check_source(Source("generated.shard", program.write(random.Random(seed)).text("")), sink)
        assert checked is not None, (seed, [d.message for d in sink.found])
        here, back = reached(checked.graph)
        forward |= here
        backward |= back
    written = set(REGISTRY) - INTERNAL
    assert written <= forward, written - forward
    differentiable = {n for n in written if REGISTRY[n].differentiable}
    assert differentiable <= backward, differentiable - backward


def test_a_seed_gives_the_same_pair_again() -> None:
    assert program.write(random.Random(5)) == program.write(random.Random(5))
    assert case(FIRST + 1) == case(FIRST + 1)
