"""A loop of the user's own has the losses of `shardc run`, bit for bit: figures of each step, of the evaluation, and
the parameters in the end.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import shardlang
from shardlang.paths.patterns import covered
from shardlang.torch import bind, launch
from tests import warm
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
        4: ("both", "all_of_it"),
    }.items()
    for strategy in strategies
]  # fmt: skip

# With `on_device.py`.
ON_DEVICE = [RunOf("data_parallel", 1), RunOf("both", 4), RunOf("sharded", 2), RunOf("staged", 2)]


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


def test_on_a_device(theirs: Mapping[RunOf, Figures]) -> None:
    """A pretended one, which no tensor of the host's may come to by mistake."""
    done = warm.run([sys.executable, "-m", "tests.bind.on_device"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for run, line in zip(ON_DEVICE, done.stdout.splitlines(), strict=True):
        assert json.loads(line) == [theirs[run].curve()] * run.ranks, run


def test_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transformer over three axes: stages, tensor parallel, ZeRO, dropout, recomputing, two optimizers, clip."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = (ROOT / "examples" / "transformer.shard").read_text()
    text, _, after = text.partition("  data = ")
    fields = {"source": "src", "target": "tgt", "label": "tgt"}
    data = ", ".join(f"{name}: i64[batch, {dim}] < 64" for name, dim in fields.items())
    text += f"  data = random({data}, batches = 3)\n" + after.partition("\n")[2]
    text = re.sub(r"  checkpoint = .*\n", "", text)
    sizes = {"batch": 8, "src": 8, "tgt": 8, "model.layers": 2, "model.d": 32, "model.ffn": 64, "model.vocab": 64}
    made = shardlang.compile(shardlang.source(text), ranks=8, strategy="three_d", set=sizes)
    made.write(tmp_path)
    script = "import sys; from pathlib import Path; from shardlang.runtime.launch.launcher import launch; "
    script += "sys.exit(launch(Path('main.py'), 8, device='cpu', metrics=Path('figures')))"
    done = warm.run([sys.executable, "-c", script], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "figures").read_text().splitlines()]

    def loop() -> list[float]:
        net, apart, paths = bind(tmp_path), ["**.bias", "**.*norm*.**"], [row.path for row in made.plan.parameters]
        decays = {0.1: sorted({*paths} - covered(apart, paths)), 0.0: apart}
        both = [net.optimizer(torch.optim.AdamW, at=at, lr=1e-4, weight_decay=by) for by, at in decays.items()]
        told = []
        for batch in net.batches(1):
            told.append(net.step(batch))
            net.clip(1.0)
            for optimizer in both:
                optimizer.step()
            net.stepped()
        return [each["loss"] for each in told]

    assert launch(loop, ranks=8) == [[line["loss"] for line in lines if "step" in line]] * 8
