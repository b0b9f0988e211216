"""Schedules of a user's own: the rates of a run are the function's on any number of ranks and after a resume, and what
is no learning rate is told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from shardlang.errors import RunError
from shardlang.runtime.step.learning_rate import asked
from tests.extensions.test_data import failed, run

# Plain descent on a gradient of one: the parameter is minus the sum of the rates.
NET = """
use "./my_lr.shard": mine

dim batch = 4, d = 1

model Net {
  param w: [d] = zeros()

  forward(x: [batch, d]) -> [batch, d] {
    return x * 0.0 + w
  }
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 3)
  loss = mean(model(x))
  optimizer = sgd(lr = 0.5)
  lr_schedule = mine(warmup = 4)
  checkpoint = every(1, keep = 1, to = "kept")
  steps = 10
}

strategy data {
  mesh dp = auto
  split batch over dp
}
"""
DECLARED = 'schedule mine(warmup: int, power: float = 2) { python "my_lr.py": mine }\n'
PYTHON = """
def mine(step, total, lr, warmup, power):
    return lr * min(1.0, step / warmup) * ((total + 1 - step) / total) ** power
"""


def placed(folder: Path, python: str = PYTHON, net: str = NET) -> None:
    (folder / "my_lr.py").write_text(python)
    (folder / "my_lr.shard").write_text(DECLARED)
    (folder / "net.shard").write_text(net)


def expected(steps: int) -> float:
    return -sum(0.5 * min(1.0, s / 4) * ((11 - s) / 10) ** 2 for s in range(1, steps + 1))


@pytest.mark.slow
def test_the_rates_are_the_functions(tmp_path: Path) -> None:
    placed(tmp_path)
    run(tmp_path, "--save-weights", "w.safetensors", ranks=2)
    assert load_file(tmp_path / "w.safetensors")["w"][0] == pytest.approx(expected(10), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_that_goes_on_has_the_rates_of_its_steps(ranks: int, tmp_path: Path) -> None:
    """The first part of ten steps ends after six."""
    net = NET.replace("batch = 4", "batch = 12")
    python = PYTHON.replace("(total + 1 - step) / total", "(11 - step) / 10")
    placed(tmp_path, python, net.replace("steps = 10", "steps = 6"))
    run(tmp_path, ranks=2)
    (tmp_path / "net.shard").write_text(net)
    run(tmp_path, "--resume", "--save-weights", "w.safetensors", ranks=ranks)
    assert load_file(tmp_path / "w.safetensors")["w"][0] == pytest.approx(expected(10), rel=1e-6)


@pytest.mark.slow
def test_ranks_with_different_rates_are_told_before_a_step(tmp_path: Path) -> None:
    placed(tmp_path, "import os\n" + PYTHON.replace("lr * min", "(lr + os.getpid() * (step == 7)) * min"))
    said = failed(tmp_path)
    assert "error[SH613]: the learning rate of step 7 is " in said and " on rank 1, and " in said, said
    placed(tmp_path, "n = []\n" + PYTHON.replace("return", "n.append(1)\n    return len(n) *"))
    assert "error[SH613]: rank 0 gets two learning rates for step 1, " in failed(tmp_path, ranks=1)


BAD = {
    "nan": (lambda *_: math.nan, "gives nan, and a learning rate is finite and at least 0"),
    "infinite": (lambda *_: math.inf, "gives inf"),
    "negative": (lambda *_: -1e-9, "gives -1e-09"),
    "text": (lambda *_: "0.1", "gives str, where a number is due"),
    "nothing": (lambda *_: None, "gives None, where a number is due"),
    "a truth value": (lambda *_: True, "gives bool, where a number is due"),
    "complex": (lambda *_: 1j, "gives complex, where a number is due"),
    "an exception": (lambda *_: 1 / 0, "raises ZeroDivisionError: division by zero"),
    "an end": (lambda *_: exit(1), "raises SystemExit: 1"),
    "too few arguments": (lambda step: 1.0, "raises TypeError"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_learning_rate_is_told(name: str) -> None:
    function, says = BAD[name]
    with pytest.raises(RunError) as raised:
        asked(function, Path("my_lr.py"), 3, 10, 0.5, {})
    assert raised.value.code == "SH621" and says in raised.value.message, raised.value.message
    assert raised.value.message.startswith("`<lambda>(3, 10, 0.5)` ")


@pytest.mark.slow
def test_a_wrong_rate_far_ahead_is_told_before_the_first_step(tmp_path: Path) -> None:
    placed(tmp_path, PYTHON.replace("lr * min", "(lr if step < 9 else float('nan')) * min"))
    said = failed(tmp_path)
    assert "error[SH621]: `mine(9, 10, 0.5)` gives nan" in said
    assert not list((tmp_path / "kept").glob("step-*"))
