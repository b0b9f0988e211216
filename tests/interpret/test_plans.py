"""Plans on simulated ranks against one device: the examples under several strategies and numbers of ranks."""

from __future__ import annotations

import pytest

from tests.emit.sources import planned
from tests.interpret.verify_plan import verify_plan
from tests.plan.small import EXAMPLES, example
from tests.spent import at_most

POSITIONAL = "strategy s {\n  at h: shard ((2, 4), (4, 1))\n}\n"
CHAIN = "strategy s {\n  at y: shard ((4, 1), (1, 1))\n  at z: shard ((1, 1), (1, 4))\n}\n"
DATA = "strategy s {\n  mesh dp = auto\n  split batch over dp\n}\n"
TENSOR = "strategy s {\n  mesh mp = auto\n  split hidden over mp\n}\n"
BOTH = "strategy s {\n  mesh dp = auto, mp = 2\n  split batch over dp\n  split hidden over mp\n}\n"
ZERO = "strategy s {{\n  mesh dp = auto\n  split batch over dp\n  zero {} over dp\n}}\n"


def agrees(text: str, ranks: int, steps: int = 2) -> None:
    report = verify_plan(planned(text, ranks), steps=steps)
    assert report.ok, str(report.difference)
    assert report.gradients > 3


def test_quickstart() -> None:
    agrees(example("quickstart", POSITIONAL), 8)


def test_dense_chain() -> None:
    agrees(example("dense_chain", CHAIN), 4)


# `mp = 2` takes two ranks.
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        (strategy, ranks)
        for strategy in (DATA, BOTH, ZERO.format(1), ZERO.format(2), ZERO.format(3))
        for ranks in (1, 2, 8, 64)
        if (strategy, ranks) != (BOTH, 1)
    ],
)
def test_digits(strategy: str, ranks: int) -> None:
    agrees(example("digits", strategy), ranks)


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_digits_tensor_parallel(ranks: int) -> None:
    agrees(example("digits", TENSOR), ranks)


@pytest.mark.parametrize(("name", "strategy", "ranks"), [
    ("operator_parallel", "mixed", 8), ("dense_chain", "named", 4), *(("mnist_ddp", "ddp", n) for n in (1, 2, 8, 64)),
])  # fmt: skip
def test_other_examples_under_their_own_strategies(name: str, strategy: str, ranks: int) -> None:
    report = verify_plan(planned((EXAMPLES / f"{name}.shard").read_text(), ranks, strategy), steps=2)
    assert report.ok, str(report.difference)


def test_512_ranks_take_seconds() -> None:
    with at_most(30):
        agrees(example("digits", BOTH, batch="1024"), 512, steps=1)


TIED = """
dim batch = 8, vocab = 16, width = 4

model Net {
  param table: [vocab, width] = normal(0.5)

  forward(ids: i64[batch]) -> [batch, vocab] {
    e = embedding(ids, table)
    h = tanh(e)
    scores = einsum(h, table -> [batch, vocab])
    return scores
  }
}

strategy s {
  mesh mp = 4
  at e: [batch@mp, width]
  at scores: split vocab over mp
}

train {
  model = Net()
  data = random(ids: i64[batch] < 16, label: i64[batch] < 16, batches = 1)
  loss = cross_entropy(model(ids), label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def test_a_tied_table_is_cut_for_one_use_and_gathered_for_the_other() -> None:
    """Stored as the head cuts it: its gradient comes back along the gather, so no axis is left to reduce over."""
    found = planned(TIED, 4)
    (table,) = found.params.values()
    assert (table.stored.dims, table.reduce_axes) == ((("mp",), ()), ())
    report = verify_plan(found, steps=2)
    assert report.ok, str(report.difference)
