"""Claim: a step of the emitted tensor-parallel MLP of 8 layers takes at most 1.05 times the same by hand.

A step is forward, backward and update on a batch on hand; by hand, collectives are explicit. Both sides begin with the
same weights and must come to the same losses.

    python benchmarks/tensor_parallel.py [turns]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from by_hand import mlp
from emitted import beginning, emitted
from ranks import Turns, compared
from torch import nn

from shardlang.runtime.step.model import RankModel

MLP = Path(__file__).parent / "programs" / "mlp.shard"
BATCH, D, FFN = 64, 256, 1024
STEPS = 20


def sides(ranks: int, split: Callable[[mlp.Whole], nn.Module]) -> Callable[[], Turns]:
    """Both ways to take steps; `split` makes of a whole net one that is split over the ranks."""
    program, weights = emitted(MLP, "tensor_parallel", ranks), beginning(MLP)
    x, label = torch.rand(2, BATCH, D)

    def connected() -> Turns:
        mine = label[program.block(program.data.fields[1]).slices()].contiguous()
        model, by_hand = RankModel(program), mlp.training(split(mlp.begun(weights)))

        def ours() -> list[float]:
            losses = []
            for step in range(STEPS):
                loss, _ = program.forward(model.p, x, mine)
                model.backward(loss)
                model.update(step + 1, STEPS)
                losses.append(loss.detach())
            return torch.stack(losses).tolist()

        return {"ours": ours, "by hand": lambda: by_hand.steps([(x, label)] * STEPS).tolist()}

    return connected


def held(split: Callable[[mlp.Whole], nn.Module], other: str, limit: float) -> bool:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    return all([compared(n, sides(n, split), turns, f"MLP on {n} ranks / {other}", limit) for n in (2, 4)])


if __name__ == "__main__":
    sys.exit(0 if held(mlp.Split, "collectives by hand", 1.05) else 1)
