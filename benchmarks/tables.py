"""Claim: a step with 20 million rows takes at most 1.3 times one with 200 thousand, and that 0.9 times torch's own.

In time and in memory; the same ids each time. By hand: nn.Embedding(sparse=True) and SparseAdam. Memory is what a
step has allocated at its peak, without the table and its optimizer's state.

    python benchmarks/tables.py [turns]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from by_hand.tables import Batches, Training
from emitted import beginning, emitted, training
from memory import peak_bytes
from ranks import on_ranks
from timing import ratios, verdict

from shardlang.runtime.comm import mesh
from shardlang.runtime.data.loader import Loader
from shardlang.runtime.step.train import datasets

PROGRAM = Path(__file__).parent / "programs" / "tables.shard"
SMALL, LARGE, EPOCHS = 200_000, 20_000_000, 4


def ours(rows: int, epochs: int) -> Callable[[], list[float]]:
    program = emitted(PROGRAM, "alone", 1, {"model.vocab": str(rows)})
    return training(program, datasets(program), epochs)


def epochs() -> list[Batches]:
    """The batches of the first epochs of the program, ready as tensors."""
    program = emitted(PROGRAM, "alone", 1)
    loader = Loader(program, program.data, datasets(program)["data"])
    return [[(batch["ids"], batch["label"]) for (batch,) in loader.epoch(1 + number)] for number in range(EPOCHS)]


def sides() -> Mapping[str, Callable[[], Sequence[float]]]:
    by_hand, given = Training(**beginning(PROGRAM)), epochs()
    return {"small": ours(SMALL, EPOCHS), "large": ours(LARGE, EPOCHS), "by hand": lambda: by_hand.train(given)}


def memory(rows: int) -> int:
    """Of an epoch once the first is over."""
    run = ours(rows, 1)
    run()
    return peak_bytes(run)


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    wall, processor = on_ranks(1, sides, turns)
    for name, timing in wall.items():
        print(f"{name:8} {timing}, processor {processor[name]}")
    print(f"processor time: ratio {processor['small'].median / processor['by hand'].median:.3f}")
    mesh.connect(0, 1, torch.device("cpu"), None)
    small, large = memory(SMALL), memory(LARGE)
    print(f"memory: {small:,} bytes with 200 thousand rows, {large:,} with 20 million")
    held = [
        verdict("time of a step, 20 million rows / 200 thousand", ratios(wall, "large", "small"), 1.3),
        verdict("memory of a step, 20 million rows / 200 thousand", [large / small], 1.3),
        verdict("a step, 200 thousand rows / SparseAdam by hand", ratios(wall, "small", "by hand"), 0.9),
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
