"""One training that changes its layout at each checkpoint, beside one that never does.

python -m tests.reshards [LAYOUT ...]

A small GPT-2 trains three steps under a layout, saves, and goes on under the next: (dp 2, mp 2, pp 2), 1 rank, dp 4,
mp 8, (pp 4, dp 2, zero 3), and the first again. What each layout has read it writes at once to another folder: there
each parameter and each optimizer state must have the sha256 that it had. The curve of losses must be that of one run
on 1 rank, to 1e-6, and so must the numbers of the examples.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from shardlang.checkpoints.looked_at import broken
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.launch.devices import chosen
from shardlang.runtime.launch.launcher import launch_program, read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram
from shardlang.runtime.state.checkpoints import Checkpoints, SavedRun
from shardlang.runtime.step.resume import save
from shardlang.runtime.step.train import TrainingRun
from tests.emit.sources import emitted_files

# The strategy and the ranks of each layout, by its name.
LAYOUTS = {
    "cube": ("cube", 8), "one": ("data", 1), "dp": ("data", 4), "mp": ("tensor", 8), "pp": ("deep", 8),
}  # fmt: skip
CHAIN = ("cube", "one", "dp", "mp", "pp", "cube")
STEPS = 3
TEXT = """
use std.gpt2: GPT2

dim batch = 8, seq = 8

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy tensor {
  mesh mp = auto
  split heads, ffn, vocab over mp
}

strategy cube {
  mesh dp = 2, mp = 2, pp = 2
  split batch over dp
  split heads, ffn, vocab over mp
  stages over pp {
    0: embed, blocks[0..2]
    1: blocks[2..4], norm
  }
  microbatches 2
  schedule "1f1b"
}

strategy deep {
  mesh pp = 4, dp = 2
  split batch over dp
  stages over pp {
    0: embed, blocks[0]
    1: blocks[1]
    2: blocks[2]
    3: blocks[3], norm
  }
  microbatches 4
  schedule "1f1b"
  zero 3 over dp
}

train {
  model = GPT2(vocab = 64, d = 32, heads = 8, layers = 4, max_len = 8, dropout = 0.1)
  data = numpy("data.npz", tokens: i64[batch, seq] < 64, label: i64[batch, seq] < 64)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-3)
  clip = 1.0
  checkpoint = every(%d, to = "kept")
  steps = %d
}
"""


def tensors(folder: Path) -> dict[str, str]:
    """The sha256 of each tensor of a checkpoint, whole."""
    saved = SavedRun(folder)
    found = {name: torch.empty(layout.shape) for name, layout in saved.tensors.items()}
    for name, offsets, part in saved.parts():
        found[name][tuple(slice(o, o + n) for o, n in zip(offsets, part.shape, strict=True))] = part
    return {name: hashlib.sha256(whole.numpy().tobytes()).hexdigest() for name, whole in found.items()}


def work(again: Path, program: RunProgram, data: Mapping[str, Dataset], log: Log, _: Path | None) -> None:
    """Trains on a rank; what has been read of a checkpoint goes to `again` first."""
    run = TrainingRun(program, data, log)
    if program.resume:
        run._resume()
        kept = Checkpoints(again, 1, 0)
        save(run.model, kept, run.facts, run.step)
        kept.wait()
        primitives.meet()
    run.train()
    if world.rank == 0:
        examples = [run.loader.examples(step).tolist() for step in range(1, run.total + 1)]
        (again.parent / "examples.json").write_text(json.dumps(examples))


def trained(folder: Path, layout: str, steps: int, resume: bool) -> None:
    """Runs the program in `folder` under a layout up to so many steps."""
    strategy, ranks = LAYOUTS[layout]
    main = Path(tempfile.mkdtemp(dir=folder)) / "main.py"
    for name, content in emitted_files(TEXT % (STEPS, steps), ranks, strategy).items():
        (main.parent / name).write_text(content)
    program = read_program(main)
    program.base, program.resume = folder, resume
    code = launch_program(
        program, main, ranks, chosen("cpu", ranks), main.parent / "logs", folder / "figures.jsonl", None,
        partial(work, folder / "again"),
    )  # fmt: skip
    assert code == 0, layout


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "figures.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "a step stands twice, or is missing"
    return [line["loss"] for line in lines]


def compare(chain: Sequence[str], folder: Path) -> None:
    """AssertionError where a layout of the chain changes a number."""
    rng, steps = np.random.default_rng(3), STEPS * len(chain)
    for name in ("chain", "alone"):
        (folder / name).mkdir()
    given = {name: rng.integers(0, 64, (40, 8)) for name in ("tokens", "label")}
    for name in ("chain", "alone"):
        np.savez(folder / name / "data.npz", **given)
    here = folder / "chain"
    for number, layout in enumerate(chain):
        trained(here, layout, STEPS * (number + 1), resume=number > 0)
        step = STEPS * number
        if step:
            before, after = (tensors(at / f"step-{step}") for at in (here / "kept", here / "again"))
            assert before == after and len(before) > 100, layout
            assert not [*broken(here / "again" / f"step-{step}")]
        print(f"{layout:5} steps {step + 1} to {step + STEPS}: {len(tensors(here / 'kept' / f'step-{step + STEPS}'))} "
              f"tensors{' as they were saved' if step else ''}", flush=True)  # fmt: skip
    trained(folder / "alone", "one", steps, resume=False)
    one, other = losses(here), losses(folder / "alone")
    apart = max(abs(a - b) / b for a, b in zip(one, other, strict=True))
    print(f"the losses of {steps} steps are those of one run to {apart:.1e}")
    assert apart <= 1e-6
    assert (here / "examples.json").read_text() == (folder / "alone" / "examples.json").read_text()


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        compare(words or CHAIN, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
