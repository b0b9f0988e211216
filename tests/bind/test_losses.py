"""A loop of the user's own has the losses of `shardc run`, bit for bit: figures of each step, of the evaluation, and
the parameters in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import shardlang
from shardlang.torch import bind, launch
from tests.end_to_end.curves import Figures, RunOf, figures

ROOT = Path(__file__).parent.parent.parent
DIGITS = (ROOT / "examples" / "digits.shard").read_text().replace("epochs = 10", "steps = 8")
DIGITS += """
strategy rows_of_moments {
  mesh dp = auto
  split batch over dp
  zero 1 over dp
}

strategy rows_of_gradients {
  mesh dp = auto
  split batch over dp
  zero 2 over dp
  microbatches 2
}

strategy staged {
  mesh pp = 2, dp = auto
  stages over pp {
    0: up
    1: down
  }
  microbatches 4
  split batch over dp
}

strategy all_of_it {
  mesh pp = 2, dp = auto
  stages over pp {
    0: up
    1: down
  }
  microbatches 4
  schedule "1f1b"
  split batch over dp
  zero 2 over dp
}
"""
RUNS = [
    RunOf(strategy, ranks)
    for ranks, strategies in {
        1: ("data_parallel",),
        2: ("data_parallel", "tensor_parallel", "sharded", "rows_of_moments", "rows_of_gradients", "staged"),
        4: ("data_parallel", "tensor_parallel", "both", "sharded", "rows_of_moments", "rows_of_gradients", "all_of_it"),
    }.items()
    for strategy in strategies
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[RunOf, Figures]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # as ranks of `launch` compute
        return figures(DIGITS, RUNS, tmp_path_factory.mktemp("theirs"))


def train(made: shardlang.Compiled) -> tuple[list[dict[str, float]], dict[str, float], dict[str, torch.Tensor]]:
    """The loop that specs/bind.md shows."""
    net = bind(made)
    optimizer = net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
    told = []
    for batch in islice(net.batches(1), 8):
        told.append(net.step(batch))
        optimizer.step()
        net.stepped()
    paths = [row.path for row in made.plan.parameters]
    return [dict(each) for each in told], net.evaluate(), {path: net.value(path) for path in paths}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_all_numbers_are_those_of_the_command(run: RunOf, theirs: Mapping[RunOf, Figures]) -> None:
    made = shardlang.compile(shardlang.source(DIGITS), ranks=run.ranks, strategy=run.strategy)
    expected, weights = theirs[run], load_file(theirs[run].weights)
    for steps, evaluation, values in launch(train, made, ranks=run.ranks):
        assert steps == [{name: step[name] for name in ("loss", "accuracy")} for step in expected.steps]
        assert {f"eval.{name}": value for name, value in evaluation.items()}.items() <= expected.evaluations[-1].items()
        assert values.keys() == weights.keys()
        assert all(torch.equal(values[path], weights[path]) for path in weights)
    assert len(expected.steps) == 8


