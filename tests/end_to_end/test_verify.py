"""`shardc verify`: examples agree, and what is made wrong on purpose is found, named, and blamed on the right one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.end_to_end.curves import ROOT
from tests.end_to_end.faulty import FAULTS, verdict

pytestmark = pytest.mark.slow

# fault -> who differs, kind, path and step of the first difference (None: rounding decides), a piece of what is said
# fmt: off
FOUND = {
    "a wrong group": ("emitted", "value", "down.return:1", 1, "where it is `down_out`"),
    "a dropped sum": ("emitted", "value", "h", 1, "the plan, on simulated ranks, agrees with one device"),
    "a scaled gradient": ("emitted", "gradient", "h", 1, "the gradient of `h` [batch@dp, hidden@mp]"),
    "a wrong normaliser": ("emitted", "value", "train.loss", 1, "summed over dp"),
    "a sum not taken of the loss": ("emitted", "figure", "train.loss", 1, "the reported `train.loss`"),
    "a gradient that is not reduced": ("emitted", "stored gradient", "up.weight", 1, "[hidden@mp, pixels]"),
    "another learning rate": ("emitted", "parameter", "up.weight", 1, "the parameter `up.weight`"),
    "another eps, in float32": ("emitted", "parameter", "s", None, "the parameter `s`"),
    "another initial value": ("emitted", "parameter", "up.bias", 0, "before the first step"),
    "a wrong value before a step that fails": ("emitted", "value", "h", 1, "[2, 16] where the layout says [8, 4]"),
    "a plan that slices": ("both", "value", "h", 1, "the fault is in the plan, which both follow"),
    "a plan without a reduction": ("both", "stored gradient", "up.weight", 1, "neither the plan nor"),
    "a plan that is not what was emitted": ("plan", "stored gradient", "up.weight", 1, "the emitted program agrees"),
    "a collective with a wrong dual": ("emitted", "gradient", "return", 1, "`out_pending`"),
    "buckets that average": ("emitted", "stored gradient", "up.weight", 1, "the stored gradient of `up.weight`"),
    "a stage that is wrong on one rank, in one microbatch": (
        "emitted", "value", "h@1", 1, "rank 3, microbatch 2"),
    "a message that is scaled on its way back": ("emitted", "gradient", "m", 1, "`m` of stage0.py"),
    "numbers drawn with another key": ("emitted", "parameter", "up.weight", 0, "before the first step"),
}
# fmt: on


@pytest.mark.parametrize("name", FOUND)
def test_a_fault_is_found_and_named(name: str) -> None:
    differs, kind, path, step, said = FOUND[name]
    found = verdict(name)
    (check,) = found["checks"]
    first = check["difference"]
    assert (check["differs"], first["kind"], first["path"]) == (differs, kind, path), found
    assert step in (first["step"], None) and first["step"] <= 3, found
    assert said in "; ".join(found["said"][0])
    assert check["failed"] == name.endswith("that fails")


@pytest.mark.parametrize("name", ["nothing", "nothing, in float32"])
def test_where_all_is_right_nothing_is_found(name: str) -> None:
    (check,) = verdict(name)["checks"]
    assert check["ok"] and check["differs"] == "" and check["difference"] is None


def test_a_rank_that_fails_is_no_agreement() -> None:
    (check,) = verdict("a step that fails")["checks"]
    assert not check["ok"] and check["failed"] and check["difference"] is None


def test_every_fault_is_expected_here() -> None:
    assert set(FAULTS) == {*FOUND, "nothing", "nothing, in float32", "a step that fails"}


def shardc(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """`shardc` in a process of its own; `before` is run there first."""
    script = f"{before}\nfrom shardlang.cli.main import main\nmain({list(arguments)!r})"
    return warm.run([sys.executable, "-c", script], cwd=ROOT)


def checks(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = shardc("verify", *arguments, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
    return found


def test_an_example_under_all_its_strategies() -> None:
    found = checks("examples/digits.shard", "--ranks", "2", "--all-strategies", "--steps", "2")
    assert [c["strategy"] for c in found] == ["data_parallel", "tensor_parallel", "both", "sharded"]
    for check in found:
        assert check["ok"] and check["data"] == "own"
        for side in (check["emitted"], check["simulated"]):
            assert side["steps"] == 2 and side["values"] and side["gradients"] and side["parameters"]
            assert side["largest_error"] < 1e-12


def test_strategies_that_do_not_fit_are_told() -> None:
    found = checks("examples/digits.shard", "--ranks", "1", "--all-strategies", "--simulated-only", "--steps", "1")
    assert [c["strategy"] for c in found if "skipped" in c] == ["both"]
    assert checks_none("examples/digits.shard", "--ranks", "5", "--all-strategies")


def checks_none(*arguments: str) -> bool:
    done = shardc("verify", *arguments)
    return done.returncode == 1 and "SH304" in done.stderr and done.stdout == ""


def test_many_ranks_are_simulated_only_and_it_says_so() -> None:
    done = shardc("verify", "examples/digits.shard", "--ranks", "64", "--steps", "1", "--strategy", "sharded")
    assert done.returncode == 0, done.stderr
    assert "emitted program: not run" in done.stdout
    assert "plan on 64 simulated ranks: 15 values" in done.stdout


def test_data_that_are_not_at_hand_are_drawn(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "mnist_ddp.shard").read_text().replace("batch = 128", "batch = 4")
    (tmp_path / "net.shard").write_text(text)
    done = shardc("verify", str(tmp_path / "net.shard"), "--ranks", "2", "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert "on random data (the data file is missing: " in done.stdout


def test_float32_is_compared_more_loosely() -> None:
    (check,) = checks("examples/quickstart.shard", "--ranks", "8", "--dtype", "f32")
    assert 1e-9 < check["emitted"]["largest_error"] < 1e-5


def test_a_difference_ends_with_1_and_a_rank_that_fails_with_3() -> None:
    wrong = "from shardlang.runtime.comm import blocks as c\nold = c.scattered\nc.scattered = lambda *a: old(*a) {}"
    options = ("verify", "examples/quickstart.shard", "--ranks", "8", "--steps", "1")
    done = shardc(*options, before=wrong.format("+ 1"))
    assert done.returncode == 1
    assert "error[SH510]: the emitted program does not compute what one device does: `h`" in done.stderr
    assert "quickstart.shard:11" in done.stderr
    done = shardc(*options, before=wrong.format("/ []"))
    assert done.returncode == 3
    assert "error[SH501]: rank 0 failed: TypeError" in done.stderr
    assert "what it computed before is right" in done.stdout


NUMBERS = """
dim batch = 4, d = 3

model Net {
  param w: [d] = ones()
  forward(x: [batch, d], n: i64[batch, d]) -> [batch, d] { return x * w * ((1 + n) / 13) + silu(-800 * w) }
}

strategy s {
  mesh dp = 2
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, d], keep: [batch, d], n: i64[batch, d] < 5, batches = 2)
  y = model(x, n)
  kept = cast(keep > 0.4, f32)
  loss = sum(y) * (1 / (2 + sum(kept))) + sum(square(y)) / (2 * batch) + 0.5
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_numbers_that_join_what_is_pending(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "net.shard").write_text(NUMBERS)
    (check,) = checks(str(tmp_path / "net.shard"), "--ranks", "2", "--dtype", dtype)
    assert check["ok"] and check["emitted"]["largest_error"] < {"f64": 1e-13, "f32": 1e-5}[dtype]


def test_wrong_use() -> None:
    done = shardc("verify", "examples/digits.shard", "--ranks", "2", "--strategy", "both", "--all-strategies")
    assert done.returncode == 2 and "only one of them" in done.stderr


def test_too_large_to_simulate() -> None:
    big = ("--set", "hidden=4194304", "--strategy", "data_parallel", "--ranks", "64")
    done = shardc("verify", "examples/digits.shard", *big)
    assert done.returncode == 1 and "error[SH511]: 64 simulated ranks need about" in done.stderr


def test_a_program_that_starts_from_given_weights(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "digits.shard").read_text()
    (tmp_path / "first.shard").write_text(text)
    weights = tmp_path / "w.safetensors"
    run = ("run", str(tmp_path / "first.shard"), "--ranks", "1", "--set", "train.epochs=1", "--simulate")
    done = shardc(*run, "--save-weights", str(weights))
    assert done.returncode == 0, done.stderr
    (tmp_path / "next.shard").write_text(
        text.replace("epochs = 10", 'init = safetensors("w.safetensors")\n  epochs = 1')
    )
    (check,) = checks(str(tmp_path / "next.shard"), "--ranks", "4", "--strategy", "both", "--steps", "2")
    assert check["ok"] and check["emitted"]["parameters"] == 12
    weights.write_bytes(b"no weights")
    done = shardc("verify", str(tmp_path / "next.shard"), "--ranks", "4", "--simulated-only")
    assert done.returncode == 3 and "SH504" in done.stderr


def test_schedules_and_clipping(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "digits.shard").read_text()
    settings = "\n  ".join(
        [
            "optimizer = adamw(lr = 0.01, weight_decay = 0.1)",
            "lr_schedule = warmup_cosine(warmup = 2, min = 1e-4)",
            "clip = 0.05",
        ]
    )
    text = text.replace("optimizer = sgd(lr = 0.1, momentum = 0.9)", settings).replace("epochs = 10", "steps = 6")
    (tmp_path / "net.shard").write_text(text)
    for check in checks(str(tmp_path / "net.shard"), "--ranks", "4", "--all-strategies", "--steps", "6"):
        assert check["ok"], check["difference"]


MICROBATCHES = """
strategy parts {
  mesh dp = 2, mp = auto
  split batch over dp
  split hidden over mp
  microbatches 4
  zero 2 over dp
}

strategy sums {
  mesh dp = auto
  split batch over dp
  microbatches 2
}

train {"""
MASKED = """loss = cross_entropy(scores, label, ignore_index = 0) + 0.001 * sum(square(model.up.weight))
  metric spread = sqrt(mean(square(scores)))"""


def test_microbatches_and_what_runs_once_a_step(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "digits.shard").read_text()
    text = text[: text.index("strategy")] + MICROBATCHES.strip() + text.partition("train {")[2]
    (tmp_path / "net.shard").write_text(text.replace("loss = cross_entropy(scores, label)", MASKED))
    found = checks(str(tmp_path / "net.shard"), "--ranks", "4", "--all-strategies", "--steps", "2")
    assert [c["strategy"] for c in found] == ["parts", "sums"]
    assert all(c["ok"] and c["emitted"]["values"] > 40 for c in found), found


ATTENDED = """\
use std.gpt2: GPT2

dim batch = 4, seq = 16

strategy s {
  mesh cp = 2, tp = 2
  split heads, ffn, vocab over tp
  split seq over (cp, tp?)
  at blocks[0]: attend in a ring
  at blocks[1]: attend evenly
  microbatches 2
  at blocks[*]: recompute all but products
}

train {
  model = GPT2(vocab = 40, d = 16, heads = 2, layers = 3, max_len = 16, dropout = 0.1)
  data = random(tokens: i64[batch, seq] < 40, label: i64[batch, seq] < 40, batches = 2)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 1e-2)
  epochs = 1
}
"""


def test_three_ways_to_attend_over_a_cut_sequence(tmp_path: Path) -> None:
    file = tmp_path / "attended.shard"
    file.write_text(ATTENDED)
    (check,) = checks(str(file), "--ranks", "4")
    assert check["ok"]
