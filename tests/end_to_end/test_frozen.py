"""Frozen parameters on ranks: values as on one device, bytes that ranks hold, files that they are written to and read
from.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from shardlang.folds.memory import memory
from shardlang.step.gradient_sums import gradient_sums
from tests.cli.process import shardc
from tests.emit.sources import planned
from tests.end_to_end.kept import PARTS, held
from tests.interpret.verify_plan import verify_plan

# A frozen teacher, a frozen layer that gradients pass by (its rows not divisible by 4), and one in another stage.
TEXT = """\
use std.nn: LayerNorm, Linear

dim batch = 8, d = 16, hidden = 32, rank = 4, classes = 4

model Adapted(in: dim, out: dim) {
  layer base = Linear(in, out)
  param down: [rank, in] = normal(0.1)
  param up: [out, rank] = normal(0.1)

  forward(x: [..., in]) -> [..., out] {
    low = einsum(x, down -> [..., rank])
    return einsum(x, detach(base.weight) -> [..., out]) + detach(base.bias) + einsum(low, up -> [..., out])
  }
}

model Net {
  layer teacher = Linear(d, classes)
  layer first = Adapted(d, hidden)
  layer norm = LayerNorm(hidden)
  layer last = Adapted(hidden, classes)
  param scale: [5] = ones()

  forward(x: [batch, d]) -> [batch, classes] {
    h = x |> first |> relu |> norm
    taught = detach(softmax(teacher(x), over = classes))
    return last(h) * detach(mean(scale)) + taught
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, d], label: i64[batch] < classes, batches = 2)
  loss = cross_entropy(model(x), label)
  optimizer = adamw(lr = 1e-2)
  clip = 0.5
  steps = 4
  checkpoint = every(2, to = "kept")
}
"""
STATES = """\
use std.nn: Linear

dim batch = 8, d = 16, hidden = 32, classes = 4

model Fixed(in: dim, out: dim) {
  state weight: [out, in] = normal(0.1)
  state bias: [out] = zeros()
  state counted: i64[out] = zeros()

  forward(x: [..., in]) -> [..., out] {
    return einsum(x, weight -> [..., out]) + bias + cast(counted, f32)
  }
}

model Net {
  layer first = Fixed(d, hidden)
  state mean: [hidden] = zeros()
  state variance: [hidden] = ones()
  layer last = Linear(hidden, classes)
  state seen: [classes] = normal(0.3)

  forward(x: [batch, d]) -> [batch, classes] {
    return x |> first |> batch_norm(mean, variance) |> last
  }
}

strategy s {
  mesh dp = auto
  split batch over dp
  zero 3 over dp
}

train {
  model = Net()
  data = random(x: [batch, d], label: i64[batch] < classes, batches = 2)
  scores = model(x)
  loss = cross_entropy(scores, label)
  metric far = mean(abs(scores - model.seen))
  precision = PRECISION
  optimizer = adamw(lr = 1e-2)
  steps = 2
}
"""
FROZEN = {"teacher.weight", "teacher.bias", "first.base.weight", "first.base.bias", "last.base.weight",
          "last.base.bias", "scale"}  # fmt: skip
STAGED = """mesh pp = 2, dp = 2
  split batch over dp
  stages over pp {
    0: teacher, first
    1: norm, last
  }
  schedule "zero_bubble"
  microbatches 2
  zero 3 over dp"""


def text(rules: str) -> str:
    return TEXT.replace("RULES", rules)


@pytest.mark.parametrize(
    "rules",
    [
        "mesh dp = 4\n  split batch over dp\n  zero 3 over dp",
        "mesh dp = 4\n  split batch over dp\n  zero 1 over dp",
        "mesh dp = 2, mp = 2\n  split batch over dp\n  split hidden over mp\n  zero 3 over dp\n  microbatches 2\n"
        "  at first: recompute",
        "mesh dp = 2, mp = 2\n  split batch over dp\n  zero 3 over (dp, mp)\n  split hidden over mp",
        STAGED,
    ],
)
def test_values_are_those_of_one_device(rules: str) -> None:
    plan = planned(text(rules), 4)
    assert {v.path for v in plan.graph.values if plan.graph.frozen(v.id)} == FROZEN
    for value, param in plan.params.items():
        if plan.graph.frozen(value):
            assert param.zero == (3 if "zero 3" in rules else 0)
            assert not param.reduce_axes and not gradient_sums(plan)[value]
    report = verify_plan(plan, steps=2)
    assert report.ok, str(report.difference)


STRATEGIES = [
    "mesh dp = 2, mp = 2\n  split batch over dp\n  split hidden over mp\n  zero 3 over dp\n  microbatches 2\n"
    "  at first: recompute",
    "mesh dp = 2, mp = 2\n  split hidden over mp\n  zero 2 over dp\n  split batch over dp",
    STAGED,
]


@pytest.mark.parametrize("rules", STRATEGIES)
def test_freeze_is_detach_of_parameters(rules: str) -> None:
    """The gradient passes frozen layers: `norm` is behind `first.base`, and `first.down` before `last`."""
    plain = text(rules).replace("detach(base.weight)", "base.weight").replace("detach(base.bias)", "base.bias")
    frozen = plain.replace("optimizer =", "freeze at teacher, **.base, scale\n  optimizer =")
    plan = planned(frozen, 4)
    assert {v.path for v in plan.graph.values if plan.graph.frozen(v.id)} == FROZEN
    report = verify_plan(plan, steps=2)
    assert report.ok, str(report.difference)
    ours, theirs = memory(plan), memory(planned(text(rules), 4))
    assert (ours.gradients, ours.optimizer) == (theirs.gradients, theirs.optimizer)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_state_that_nothing_writes_is_frozen(precision: str) -> None:
    plan = planned(STATES.replace("PRECISION", precision), 4)
    levels = {plan.graph.values[v].path: param.zero for v, param in plan.params.items()}
    whole = {"first.counted", "mean", "variance"}
    assert {path for path, level in levels.items() if level == 0} == whole
    assert {plan.graph.values[v].path for v in plan.graph.states} == whole
    if precision == "f32":
        report = verify_plan(plan, steps=2)
        assert report.ok, str(report.difference)


@pytest.mark.slow
def test_states_that_nothing_writes_on_real_ranks_in_bf16(tmp_path: Path) -> None:
    (tmp_path / "net.shard").write_text(STATES.replace("PRECISION", "bf16"))
    run(tmp_path, "--ranks", "2", "--metrics", "two.jsonl")
    run(tmp_path, "--ranks", "1", "--metrics", "one.jsonl")
    two, one = ([json.loads(line)["loss"] for line in lines(tmp_path, name)] for name in ("two", "one"))
    assert two == pytest.approx(one, rel=1e-2)


# Sizes of which each rank has whole rows, in multiples of a vector's 16 elements.
LARGE = """\
use std.nn: Linear

dim batch = 16, d = 64, hidden = 128

model Net {
  layer up = Linear(d, hidden)
  layer teacher = Linear(d, hidden)

  forward(x: [batch, d]) -> [batch, hidden] {
    return up(x) + detach(teacher(x))
  }
}

strategy s {
  mesh dp = 4
  split batch over dp
  microbatches 2
  zero LEVEL over dp
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, hidden], batches = 1)
  loss = mse_loss(model(x), y)
  optimizer = adamw(lr = 1e-3)
  steps = 2
}
"""
LAYER = 4 * (64 * 128 + 128)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "precision", "by"), [(1, "f32", "detach"), (3, "f32", "freeze"), (1, "bf16", "freeze")]
)
def test_bytes_that_ranks_hold(level: int, precision: str, by: str, tmp_path: Path) -> None:
    """Of both layers the parameters, cut in four under zero 3; of the trained one alone its gradient and moments. In
    bf16 a copy of both; zero 1 then cuts the trained one. The plan has what zero 3 gathers among the copies; ranks
    do not hold it between steps.
    """
    program = LARGE.replace("LEVEL", str(level)).replace("steps = 2", f"steps = 2\n  precision = {precision}")
    if by == "freeze":
        program = program.replace("detach(teacher(x))", "teacher(x)").replace("  steps", "  freeze at teacher\n  steps")
    low = precision == "bf16"
    expected = {
        "parameters": LAYER + LAYER // 4 if low else 2 * LAYER // (4 if level == 3 else 1),
        "copies": LAYER if low else 0,
        "gradients": LAYER // (4 if level == 3 else 1),
        "optimizer": 2 * LAYER // 4,
    }
    before = memory(planned(program, 4))
    gathered = {"copies": 2 * LAYER} if level == 3 else {}
    assert {part: getattr(before, part) for part in PARTS} == expected | gathered
    assert held(program, 4, tmp_path / "run") == [expected] * 4


@pytest.mark.slow
def test_they_stay_as_they_begin_in_every_file(tmp_path: Path) -> None:
    """Two ranks write a checkpoint under zero 3, one goes on from it; then weights start a run on simulated ranks."""
    (tmp_path / "net.shard").write_text(text("mesh dp = auto\n  split batch over dp\n  zero 3 over dp"))
    run(tmp_path, "--ranks", "2", "--set", "train.steps=2", "--metrics", "two.jsonl", "--save-weights", "two.st")
    run(tmp_path, "--ranks", "1", "--resume", "--metrics", "one.jsonl", "--save-weights", "one.st")
    run(tmp_path, "--ranks", "2", "--simulate", "--metrics", "whole.jsonl", "--save-weights", "whole.st")
    ends = [load_file(tmp_path / f"{name}.st") for name in ("two", "one", "whole")]
    assert all(end.keys() == ends[0].keys() for end in ends)
    for path in ends[0]:
        if path in FROZEN:
            assert torch.equal(ends[0][path], ends[1][path]) and torch.equal(ends[0][path], ends[2][path]), path
        else:
            assert not torch.equal(ends[0][path], ends[1][path]), path
            torch.testing.assert_close(ends[1][path], ends[2][path], rtol=1e-5, atol=1e-6)
    losses = [json.loads(line)["loss"] for name in ("two", "one", "whole") for line in lines(tmp_path, name)]
    assert losses[:4] == pytest.approx(losses[4:], rel=1e-6)


def lines(folder: Path, name: str) -> list[str]:
    return [line for line in (folder / f"{name}.jsonl").read_text().splitlines() if "loss" in line]


def run(folder: Path, *words: str) -> None:
    done = shardc("run", "net.shard", *words, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr


LORA = """\
use std.nn: LoRALinear

dim batch = 8, d = 6, out = 4, rank = 2

model Net {
  layer up = LoRALinear(d, d, rank, alpha = 3.0)
  layer down = LoRALinear(d, out, rank, bias = false)

  forward(x: [batch, d]) -> [batch, out] {
    return x |> up |> tanh |> down
  }
}

strategy s {
  mesh dp = auto
  split batch over dp
  zero 2 over dp
}

train {
  model = Net()
  data = numpy("data.npz", x: [batch, d], y: [batch, out], shuffle = false)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.5)
  freeze at **.base
  init = safetensors("start.st")
  precision = f64
  steps = 3
}
"""


@pytest.mark.slow
def test_lora_is_that_of_the_paper(tmp_path: Path) -> None:
    """h = W x + alpha / r B A x, by torch alone, three steps of gradient descent for A and B."""
    torch.manual_seed(0)
    shapes = {
        "up.base.weight": (6, 6), "up.base.bias": (6,), "up.lora_A": (2, 6), "up.lora_B": (6, 2),
        "down.base.weight": (4, 6), "down.lora_A": (2, 6), "down.lora_B": (4, 2),
    }  # fmt: skip
    w = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    save_file(w, tmp_path / "start.st")
    (tmp_path / "net.shard").write_text(LORA)
    run(tmp_path, "--ranks", "2", "--save-weights", "end.st")
    learning = [name for name in w if "lora" in name]
    for _ in range(3):
        for name in learning:
            w[name] = w[name].detach().requires_grad_()
        up = x @ w["up.base.weight"].T + w["up.base.bias"] + 3.0 / 2 * (x @ w["up.lora_A"].T) @ w["up.lora_B"].T
        h = torch.tanh(up)
        down = h @ w["down.base.weight"].T + 16.0 / 2 * (h @ w["down.lora_A"].T) @ w["down.lora_B"].T
        gradients = torch.autograd.grad(((down - y) ** 2).mean(), [w[name] for name in learning])
        for name, gradient in zip(learning, gradients, strict=True):
            w[name] = w[name].detach() - 0.5 * gradient
    for name, value in load_file(tmp_path / "end.st").items():
        torch.testing.assert_close(value, w[name].detach(), rtol=1e-12, atol=1e-12)
