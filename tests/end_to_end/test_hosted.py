"""Wide and deep on click logs: tables on the host, both ways to lay them out, against one rank; auc over whole sets.

The program as it is written for users is read from `../shared` beside the repository, where that is there, with real
clicks; a smaller one with clicks made here always runs.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.cli.process import shardc
from tests.end_to_end.curves import ROOT, RunOf, figures
from tests.end_to_end.test_curves import farthest

pytestmark = pytest.mark.slow
ALONE = RunOf("", 1)
SHARED = ROOT.parent / "shared" / "programs"
TEXT = """
use std.nn: Linear
dim batch = 16, fields = 39
model WideDeep(vocab: dim = 200, width: dim = 8) {
  param wide_table: [vocab, 1] = normal(0.01)
  param deep_table: [vocab, width] = normal(0.01)
  param wide_bias: [1] = zeros()
  layer fc1 = Linear(fields * width, 16)
  layer fc2 = Linear(16, 1)
  forward(ids: i64[batch, fields], values: [batch, fields]) -> [batch, 1] {
    weight = rearrange(values -> [batch, fields, 1])
    wide_rows = embedding(ids, wide_table)
    deep_rows = embedding(ids, deep_table)
    wide = sum(wide_rows * weight, over = fields) + wide_bias
    deep = rearrange(deep_rows * weight -> [batch, fields * width]) |> fc1 |> relu |> fc2
    return wide + deep
  }
}
strategy host_device {
  mesh dp = auto
  split batch over dp
  at wide_table, deep_table, wide_rows, deep_rows: place on host
}
strategy split_tables {
  mesh mp = auto
  split vocab over mp
  at wide_table, deep_table, wide_rows, deep_rows: place on host
}
strategy exchanged {
  mesh dp = auto
  split batch, vocab over dp
  at wide_table, deep_table, wide_rows, deep_rows: place on host
}
train {
  model = WideDeep()
  data = criteo("clicks.txt", batch = batch)
  EVAL
  logits = model(ids, values)
  wide_loss = bce_with_logits(logits, label)
  loss = wide_loss + 4e-6 * sum(square(model.deep_rows))
  metric wide_loss = wide_loss
  metric auc = auc(logits, label)
  optimizer at wide_table, wide_bias = ftrl(lr = 5e-2, l1 = 1e-8, l2 = 1e-8, initial_accumulator = 1.0)
  optimizer at deep_table = lazy_adam(lr = 3.5e-3, eps = 1e-8)
  optimizer = adam(lr = 3.5e-3, eps = 1e-8)
  epochs = 2
}
"""


def clicks(count: int, seed: int = 3) -> str:
    """A log in the raw form, with empty cells; the first category tells much of the label."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        label = draw.random() < 0.3
        numbers = ["" if draw.random() < 0.2 else str(draw.randrange(-2, 300)) for _ in range(13)]
        first = f"{draw.randrange(4) + 4 * (label != (draw.random() < 0.2)):08x}"
        rest = ["" if draw.random() < 0.2 else f"{draw.randrange(30):08x}" for _ in range(25)]
        lines.append("\t".join([str(int(label)), *numbers, first, *rest]))
    return "\n".join(lines) + "\n"


def agree(text: str, folder: Path, runs: list[RunOf]) -> None:
    found = figures(text, [ALONE, *runs], folder)
    for run, figure in found.items():
        for name in ("loss", "wide_loss", "auc"):
            assert farthest(found[ALONE], figure, name) <= 1e-5, (run, name)
        for mine, theirs in zip(figure.evaluations, found[ALONE].evaluations, strict=True):
            for name in ("eval.loss", "eval.wide_loss", "eval.auc"):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-5), (run, name)


def every(strategy: str) -> list[RunOf]:
    return [RunOf(strategy, ranks) for ranks in (1, 2, 4, 8)]


STRATEGIES = pytest.mark.parametrize("strategy", ["host_device", "split_tables"])


@pytest.mark.parametrize("strategy", ["host_device", "split_tables", "exchanged"])
def test_clicks_made_here_with_an_evaluation(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "clicks.txt").write_text(clicks(80))
    (tmp_path / "later.txt").write_text(clicks(45, 4))  # the last batch is filled up
    agree(TEXT.replace("EVAL", 'eval = criteo("later.txt", batch = batch)'), tmp_path, every(strategy))


@STRATEGIES
def test_real_clicks(tmp_path: Path, strategy: str) -> None:
    log = SHARED / "data" / "criteo_sample.txt"
    if not log.exists():
        pytest.skip("the click log in ../shared/programs/data is not there")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / log.name).write_bytes(log.read_bytes())
    agree((SHARED / "wide_deep.shard").read_text(), tmp_path, every(strategy))


def run_of(folder: Path, text: str, ranks: int, strategy: str, *more: str) -> tuple[int, str]:
    (folder / "clicks.shard").write_text(text)
    done = shardc("run", "clicks.shard", "--ranks", str(ranks), "--strategy", strategy, *more, folder=folder)
    return done.returncode, done.stdout + done.stderr


def test_auc_of_an_evaluation_is_that_of_all_its_examples(tmp_path: Path) -> None:
    """In batches of 16, the last filled up, as in one of 45: rates so small that no weight moves."""
    (tmp_path / "clicks.txt").write_text(clicks(48))
    (tmp_path / "later.txt").write_text(clicks(45, 4))
    head = TEXT[: TEXT.index("  optimizer at wide_table")]  # ftrl forgets how a weight began
    still = head + "  optimizer = sgd(lr = 1e-12)\n  steps = 1\n}\n"
    found = []
    for size in (16, 45):
        text = still.replace("EVAL", 'eval = criteo("later.txt", batch = batch)').replace(
            "batch = 16", f"batch = {size}"
        )
        code, output = run_of(tmp_path, text, 1, "host_device", "--metrics", f"{size}.jsonl")
        assert code == 0, output
        lines = [json.loads(line) for line in (tmp_path / f"{size}.jsonl").read_text().splitlines()]
        found.append(next(line["eval.auc"] for line in lines if "eval.auc" in line))
    assert 0.0 < found[0] < 1.0
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@STRATEGIES
def test_ranks_log_what_runs_on_the_host(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "clicks.txt").write_text(clicks(80))
    text = TEXT.replace("  EVAL\n", "").replace("epochs = 2", "epochs = 1\n  log = every(2)")
    code, output = run_of(tmp_path, text, 2, strategy, "--metrics", "figures.jsonl")
    assert code == 0, output
    names = ["wide_rows", "deep_rows", "ftrl of wide_table", "lazy_adam of deep_table"]
    for rank in range(2):
        lines = (tmp_path / "shardlang-logs" / "latest" / f"rank-{rank}.log").read_text().splitlines()[1:]
        assert [line.split()[:2] for line in lines] == [["step", "2"], ["step", "4"]]
        assert all(f"{name} " in line for line in lines for name in names)
    found = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert [list(line.get("host_ms", {})) for line in found] == [[], names, [], names, []]
    assert all(0.0 < time < 1e5 for line in found for time in line.get("host_ms", {}).values())


@pytest.mark.parametrize("wrong", [-1, 200])
@STRATEGIES
def test_an_id_out_of_range_ends_the_run(tmp_path: Path, wrong: int, strategy: str) -> None:
    ids = np.random.default_rng(0).integers(0, 200, (64, 39))
    ids[37, 5] = wrong
    np.savez(
        tmp_path / "clicks.npz", ids=ids, values=np.ones((64, 39), np.float32), label=np.zeros((64, 1), np.float32)
    )
    fields = "ids: i64[batch, fields], values: [batch, fields], label: [batch, 1]"
    text = TEXT.replace("  EVAL\n", "").replace('criteo("clicks.txt", batch = batch)', f'numpy("clicks.npz", {fields})')
    code, output = run_of(tmp_path, text, 4, strategy)
    assert code == 3, output
    assert "clicks.npz" in output, output
    assert f"example 37 has {wrong}" in output, output


def test_a_split_by_hand_that_does_not_sum_ends_before_any_rank_starts(tmp_path: Path) -> None:
    (tmp_path / "clicks.txt").write_text(clicks(64))
    text = TEXT.replace("  EVAL\n", "").replace("split vocab over mp", "split vocab over mp sizes (40, 60, 50, 49)")
    code, output = run_of(tmp_path, text, 4, "split_tables")
    assert code == 1, output
    assert "clicks.shard:" in output, output
    assert "199" in output, output
