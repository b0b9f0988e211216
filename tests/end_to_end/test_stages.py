"""Pipeline stages change no figure: emitted programs under every schedule against one rank; torchrun; failures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli.process import shardc
from tests.end_to_end.curves import ROOT, RunOf, figures
from tests.end_to_end.test_accumulation import same
from tests.runtime.apart import apart

pytestmark = pytest.mark.slow
PROGRAM = ROOT / "tests" / "emit" / "programs" / "staged.shard"
ALONE = RunOf("alone", 1)
RUNS = [
    RunOf("two", 2),
    RunOf("looped", 4),
    RunOf("gpipe", 4),
    RunOf("zero_bubble", 4),
    RunOf("zbv", 4),
    RunOf("dualpipe_v", 4),
]


def test_every_schedule(tmp_path: Path) -> None:
    found = figures(PROGRAM.read_text(), [ALONE, *RUNS], tmp_path)
    for run in RUNS:
        same(found[run], found[ALONE], run.name, 1e-9)


# Weights whose gradients autograd makes in another order of memory, as one tensor for two of them, or in two ways of
# which one does not begin at what the stage receives.
TURNED = """\
dim batch = 8, d = 4, experts = 3, ffn = 5, heads = 2, hd = 2

model Experts {
  param up: [experts, ffn, d] = normal(0.5)
  param down: [d, experts, ffn] = normal(0.3)
  param turned: [heads, hd, d] = normal(0.5)
  param one: [d, ffn] = normal(0.5)
  param other: [d, ffn] = normal(0.5)
  param back: [ffn, d] = normal(0.5)

  forward(x: [batch, d], before: [d]) -> [batch, d], [d] {
    wide = tanh(einsum(x * before, up -> [batch, experts, ffn]))
    narrow = einsum(wide, down -> [batch, d]) + einsum(einsum(x, turned -> [batch, heads, hd]), turned -> [batch, d])
    return x + tanh(tanh(narrow) @ (one + other)) @ back, tanh(mean(back, over = ffn))
  }
}

model Net {
  layer parts[4] = Experts()
  param start: [d] = normal(0.5)

  forward(x: [batch, d]) -> [batch, d] {
    a, first = parts[0](x, start)
    b, second = parts[1](a, first)
    c, third = parts[2](b, second)
    y, last = parts[3](c, third)
    return y * last
  }
}

strategy alone {
}

STRATEGIES
train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 4)
  loss = mse_loss(model(x), y)
  optimizer = OPTIMIZER
  clip = 0.5
  precision = f64
  steps = 4
}
"""
IN_TWO = {"zero_bubble": "", "zbv": ", virtual = 2", "dualpipe_v": ", virtual = 2"}


@pytest.mark.parametrize(("optimizer", "ranks"), [("sgd(lr = 0.5, momentum = 0.9)", 2), ("adamw(lr = 0.05)", 4)])
def test_gradients_in_another_order_of_memory(optimizer: str, ranks: int, tmp_path: Path) -> None:
    rules = (
        f"strategy {name} {{\n  mesh pp = 2, dp = auto\n  split batch over dp\n  stages over pp balanced{more}\n"
        f'  microbatches 4\n  schedule "{name}"\n}}\n'
        for name, more in IN_TWO.items()
    )
    text = TURNED.replace("STRATEGIES", "".join(rules)).replace("OPTIMIZER", optimizer)
    runs = [RunOf(name, ranks) for name in IN_TWO]
    found = figures(text, [ALONE, *runs], tmp_path)
    for run in runs:
        same(found[run], found[ALONE], run.name, 1e-9)


def test_every_level_of_zero(tmp_path: Path) -> None:
    text = PROGRAM.read_text()
    runs = []
    for level, name in ((1, "looped"), (2, "two"), (3, "looped")):
        start = text.index(f"strategy {name} ")
        end = text.index("}\n\nstrategy", start)
        changed = text[start:end].replace(f"strategy {name} ", f"strategy {name}{level} ")
        text += f"\n{changed}  zero {level} over dp\n}}\n"
        runs.append(RunOf(f"{name}{level}", 4))
    found = figures(text, [ALONE, *runs], tmp_path)
    for run in runs:
        same(found[run], found[ALONE], run.name, 1e-9)


def test_compiled_files_under_torchrun(tmp_path: Path) -> None:
    done = shardc("compile", str(PROGRAM), "--ranks", "2", "--strategy", "two", "-o", str(tmp_path), folder=ROOT)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"main.py", "mesh.py", "stage0.py", "stage1.py"}
    ended = apart(2, "main.py", "--device", "cpu", "--metrics", "m.jsonl", folder=tmp_path)
    assert [done.returncode for done in ended] == [0, 0], ended
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "loss" in line]) == 8


def test_a_stage_that_fails_ends_the_run_and_is_named(tmp_path: Path) -> None:
    done = shardc("compile", str(PROGRAM), "--ranks", "2", "--strategy", "two", "-o", str(tmp_path), folder=ROOT)
    assert done.returncode == 0, done.stderr
    stage = tmp_path / "stage1.py"
    text = stage.read_text()
    stage.write_text(text.replace("    y = torch.relu(y_1)", "    y = torch.relu(y_1) / {}", 1))
    done = warm.run(
        [sys.executable, str(tmp_path / "main.py"), "--device", "cpu", "--log-dir", str(tmp_path / "logs")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 3
    assert "rank 1 failed" in done.stderr and "y = last(m) + h |> relu" in done.stderr
    assert "torch.relu(y_1) / {}" in done.stderr
