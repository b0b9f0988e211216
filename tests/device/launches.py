"""Prints, as JSON, how many kernels the pretended device is given by dropout and by a bucket of
ZeRO, and whether its numbers are the CPU's; and by a step of GPT-2. In a process of its own: one
that has had a device cannot fork ranks. `python -m tests.device.launches`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.functions.masks import dropout
from shardlang.runtime.launch.devices import DeviceChoice
from shardlang.runtime.launch.launcher import launch_program, read_program
from shardlang.runtime.state.zero import packed
from shardlang.runtime.step.train import TrainingRun
from tests.device.pretended import DEVICE, NAME, Running, counts, register
from tests.emit.sources import emitted_files

GPT2 = """
use std.gpt2: GPT2

dim batch = 4, seq = 16

train {
  model = GPT2(vocab = 64, d = 48, heads = 4, layers = 12, max_len = 16, dropout = DROPOUT)
  data = random(tokens: i64[batch, seq] < 64, label: i64[batch, seq] < 64, batches = 4)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 1e-2)
  precision = PRECISION
  steps = 3
}
"""


def _launched() -> int:
    """Kernels since the last call."""
    found = counts.kernels.total()
    counts.kernels.clear()
    return found


def dropped(shape: tuple[int, int], part: bool) -> dict[str, Any]:
    """part: a rank has the second half of the last dim."""
    whole, offsets = ((shape[0], 2 * shape[1]), (0, shape[1])) if part else (shape, (0, 0))
    x = torch.ones(shape)
    with Running():
        there = x.to(DEVICE)
        _launched()
        there = dropout(there, 0.3, 7, whole, offsets)
        kernels = _launched()
        return {"kernels": kernels, "same": torch.equal(there.cpu(), dropout(x, 0.3, 7, whole, offsets))}


def packs(ranks: int) -> dict[str, Any]:
    """Gradients of three parameters."""

    class Members:
        size, in_order = ranks, True

    parts = [torch.ones(9, 4), torch.ones(5), torch.ones(())]
    with Running():
        moved = [part.to(DEVICE) for part in parts]
        _launched()
        there = packed(moved, Members())  # type: ignore[arg-type]
        kernels = _launched()
        return {"kernels": kernels, "same": torch.equal(there.cpu(), packed(parts, Members()))}  # type: ignore[arg-type]


def fused(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Attention as a GPU has it for such types: a kernel forward and one backward, in the layout of its operands."""
    found: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)[0]
    return found


def step(precision: str, dropout: float = 0.0) -> dict[str, int]:
    """Kernels of a step of a GPT-2 of 12 layers, by operator."""
    folder = Path(tempfile.mkdtemp())
    source = GPT2.replace("PRECISION", precision).replace("DROPOUT", str(dropout))
    for name, text in emitted_files(source, 1).items():
        (folder / name).write_text(text)

    def counted(*given: Any) -> None:
        torch.nn.functional.scaled_dot_product_attention = fused
        run = TrainingRun(*given[:3])
        update = run.model.update

        def updated(at: int, total: int) -> bool:
            done = update(at, total)
            (folder / "counts.json").write_text(json.dumps(counts.kernels))
            counts.kernels.clear()
            return done

        run.model.update = updated  # type: ignore[method-assign]
        run.train()

    program, main_file = read_program(folder / "main.py"), folder / "main.py"
    code = launch_program(program, main_file, 1, DeviceChoice(NAME), folder / "logs", folder / "m.jsonl", None, counted)
    assert code == 0, (folder / "logs" / "rank-0.log").read_text()
    found: dict[str, int] = json.loads((folder / "counts.json").read_text())
    return found


def main() -> int:
    register()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        steps = {precision: step(precision) for precision in ("f32", "bf16", "bf16(stream = bf16)")}
        steps["f32, dropout"] = step("f32", 0.1)
    found = {
        "step": steps,
        "dropout": [dropped(shape, part) for shape in ((3, 5), (700, 300)) for part in (False, True)],
        "bucket": [packs(ranks) for ranks in (2, 64)],
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
