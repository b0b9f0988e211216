"""`shardc run --simulate`: curve, evaluations and weights are those of real ranks; more ranks than a machine has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.process import shardc
from tests.end_to_end.curves import ROOT

pytestmark = pytest.mark.slow


def run(folder: Path, name: str, *arguments: str) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The figures and the weights of a run of digits."""
    metrics, weights = folder / f"{name}.jsonl", folder / f"{name}.safetensors"
    options = ("--metrics", str(metrics), "--save-weights", str(weights), "--log-dir", str(folder / name))
    done = shardc("run", str(ROOT / "examples" / "digits.shard"), *arguments, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in metrics.read_text().splitlines()], load_file(weights)


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert len(one) == len(other) > 1
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - {"step_ms"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-7), (name, mine)


@pytest.mark.parametrize("strategy", ["both", "sharded"])
def test_simulated_ranks_train_as_real_ones_do(strategy: str, tmp_path: Path) -> None:
    options = ("--ranks", "4", "--strategy", strategy, "--set", "train.epochs=1")
    mine, my_weights = run(tmp_path, "simulated", *options, "--simulate")
    theirs, their_weights = run(tmp_path, "real", *options)
    same(mine, theirs)
    assert my_weights.keys() == their_weights.keys()
    for name, weight in my_weights.items():
        torch.testing.assert_close(weight, their_weights[name], rtol=1e-5, atol=1e-6)


def test_evaluation_in_bf16_has_what_was_trained(tmp_path: Path) -> None:
    """Not the copies that the run began with."""
    options = ("--ranks", "4", "--strategy", "both", "--set", "train.epochs=1", "--set", "train.precision=bf16")
    (mine,), (theirs,) = (
        [line["eval.loss"] for line in run(tmp_path, name, *options, *further)[0] if "eval.loss" in line]
        for name, further in (("simulated", ["--simulate"]), ("real", []))
    )
    assert mine == pytest.approx(theirs, rel=2e-2) and mine < 1.5


def test_more_ranks_than_a_machine_has(tmp_path: Path) -> None:
    options = ("--set", "train.epochs=1", "--set", "batch=256", "--simulate")
    many, _ = run(tmp_path, "many", "--ranks", "256", "--strategy", "both", *options)
    one, _ = run(tmp_path, "one", "--ranks", "1", "--strategy", "data_parallel", *options)
    same(many, one)


def test_a_loss_that_is_not_finite_fails_the_run(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "quickstart.shard").read_text().replace("lr = 0.4", "lr = 1e30")
    (tmp_path / "net.shard").write_text(text)
    done = shardc("run", str(tmp_path / "net.shard"), "--ranks", "8", "--simulate")
    assert done.returncode == 3
    assert "error[SH506]" in done.stderr
