"""Optimizers of a user's own: tried under every cut and level of ZeRO before they are trusted, and on real ranks the
same as on one, also after a resume under another layout."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shardlang import driver
from shardlang.check.own import OwnDecl
from shardlang.cli.main import run as shardc
from shardlang.diagnostics.diagnostic import Sink
from shardlang.interpret.trials.processes import verify
from shardlang.sources.source import Source
from shardlang.step.own_optimizers import gathered
from tests import warm
from tests.cli.process import SHARDC
from tests.emit import sources

PYTHON = """
import torch


def lion(parameter, gradient, state, step, lr, beta):
    mean = state["momentum"]
    update = torch.sign(beta * mean + (1 - beta) * gradient)
    return parameter - lr * update, {"momentum": 0.99 * mean + 0.01 * gradient}


def by_rows(parameter, gradient, state, step, lr):
    mean = 0.9 * state["momentum"] + gradient
    dims = tuple(range(1, mean.dim()))
    size = mean.square().sum(dims, keepdim=True).sqrt() if dims else mean.abs()
    return parameter - lr * mean / (size + 1e-8), {"momentum": mean}


def muon(parameter, gradient, state, step, lr, momentum):
    mean = momentum * state["momentum"] + gradient
    update = gradient + momentum * mean
    if update.dim() == 2:
        update = orthogonal(update)
    return parameter - lr * update / step, {"momentum": mean}


def orthogonal(x, steps=5):
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x
"""
DECLARED = """
optimizer lion(lr: float, beta: float = 0.9) {
  needs elements
  state momentum like parameter
  python "my_opt.py": lion
}

optimizer by_rows(lr: float) {
  needs rows
  state momentum like parameter
  python "my_opt.py": by_rows
}

optimizer muon(lr: float, momentum: float = 0.95) {
  needs whole matrices
  state momentum like parameter
  python "my_opt.py": muon
}
"""
NET = """
use "./my_opt.shard": lion, by_rows, muon

dim batch = 24, d = 6, hidden = 10

model Net {
  param a: [d, hidden] = normal(0.3)
  param b: [hidden] = normal(0.3)
  param c: [hidden, d] = normal(0.3)
  param s: [] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    h = relu(x @ a + b)
    return (h @ c) * s
  }
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 4)
  loss = mse_loss(model(x), y)
  optimizer = lion(lr = 0.01)
  optimizer at a = by_rows(lr = 0.02)
  optimizer at c = muon(lr = 0.03)
  lr_schedule = linear(warmup = 2)
  checkpoint = every(1, keep = 1, to = "kept")
  clip = 0.5
  precision = f64
  steps = 6
}

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy columns {
  mesh dp = auto, mp = 2
  split batch over dp
  split hidden over mp
  zero 1 over dp
}

strategy rows {
  mesh dp = auto, mp = 2
  split batch over dp
  split d over mp
  zero 2 over dp
}

strategy all {
  mesh dp = auto
  split batch over dp
  zero 3 over dp
}

strategy both {
  mesh dp = auto, mp = 2
  split batch over dp
  split hidden over mp uneven
  zero 3 over dp
}
"""
# Ranks that do not divide the rows leave some with none.
WORLDS = (("data", 2), ("columns", 4), ("rows", 4), ("all", 4), ("all", 3), ("both", 4), ("columns", 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("optimizers")
    placed(made)
    assert shardc(["verify", str(made / "my_opt.shard")]) == 0
    return made


def placed(folder: Path, python: str = PYTHON, declared: str = DECLARED) -> None:
    (folder / "my_opt.py").write_text(python)
    (folder / "my_opt.shard").write_text(declared)
    (folder / "net.shard").write_text(NET)


def trained(folder: Path, strategy: str, ranks: int, steps: int, *words: str) -> dict[str, np.ndarray]:
    how = [] if "--resume" in words else ["--overwrite"]
    given = ["--strategy", strategy, "--ranks", str(ranks), "--save-weights", "w.safetensors", *how, *words]
    done = warm.run([*SHARDC, "run", "net.shard", *given, "--set", f"train.steps={steps}"], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(load_file(folder / "w.safetensors"))


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, np.ndarray]:
    return trained(folder, "data", 1, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "ranks"), WORLDS)
def test_ranks_train_what_one_trains(strategy: str, ranks: int, folder: Path, alone: dict[str, np.ndarray]) -> None:
    found = trained(folder, strategy, ranks, 6)
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.slow
def test_state_goes_on_under_another_layout(folder: Path, alone: dict[str, np.ndarray]) -> None:
    (folder / "net.shard").write_text(NET.replace("linear(warmup = 2)", "constant()"))
    whole = trained(folder, "data", 1, 7)
    shutil.rmtree(folder / "kept")  # else all go on from its last step
    for steps, (strategy, ranks) in enumerate(WORLDS, 1):
        found = trained(folder, strategy, ranks, steps, *(["--resume"] if steps > 1 else []))
    (folder / "net.shard").write_text(NET)
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["rows", "both"])
def test_a_program_with_them_is_verified(strategy: str, folder: Path) -> None:
    words = ["verify", "net.shard", "--ranks", "4", "--strategy", strategy, "--steps", "4"]
    done = warm.run([*SHARDC, *words], cwd=folder)
    assert done.returncode == 0 and "4 ranks compute what one device does" in done.stdout, done.stdout + done.stderr


def test_nothing_runs_one_without_a_current_lock(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = folder / "my_opt.lock"
    kept = lock.read_text()
    for text in ("", kept.replace("lion", "lions"), kept.replace('"torch": "', '"torch": "0')):
        lock.write_text(text)
        for words in (["run", "net.shard"], ["compile", "net.shard", "-o", "out"]):
            code = shardc([words[0], str(folder / words[1]), "--ranks", "2", *words[2:]])
            assert code == 1 and "error[SH611]: optimizer `lion` is unverified" in "".join(capsys.readouterr())
    lock.write_text(kept)
    assert shardc(["check", str(folder / "net.shard"), "--ranks", "2"]) == 0


def test_a_plan_counts_what_is_gathered_for_them(folder: Path) -> None:
    """A parameter, its gradient and one state, of each other rank."""
    plan = sources.planned(NET.replace("f64", "f32"), 4, "columns", name=str(folder / "net.shard"))
    found = {plan.graph.values[v].path: (each.axes, each.sent) for v, each in gathered(plan).items()}
    # a: [6, 5 of 10] in 3 rows; rows are gathered over mp. c: [5 of 10, 6] in 3 rows, over both.
    assert found == {"a": (("mp",), 3 * 5 * 4 * 3), "c": (("dp", "mp"), 3 * 3 * 6 * 4 * 3)}


# --- what `shardc verify` says of one ------------------------------------------------


def declared(folder: Path, python: str, needs: str, state: str = "momentum", settings: str = "lr: float") -> OwnDecl:
    (folder / "my_opt.py").write_text(f"import torch\n\nseen = {{}}\n\n\n{python}")
    remembered = "".join(f"  state {name} like parameter\n" for name in state.split())
    text = f'optimizer mine({settings}) {{\n  needs {needs}\n{remembered}  python "my_opt.py": mine\n}}\n'
    sink = Sink()
    (found,) = driver.declared_operators(Source(str(folder / "my_opt.shard"), text), sink)
    assert isinstance(found, OwnDecl), [d.message for d in sink.found]
    return found


def mine(update: str, after: str = "mean", before: str = "") -> str:
    return f"""def mine(parameter, gradient, state, step, lr):
    mean = 0.9 * state["momentum"] + gradient
    {before or "pass"}
    return parameter - lr * ({update}), {{"momentum": {after}}}
"""


PURE = "def mine(p, g, s, step, lr):\n    return {}\n"
ROWS = "mean / (mean.abs().amax(-1, keepdim=True) if mean.dim() else 1.0)"
WRONG = {
    "the norm of all": (mine("mean / mean.norm()"), "elements", "rows over 2 ranks by ZeRO the parameter differs by"),
    "the largest of a row": (mine(ROWS), "elements", "differs by"),
    "a product": (mine("mean @ mean.T @ mean if mean.dim() == 2 else mean"), "rows", "by ZeRO the parameter differs"),
    "a mean": (mine("mean", "mean - mean.mean(0) * 0.1 if mean.dim() else mean"), "rows", "state `momentum` differs"),
    "its shape": (mine("mean * parameter.numel()"), "elements", "differs by"),
    "in place": (mine("mean", before="gradient.mul_(0.5)"), "elements", "it changes the gradient that it is given"),
    "the parameter": (mine("mean", before="parameter.sub_(mean)"), "elements", "it changes the parameter that"),
    "the state": (mine("mean", before='state["momentum"].add_(1)'), "elements", "it changes the state `momentum`"),
    "noise": (mine("mean * torch.rand(())"), "elements", "two calls with equal arguments give different results"),
    "hidden state": (mine("mean * len(seen)", before="seen[len(seen)] = 1"), "elements", "two calls with equal"),
    "no number": (mine("mean / 0"), "elements", "step 1 gives numbers that are not finite"),
    "another shape": (PURE.format("p.reshape(-1), s"), "elements", "as float64[1], like which the parameter is not"),
    "another type": (mine("mean", "mean.float()"), "elements", "gives state `momentum` as float32[]"),
    "a tensor alone": (PURE.format("p - lr * g"), "elements", "gives no pair of the parameter"),
    "a list": (PURE.format("[p, s]"), "elements", "gives no pair of the parameter"),
    "no state": (PURE.format("p - lr * g, {}"), "elements", "gives state none, where `momentum` is declared"),
    "a number": (PURE.format("0.0, s"), "elements", "gives float for the parameter"),
    "an exception": (mine("1 / 0"), "elements", "raises ZeroDivisionError: division by zero"),
    "an end": (mine("exit(3)"), "elements", "raises SystemExit: 3"),
    "a kill": (mine("mean", before="import os; os._exit(4)"), "elements", "it ends the process that calls it (exit"),
    "no learning rate": (PURE.replace(", lr", "").format("p - g, s"), "elements", "raises TypeError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ones_are_refused(name: str, tmp_path: Path) -> None:
    python, needs, says = WRONG[name]
    verdict = verify(declared(tmp_path, python, needs))
    assert verdict.refused and says in verdict.refused, verdict


HELPS = {"the norm of all": "`needs whole matrices`", "the largest of a row": "", "a product": "`needs whole matrices`"}


@pytest.mark.parametrize("name", HELPS)
def test_a_refusal_says_what_would_do(name: str, tmp_path: Path) -> None:
    python, needs, _ = WRONG[name]
    found = verify(declared(tmp_path, python, needs)).help
    assert found == HELPS[name] if HELPS[name] else found.startswith("`needs ")


RIGHT = {
    "plain descent": ("def mine(p, g, s, step, lr):\n    return p - lr * g, {}\n", "elements", "", ()),
    "of all, where elements would do": (mine("mean"), "whole matrices", "momentum", ("elements",)),
    "of rows, where elements would do": (mine("mean * 2"), "rows", "momentum", ("elements",)),
    "the norm": (mine("mean / mean.norm()"), "whole matrices", "momentum", ()),
    "two states": (
        "def mine(p, g, s, step, lr):\n    m, v = 0.9 * s['m'] + 0.1 * g, 0.99 * s['v'] + 0.01 * g * g\n"
        "    d = (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)\n"
        "    return p - lr * d, {'v': v, 'm': m}\n", "elements", "m v", (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass(name: str, tmp_path: Path) -> None:
    python, needs, state, free = RIGHT[name]
    verdict = verify(declared(tmp_path, python, needs, state))
    assert verdict.refused == "" and verdict.tried > 200 and verdict.free == free, verdict


def test_a_text_needs_a_default_to_be_tried_with(tmp_path: Path) -> None:
    python = "def mine(p, g, s, step, lr, how):\n    return p - lr * g, s\n"
    verdict = verify(declared(tmp_path, python, "elements", settings="lr: float, how: str"))
    assert "setting `how` has no default to be tried with" in verdict.refused
