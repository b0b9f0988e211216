"""Claim: a step of the emitted tensor-parallel MLP of 8 layers takes at most 1.05 times the same by hand.

A step is forward, backward and update on a batch on hand; by hand, collectives are explicit.

    python benchmarks/tensor_parallel.py [turns]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from by_hand.mlp import Split, Training
from emitted import emitted
from ranks import compared

from shardlang.runtime.model import Model

MLP = Path(__file__).parent / "programs" / "mlp.shard"
BATCH, D, FFN = 64, 256, 1024
STEPS = 20


def sides(ranks: int) -> Callable[[], Mapping[str, Callable[[], None]]]:
    program = emitted(MLP, "tensor_parallel", ranks)

    def connected() -> Mapping[str, Callable[[], None]]:
        x, label = torch.rand(BATCH, D), torch.rand(BATCH, D)
        mine = label[program.block(program.data.fields[1]).slices()].contiguous()
        model, by_hand = Model(program), Training(Split(D, FFN, ranks))

        def ours() -> None:
            for step in range(STEPS):
                loss, _ = program.forward(model.p, x, mine)
                model.backward(loss)
                model.update(step + 1, STEPS)

        def theirs() -> None:
            for _ in range(STEPS):
                by_hand.step(x, label)

        return {"ours": ours, "by hand": theirs}

    return connected


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    held = [
        compared(ranks, sides(ranks), turns, f"MLP on {ranks} ranks / collectives by hand", 1.05) for ranks in (2, 4)
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
