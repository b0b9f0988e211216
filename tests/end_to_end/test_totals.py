"""Losses and metrics that are made of sums over the whole batch, without and with microbatches, under every schedule:
on real ranks they are one rank's, and so on simulated ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.generated import roads
from tests.generated.cases import AGREED, judged
from tests.generated.real import compared
from tests.generated.worlds import World

pytestmark = pytest.mark.slow

PROGRAM = """
use std.nn: Linear

dim batch = 8, seq = 4, classes = 6

model Net(d: dim = 4) {
  param place: [seq, d] = normal(0.5)
  layer one = Linear(classes, d)
  layer mid = Linear(d, d)
  layer nxt = Linear(d, d)
  layer two = Linear(d, classes)

  forward(x: [batch, seq, classes]) -> [batch, seq, classes] {
    shift = tanh(place)
    h = one(x) + shift
    g = h |> relu |> mid |> tanh
    k = nxt(g) + shift
    return two(k)
  }
}

strategy s {
RULES
}

train {
  model = Net()
  data = random(x: [batch, seq, classes], label: i64[batch, seq] < classes, w: [batch, seq], batches = 2)
  scores = model(x)
  masked = cast(label != 0, f64)
  n = sum(masked)
  right = cast(argmax(scores, over = classes) == label, f64) * masked
  mu = mean(w)
LOSS
  metric accuracy = sum(right) / n
  metric wrong = 1 - sum(right) / n
  metric share = n / 32
  metric inverse = 1 / n
  metric half = 0.5 * loss
  metric perplexity = exp(loss)
  metric both = exp(loss) * sum(right) / n
  metric of_first_stage = exp(loss) * mean(square(model.one.weight)) * mean(model.shift) / n
  metric before_the_mask = mean(square(model.h)) / mean(masked)
  metric bounded = maximum(n / 4, 2) / minimum(sum(w), 100) + where(n > 3, sum(w), 0.5)
  metric negative = (2 - n) * (-1) / (1 + sum(label))
  metric mean_weight = mu
MORE
  optimizer = sgd(lr = 0.1)
  precision = f64
  steps = 2
}
"""
FIELDS = "x: [batch, seq, classes], label: i64[batch, seq] < classes, w: [batch, seq]"
MORE = (
    f"  eval = random({FIELDS}, batches = 2, seed = 3)",
    # totals of what depends on a total, which `eval` cannot accumulate
    "  metric deviation = sqrt(mean(square(w - mu))) / mu\n  metric of_a_total = sum(w / (1 + n)) / n",
)
NLL = "  nll = 0 - gather(log_softmax(scores, over = classes), label, over = classes)\n"
LOSSES = {
    "a masked loss": "  loss = cross_entropy(scores, label, ignore_index = 0) + 0.01 * mean(square(model.two.weight))",
    "a ratio": f"{NLL}  loss = sum(nll * masked) / n + sum(nll * w) * (1 / n) + 1 - 0.5",
    "a count that is known beside examples": f"{NLL}  share = masked / n\n"
    "  penalty = mean(square(model.one.weight)) / n\n  loss = sum(nll * share) + penalty\n  metric twice = 2 * penalty",
    "a mean beside examples": f"{NLL}  loss = mean(square(w - mu) * nll) * (-2) * (3 / (1 + n))",
}
STAGES = "  mesh pp = 2, dp = auto\n  split batch over dp\n  stages over pp {\n    0: one, mid\n    1: nxt, two\n  }\n"
TWICE = "  mesh pp = 2\n  stages over pp balanced, virtual = 2\n  microbatches 4\n"
RULES = {
    "gathered": "  mesh dp = 2\n  split batch over dp\n  microbatches 2\n  zero 3 over dp",
    "sequence": "  mesh sp = 2\n  split seq over sp\n  microbatches 2",
    "no microbatches": "  mesh dp = 2\n  split batch over dp",
    "gpipe": f'{STAGES}  microbatches 2\n  schedule "gpipe"\n  at **: recompute',
    "1f1b": f"{STAGES}  microbatches 2",
    "interleaved": f'{TWICE}  schedule "interleaved_1f1b"',
    "zero_bubble": f'{STAGES}  microbatches 4\n  schedule "zero_bubble"',
    "zbv": f'{TWICE}  schedule "zbv"\n  at nxt: recompute',
    "dualpipe_v": f'{TWICE}  schedule "dualpipe_v"',
}


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, World]]:
    found = {ranks: World(ranks) for ranks in (1, 2)}
    yield found
    for world in found.values():
        world.close()


def run(text: str, world: World, folder: Path) -> Path:
    main = roads.written(roads.emitted(roads.planned(text, world.ranks)), folder)
    assert not (failed := world.run(main)), failed
    return folder


@pytest.mark.parametrize("loss", LOSSES)
def test_totals_are_those_of_one_rank(loss: str, worlds: dict[int, World], tmp_path: Path) -> None:
    text = PROGRAM.replace("LOSS", LOSSES[loss]).replace("MORE", MORE[list(LOSSES).index(loss) // 2])
    alone = run(text.replace("RULES", RULES["no microbatches"]), worlds[1], tmp_path / "alone")
    for name, rules in RULES.items():
        differs, _ = compared(run(text.replace("RULES", rules), worlds[2], tmp_path / name), alone)
        assert not differs, (name, differs)


def test_totals_are_those_of_one_device_on_simulated_ranks() -> None:
    text = PROGRAM.replace("LOSS", LOSSES["a count that is known beside examples"]).replace("MORE", MORE[1])
    for name in ("gathered", "sequence"):
        outcome = judged(text.replace("RULES", RULES[name]), 2)
        assert outcome.kind == AGREED, (name, outcome.detail)
