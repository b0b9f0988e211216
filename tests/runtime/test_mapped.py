"""Tables in mapped files: the same numbers, no memory of their own, nothing left behind, errors before the start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardlang.runtime.program import Extent
from shardlang.runtime.state import mapped
from shardlang.runtime.state.optimizers import Slots
from tests import warm
from tests.cli.process import shardc
from tests.end_to_end.curves import ROOT

PROGRAM = """
dim batch = 16, fields = 4, vocab = 1001, width = 5
model Clicks {
  param table: [vocab, width] = normal(0.1)
  param w: [width, 1] = normal(0.1)
  forward(ids: i64[batch, fields]) -> [batch, 1] {
    pooled = sum(embedding(ids, table), over = fields)
    return pooled @ w
  }
}
strategy s {
  mesh mp = auto
  split vocab over mp uneven
  at table: place on host
}
strategy device {
  mesh mp = auto
  split vocab over mp uneven
}
train {
  model = Clicks()
  data = random(ids: i64[batch, fields] < 1001, label: [batch, 1], batches = 4, seed = 1)
  loss = mse_loss(model(ids), label)
  optimizer at table = OPTIMIZER
  optimizer = adam(lr = 1e-2)
  epochs = 2
}
"""
# Anonymous memory, in bytes, that a table of 64 MiB with the optimizer's two slots takes beyond what there was.
GROWTH = """
import sys
from pathlib import Path
from types import SimpleNamespace
import torch
from shardlang.runtime.state import mapped, initial
from shardlang.runtime.state.row_optimizers import LazyAdam
from shardlang.runtime.program import Extent, RunTensor

def anonymous():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

block = Extent((0, 0), (2**21, 8))
def part(some):
    program, table = SimpleNamespace(precision="f32"), RunTensor("table", block.shape, ("normal", 0.1))
    return initial.make(program, table, some)

part(Extent((0, 0), (2**12, 8)))
torch.sparse_coo_tensor([[1]], torch.ones(1, 8), (4, 8)).coalesce()
before = anonymous()
if sys.argv[1]:
    mapped._Storage.folder = Path(sys.argv[1])
    mapped._AT_ONCE = 2**18
    table = mapped.made(block, torch.float32, part)
else:
    table = part(block)
optimizer = LazyAdam([table], lr=0.1, betas=(0.9, 0.999), eps=1e-8)
table.requires_grad_().grad = torch.sparse_coo_tensor([[3, 70_000]], torch.ones(2, 8), table.shape).coalesce()
with torch.no_grad():
    optimizer.step(0.1)
print(anonymous() - before)
"""


def run(
    folder: Path, name: str, optimizer: str, *options: str, strategy: str = "s"
) -> subprocess.CompletedProcess[str]:
    file = folder / "clicks.shard"
    file.write_text(PROGRAM.replace("OPTIMIZER", optimizer))
    given = ("--ranks", "2", "--strategy", strategy, "--log-dir", str(folder / name), *options)
    return shardc("run", str(file), *given, folder=ROOT)


def curve(folder: Path, name: str, optimizer: str, *options: str) -> list[float]:
    metrics = folder / f"{name}.jsonl"
    done = run(folder, name, optimizer, "--metrics", str(metrics), *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


@pytest.mark.parametrize("optimizer", ["lazy_adam(lr = 1e-2)", "ftrl(lr = 0.1)", "adam(lr = 1e-2)"])
def test_the_numbers_are_the_same(tmp_path: Path, optimizer: str) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    plain = curve(tmp_path, "plain", optimizer)
    assert len(plain) == 8
    assert curve(tmp_path, "mapped", optimizer, "--host-storage", str(storage)) == plain
    assert list(storage.iterdir()) == []


def test_a_table_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    growth = {where: int(warm.run([sys.executable, "-c", GROWTH, where]).stdout) for where in ("", str(tmp_path))}
    assert growth[""] > 3 * 2**26
    assert growth[str(tmp_path)] < 2**25


def test_storage_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    optimizer = "adam(lr = 1e-2)"
    done = run(tmp_path, "logs", optimizer, "--host-storage", str(tmp_path / "none"))
    assert done.returncode == 3
    assert "error[SH509]" in done.stderr and "No such file or directory" in done.stderr
    done = run(tmp_path, "logs", optimizer, "--host-storage", str(tmp_path), strategy="device")
    assert done.returncode == 3
    assert "error[SH509]: there is host storage, and no parameter is placed on the host" in done.stderr


def test_parts_and_state_are_where_their_table_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped._Storage, "folder", tmp_path)
    monkeypatch.setattr(mapped._Storage, "mapped", set())
    table = mapped.made(Extent((0, 0), (7, 3)), torch.float32, lambda some: torch.full(some.shape, 2.0))
    assert table.tolist() == [[2.0] * 3] * 7
    rows = mapped.clone(table[2:4])
    rows += 1
    assert table.tolist() == [[2.0] * 3] * 7
    held = Slots([table, rows, torch.ones(3)])  # none of a size that kernels take as it is
    assert [mapped.is_mapped(t) for t in (table, table[1:], rows, *held.wholes)] == [True] * 5 + [False]
    assert [v.shape for v in held.views()] == [(7, 3), (2, 3), (3,)]
    assert list(tmp_path.iterdir()) == []
