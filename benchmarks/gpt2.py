"""Claim: data-parallel GPT-2 of 10 million parameters takes at most the time of DistributedDataParallel by hand.

A training loop on data on hand; both sides begin with the same weights and must come to the same losses.

    python benchmarks/gpt2.py [turns]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from by_hand import gpt2
from by_hand.training import mean_over_ranks, parts
from emitted import beginning, emitted, on_hand, training
from ranks import Turns, compared
from torch import nn

from shardlang.runtime.comm.mesh import world

FILE = Path(__file__).parent / "programs" / "gpt2.shard"
HEADS, BATCHES = 5, 2


def sides(
    ranks: int, strategy: str, spread: Callable[[gpt2.GPT2], nn.Module], settings: Mapping[str, str]
) -> Callable[[], Turns]:
    """Both ways to train for an epoch, by a strategy of the program and with a net that is spread over the ranks."""
    program, weights = emitted(FILE, strategy, ranks, settings), beginning(FILE, settings)
    data, whole = on_hand(program)

    def connected() -> Turns:
        by_hand = gpt2.training(spread(gpt2.begun(weights, HEADS)))
        mine = parts(whole["tokens"], whole["label"], program.data.batch, world.rank, ranks)
        return {"ours": training(program, data, 1), "by hand": lambda: mean_over_ranks(by_hand.steps(mine))}

    return connected


def held(strategy: str, spread: Callable[[gpt2.GPT2], nn.Module], other: str) -> bool:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    settings = dict(argument.split("=") for argument in sys.argv[2:])
    return all(
        [
            compared(ranks, sides(ranks, strategy, spread, settings), turns, f"GPT-2 on {ranks} ranks / {other}", 1.0)
            for ranks in (2, 4)
        ]
    )


if __name__ == "__main__":
    sys.exit(0 if held("data_parallel", gpt2.data_parallel, "DistributedDataParallel") else 1)
