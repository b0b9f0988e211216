"""`compile = blocks`: each block is compiled once, for all layers, steps and microbatches, without a break; layouts and
numbers are those of a run that is not compiled.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shardlang.errors import RunError
from shardlang.runtime import compiled
from tests import warm
from tests.emit.sources import main_file
from tests.end_to_end.curves import ROOT, RunOf
from tests.runtime.compiling import Both, trained

COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, here g++")
MODEL = """
use std.gpt2: GPT2

dim batch = 24, seq = 8

strategy staged {{
  mesh pp = 2
  stages over pp balanced
  microbatches 12
  schedule "1f1b"
  at blocks[*]: recompute
}}

strategy context {{
  mesh cp = 2
  split seq over cp
  zero 1 over cp
  microbatches 3
  at blocks[1]: attend in a ring
  at blocks[2]: attend evenly
}}

strategy in_part {{
  mesh tp = 2
  split heads, ffn, vocab over tp
  split seq over tp?
  at blocks[*]: recompute all but products
}}

strategy gathered {{
  mesh dp = 2
  split batch over dp
  zero 3 over dp
  at blocks[1..3]: recompute
}}

train {{
  model = GPT2(vocab = 40, d = 16, heads = 2, layers = 4, max_len = 8, dropout = 0.1)
  data = random(tokens: i64[batch, seq] < 40, label: i64[batch, seq] < 40, batches = 3, seed = 1)
  {eval}
  scores = model(tokens)
  loss = cross_entropy(scores, label)
  optimizer = adamw(lr = 1e-2)
  precision = {precision}
  epochs = 1
}}
"""
GPT2 = MODEL.format(precision="f64", eval="")
EVAL = "eval = random(tokens: i64[batch, seq] < 40, label: i64[batch, seq] < 40, batches = 1, seed = 2)"
SMALL = """
use std.nn: Linear

dim batch = 4, d = 8

model Block() {
  layer up = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    return x + dropout(x |> up |> tanh, p = 0.2)
  }
}

model Net() {
  layer blocks[3] = Block()
  layer last = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    return x |> last |> blocks
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 3)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""
ALONE = RunOf("", 1)
GRAPHS = {"gathered": 2, "context": 3}  # that differ: computed again or not; three ways to attend
RUNS = [RunOf(name, 2) for name in ("context", "in_part", "staged", "gathered")]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[RunOf, Both]:
    return trained(GPT2, RUNS, tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_losses_are_those_without_compiling(both: dict[RunOf, Both], run: RunOf) -> None:
    assert len(both[run].eager) == 3
    assert both[run].compiled == pytest.approx(both[run].eager, rel=1e-9)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_block_is_compiled_once(both: dict[RunOf, Both], run: RunOf) -> None:
    """For 4 layers, 3 steps and up to 12 microbatches; those that are computed again apart from the others."""
    assert (both[run].graphs, both[run].breaks) == (GRAPHS.get(run.strategy, 1), 0)


def test_evaluation_is_compiled_too(tmp_path: Path) -> None:
    text = MODEL.format(precision="f64", eval=EVAL)
    found = trained(text, [ALONE], tmp_path)[ALONE]
    kinds = (tmp_path / ALONE.name / "main.py").read_text().count("@rt.block(")
    assert found.compiled == pytest.approx(found.eager, rel=1e-9)
    assert (found.graphs, found.breaks) == (kinds, 0)


TABLE = """
use std.nn: Linear

dim batch = 4, seq = 3, d = 8

model Net {
  param table: [9, d] = normal(0.5)
  layer out = Linear(d, d)

  forward(ids: i64[batch, seq]) -> [batch, seq, d] {
    return out(embedding(ids, table) + embedding(arange(seq), table))
  }
}

train {
  model = Net()
  data = random(ids: i64[batch, seq] < 9, label: [batch, seq, d], batches = 3)
  eval = random(ids: i64[batch, seq] < 9, label: [batch, seq, d], batches = 1, seed = 2)
  loss = mse_loss(model(ids), label)
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""


def test_gradients_that_are_rows_are_not_added_in_compiled_code(tmp_path: Path) -> None:
    """torch's compiler cannot: a function that looks up one table twice is not compiled."""
    found = trained(TABLE, [ALONE], tmp_path)[ALONE]
    text = (tmp_path / ALONE.name / "main.py").read_text()
    assert text.count("rt.sparse_embedding(") == 2 and text.count("@rt.block()\ndef net") == 1
    assert found.compiled == found.eager and (found.graphs, found.breaks) == (1, 0)  # that of the evaluation


TWICE = """
dim batch = 2, heads = 2, seq = 8, width = 8

model Block {{
  param w: [seq, width] = normal(0.5)
  param gain: [width] = normal(0.5)

  forward(x: [batch, heads, seq, width]) -> [batch, heads, seq, width] {{
    h = layer_norm(x * w, gain, gain, over = width)
    return x + attention(h, h, h, causal = true{how})
  }}
}}

model Net {{
  layer blocks[3] = Block()

  forward(x: [batch, heads, seq, width]) -> [batch, heads, seq, width] {{
    return x |> blocks
  }}
}}

strategy context {{
  mesh cp = 2
  split seq over cp
  at blocks[1]: attend in a ring
  at blocks[2]: attend evenly
}}

train {{
  model = Net()
  data = random(x: [batch, heads, seq, width], y: [batch, heads, seq, width], batches = 2)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  precision = {precision}
  steps = 2
}}
"""


@pytest.mark.parametrize(("precision", "how"), [("f64", ""), ("bf16", ", window = 3")])
def test_a_function_of_one_tensor_more_than_once_is_compiled(precision: str, how: str, tmp_path: Path) -> None:
    """Queries that are the keys and values, a norm whose gain is its bias."""
    run = RunOf("context", 2)
    found = trained(TWICE.format(precision=precision, how=how), [run], tmp_path)[run]
    assert found.compiled == pytest.approx(found.eager, rel=1e-9 if precision == "f64" else 1e-2)
    assert (found.graphs, found.breaks) == (3, 0)


def test_the_loss_of_scores_in_16_bits_is_compiled_too(tmp_path: Path) -> None:
    """By itself, for training and for evaluation."""
    found = trained(MODEL.format(precision="bf16", eval=EVAL), [ALONE], tmp_path)[ALONE]
    text = (tmp_path / ALONE.name / "main.py").read_text()
    assert "loss = rt.cross_entropy_in_f32(" in text
    assert found.compiled == pytest.approx(found.eager, rel=1e-3)
    assert (found.graphs, found.breaks) == (text.count("@rt.block(") + 2, 0)


def test_collectives_are_operators_of_the_graph(both: dict[RunOf, Both]) -> None:
    assert {"gathered", "scattered"} <= {*both[RunOf("in_part", 2)].known}
    assert not both[RunOf("staged", 2)].known
    for run in both.values():
        assert all(re.match(r"std\.\w+:\d+  |example\.shard:\d+  ", line) for line in run.cited), run.cited


@COMPILER
def test_it_compiles_to_machine_code(tmp_path: Path) -> None:
    found = trained(SMALL, [ALONE], tmp_path, "inductor")[ALONE]
    assert found.compiled == pytest.approx(found.eager, rel=1e-5)
    assert (found.graphs, found.breaks) == (1, 0)
    assert any((tmp_path / "cache").rglob("*.so"))


@COMPILER
def test_random_numbers_are_those_without_compiling() -> None:
    """To the bit, of a part as of the whole."""
    done = warm.run([sys.executable, "-m", "tests.runtime.compiled_random", "inductor"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@COMPILER
def test_collectives_stay_in_the_order_of_the_program() -> None:
    """Also those that need nothing of each other: ranks whose own code differs would wait in vain."""
    done = warm.run([sys.executable, "-m", "tests.runtime.compiled_order"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def emitted(text: str, folder: Path) -> Path:
    """The emitted program for one rank."""
    (folder / "main.py").write_text(main_file(text, 1, name="test.shard"))
    return folder / "main.py"


def test_a_machine_without_a_compiler_is_told_before_the_start(tmp_path: Path) -> None:
    file = emitted(SMALL.replace("epochs = 1", "epochs = 1\n  compile = blocks"), tmp_path)
    none = {**warm.os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = warm.run([sys.executable, str(file)], cwd=tmp_path, env=none)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "error[SH514]: blocks cannot be compiled on this machine, which lacks a C++ compiler (`g++`)\n"
        "help: `compile = none` in `train`, or --no-compile\n"
    )
    assert warm.run([sys.executable, str(file), "--no-compile"], cwd=tmp_path, env=none).returncode == 0


def test_a_block_that_cannot_be_compiled_is_named(tmp_path: Path) -> None:
    file = emitted(SMALL, tmp_path)
    text = file.read_text()
    assert text.count("    return out\n") == 1
    file.write_text(text.replace("    return out\n", "    print(out.sum().item())\n    return out\n"))
    done = warm.run([sys.executable, str(file), "--compile"], cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("error[SH514]: `block` (Block of test.shard:6")
    assert "cannot be compiled: " in done.stderr and "--no-compile" in done.stderr


def test_a_backward_that_cannot_be_compiled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import TorchDynamoException

    from shardlang.errors import RunError
    from shardlang.runtime import compiled

    monkeypatch.setattr(compiled.Compiling, "on", True)
    said = "the backward of a block cannot be compiled: no storage"
    with pytest.raises(RunError, match=said) as found, compiled.told():
        raise TorchDynamoException("no storage\nand more")
    assert found.value.code == "SH514"
    with pytest.raises(ValueError, match="other"), compiled.told():
        raise ValueError("other")


def test_ranks_on_a_device_import_the_code_generator_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks CUDA for its devices, and what is forked after that has none."""
    asked: list[str] = []
    monkeypatch.setattr(compiled.Compiling, "on", False)
    monkeypatch.setattr(compiled.traced, "keep_order", lambda: asked.append("here"))
    program: Any = SimpleNamespace(compile="blocks")
    with contextlib.suppress(RunError):  # a machine without a GPU may lack what compiles for one
        compiled.require(program, "cuda")
    assert not asked and compiled.Compiling.on
    compiled.start(program)
    assert asked == ["here"]


def test_an_older_torch_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients are wrong, and it does not say so."""
    monkeypatch.setattr(compiled.Compiling, "on", False)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    with pytest.raises(RunError, match=r"which lacks torch 2\.13 or newer: 2\.11\.0\+cu130 may compile wrong"):
        compiled.require(SimpleNamespace(compile="blocks"), "cpu")  # type: ignore[arg-type]
