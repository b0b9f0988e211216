"""What `train` says is what the emitted program runs with: read back from the file, setting by setting."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from shardlang import runtime as rt
from tests.emit.sources import main_file

TEXT = """\
use std.nn: Dropout, Linear

dim batch = 16, input = 8, output = 4

model Net {
  layer fc = Linear(input, output)
  layer drop = Dropout(0.25)
  layer back = Linear(output, input)

  forward(x: [batch, input]) -> [batch, input] {
    h = fc(x) |> drop |> relu |> drop
    return back(h)
  }
}

strategy both {
  mesh dp = 2, mp = 2
  split batch over dp
  split output over mp
  bucket gradients 1MB
  zero 2 over dp
}

train {
  model = Net()
  data = random(x: [batch, input], label: [batch, input], batches = 2, seed = 9)
  eval = random(x: [batch, input], label: [batch, input], batches = 3, seed = 4)
  scores = model(x)
  loss = mse_loss(scores, label)
  metric mean_score = mean(scores)
  metric best = mean(argmax(scores, over = input))
  optimizer = adamw(lr = 0.25, weight_decay = 0.125)
  optimizer at **.bias = sgd(lr = 0.5, momentum = 0.75)
  lr_schedule = warmup_cosine(warmup = 3, min = 0.0625)
  clip = 0.375
  seed = 7
  steps = 11
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The emitted file, imported."""
    file: Path = tmp_path_factory.mktemp("emitted") / "main.py"
    file.write_text(main_file(TEXT, 4))
    spec = importlib.util.spec_from_file_location("emitted_main", file)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def program(module: ModuleType) -> rt.Program:
    return module.program


def test_settings_of_train(program: rt.Program) -> None:
    assert (program.seed, program.steps, program.epochs, program.clip) == (7, 11, None, 0.375)
    assert program.lr_schedule == rt.WarmupCosine(warmup=3, min=0.0625)
    assert (program.bucket_bytes, program.ranks, program.strategy) == (1_000_000, 4, "both")


def test_epochs(tmp_path: Path) -> None:
    text = main_file(TEXT.replace("steps = 11", "epochs = 5"), 1)
    assert "epochs=5, " in text and "steps=" not in text


def test_each_optimizer_has_its_own_parameters(program: rt.Program) -> None:
    found = {o.kind: (o.at, o.arguments) for o in program.optimizers}
    assert (found["adamw"][0], found["sgd"][0]) == ((), ("**.bias",))
    assert program.trained_by == {"fc.weight": 0, "fc.bias": 1, "back.weight": 0, "back.bias": 1}
    assert (found["adamw"][1]["lr"], found["adamw"][1]["weight_decay"]) == (0.25, 0.125)
    assert (found["sgd"][1]["lr"], found["sgd"][1]["momentum"]) == (0.5, 0.75)


def test_parameters_lie_as_planned(program: rt.Program) -> None:
    found = {p.path: (p.shape, p.cut, p.reduce, p.zero) for p in program.parameters}
    assert found == {
        "fc.weight": ((4, 8), {0: "mp"}, "dp", (2, "dp")),
        "fc.bias": ((4,), {0: "mp"}, "dp", (2, "dp")),
        "back.weight": ((8, 4), {1: "mp"}, "dp", (2, "dp")),
        "back.bias": ((8,), found["back.bias"][1], found["back.bias"][2], (2, "dp")),
    }
    assert {p.path: p.init for p in program.parameters}["fc.weight"] == ("kaiming_uniform", 8)


def test_data_and_eval(program: rt.Program) -> None:
    assert program.eval is not None
    for source, batches, seed in ((program.data, 2, 9), (program.eval, 3, 4)):
        assert (source.kind, source.batch, source.arguments) == ("random", 16, {"batches": batches, "seed": seed})
        assert [(f.name, f.shape, f.cut[0]) for f in source.fields] == [("x", (16, 8), "dp"), ("label", (16, 8), "dp")]


def test_figures_are_summed_over_what_they_are_pending_over(program: rt.Program) -> None:
    assert program.loss_pending == ("dp", "mp")
    # An argmax over a cut dim is the same on all ranks of its axis.
    assert program.metrics_pending == {"mean_score": ("dp", "mp"), "best": ("dp",)}
    assert program.eval_pending == {"loss:1": ("dp", "mp"), "mean_score:1": ("dp", "mp"), "best:1": ("dp",)}


def test_two_calls_of_a_layer_draw_different_masks(module: ModuleType) -> None:
    text = Path(str(module.__file__)).read_text()
    keys = {line.split("rt.random.key(")[1].split(")")[0] for line in text.splitlines() if "rt.random.key(" in line}
    assert len(keys) == 2 and sum(key.endswith(", 1") for key in keys) == 1
